-- Topic subscriptions: nodes whose readers wait for a topic are notified of new records.

-- Notify the nodes whose readers wait for one of these topics, once for all of them, unless only the lane's owner waits.
-- NOTIFY takes a lock on the whole server until the COMMIT, so nothing is sent without subscribers.
CREATE OR REPLACE FUNCTION tidings.tell(lane_ smallint, topics_ int[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM tidings.follower f WHERE f.topics && topics_ AND tidings.runs(f.until, 10000000, tidings.now())
          AND f.node IS DISTINCT FROM (SELECT l.node FROM tidings.lane l WHERE l.lane = lane_)
    ) THEN
        PERFORM pg_notify('tidings',
            CASE WHEN cardinality(topics_) > 500 THEN 'new' ELSE 'new ' || array_to_string(topics_, ' ') END);
    END IF;
END
$$;
