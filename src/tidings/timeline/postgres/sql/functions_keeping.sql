-- Retention: deletes what is old enough.

-- The records of 256 topics of a lane that may be deleted: each partition, its first record, and the end. Records of
-- notifications stay until a worker has committed them. Written so that it is inlined into the calling query. The dot in
-- the name of the group is written as a character code: a word before a dot would be replaced by the schema.
CREATE OR REPLACE FUNCTION tidings.spare(lane_ smallint, after int)
RETURNS TABLE (topic int, part smallint, first bigint, until bigint, bytes bigint) LANGUAGE sql STABLE AS $$
    SELECT p.topic, p.part, p.first,
        CASE WHEN t.name ~ '^notify[.](email|sms|push|webhook|in_app)([.](high|low))?$'
            THEN least(p.next, coalesce(c.next, 0)) ELSE p.next END,
        p.bytes
    FROM tidings.partition p JOIN tidings.topic t ON t.topic = p.topic
    LEFT JOIN tidings.committed c ON c.topic = p.topic AND c.name = E'tidings\x2Edeliver' AND c.part = p.part
    WHERE p.lane = lane_ AND p.topic > after AND p.topic <= after + 256
$$;

-- Delete the oldest records of some topics of a lane that are too old, or of topics that are too large for the lane.
-- Returns the last topic that was checked (NULL: all were) and whether there is more to delete. A release waits for
-- this, so records are deleted by ctid, and no plan can read other rows.
CREATE OR REPLACE FUNCTION tidings.trim(
    lane_ smallint, token_ uuid, oldest bigint, bytes_max bigint, after int, rows_max int, OUT last int, OUT more boolean
) LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    place record;
    old record;
BEGIN
    more := false;
    SELECT after + 256 INTO last WHERE EXISTS (SELECT 1 FROM tidings.topic t WHERE t.topic > after + 256);
    -- usually there is nothing to delete: then nothing is written or locked
    IF NOT EXISTS (
        SELECT 1 FROM tidings.spare(lane_, after) p CROSS JOIN LATERAL (
            SELECT l.released FROM tidings.log l WHERE l.topic = p.topic AND l.part = p.part AND l."offset" >= p.first
            ORDER BY l."offset" LIMIT 1
        ) l WHERE p.first < p.until AND l.released < oldest
    ) AND NOT EXISTS (
        SELECT 1 FROM tidings.spare(lane_, after) p
        GROUP BY p.topic HAVING sum(p.bytes) > bytes_max AND bool_or(p.first < p.until)
    ) THEN
        RETURN;
    END IF;
    PERFORM tidings.own(lane_, token_);
    FOR place IN
        SELECT p.topic, p.part, p.first, p.until FROM tidings.spare(lane_, after) p WHERE p.first < p.until
    LOOP
        SELECT array_agg(l.ctid) AS places, count(*) AS rows, max(l."offset") AS last, sum(l.bytes) AS bytes INTO old FROM (
            SELECT l.ctid, l."offset", l.released, octet_length(l.message) + octet_length(l.id) + 64 AS bytes
            FROM tidings.log l WHERE l.topic = place.topic AND l.part = place.part AND l."offset" >= place.first
                AND l."offset" < place.until
            ORDER BY l."offset" LIMIT rows_max
        ) l WHERE l.released < oldest;
        IF old.rows > 0 THEN
            DELETE FROM tidings.log l WHERE l.ctid = ANY (old.places);
            UPDATE tidings.partition p SET first = old.last + 1, bytes = p.bytes - old.bytes
            WHERE p.topic = place.topic AND p.part = place.part;
            more := more OR old.rows = rows_max;
        END IF;
    END LOOP;
    FOR place IN
        SELECT p.topic, sum(p.bytes) - bytes_max AS excess FROM tidings.spare(lane_, after) p
        GROUP BY 1 HAVING sum(p.bytes) > bytes_max AND bool_or(p.first < p.until)
    LOOP
        more := tidings.shrink(lane_, place.topic, place.excess::bigint, rows_max) OR more;
    END LOOP;
END
$$;

-- Delete this many bytes of the oldest records of a topic in a lane; returns whether there is more to delete.
CREATE OR REPLACE FUNCTION tidings.shrink(lane_ smallint, topic_ int, excess bigint, rows_max int)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    places tid[];
BEGIN
    SELECT array_agg(s.place) INTO places FROM (
        SELECT r.place, sum(r.bytes) OVER (ORDER BY r.released, r.part, r."offset") - r.bytes AS before FROM (
            SELECT l.* FROM tidings.spare(lane_, topic_ - 1) p CROSS JOIN LATERAL (
                SELECT l.ctid AS place, l.part, l."offset", l.released,
                    octet_length(l.message) + octet_length(l.id) + 64 AS bytes
                FROM tidings.log l WHERE l.topic = p.topic AND l.part = p.part AND l."offset" >= p.first
                    AND l."offset" < p.until
                ORDER BY l."offset" LIMIT rows_max
            ) l WHERE p.topic = topic_ ORDER BY l.released, l.part, l."offset" LIMIT rows_max
        ) r
    ) s WHERE s.before < excess;
    WITH dropped AS (
        DELETE FROM tidings.log l WHERE l.ctid = ANY (places)
        RETURNING l.part, l."offset", octet_length(l.message) + octet_length(l.id) + 64 AS bytes
    )
    UPDATE tidings.partition p SET first = d.last + 1, bytes = p.bytes - d.bytes
    FROM (SELECT part, max("offset") AS last, sum(bytes) AS bytes FROM dropped GROUP BY 1) d
    WHERE p.topic = topic_ AND p.part = d.part;
    RETURN coalesce(cardinality(places) = rows_max, false);
END
$$;

-- Delete schedules that finished before a given time, their ids and histories, in some pages of the table; returns how
-- many, and the number of pages. Locked ids are left for later. Pages are read one by one: an index on the finish time
-- would cost every release more.
CREATE OR REPLACE FUNCTION tidings.forget(before bigint, page bigint, pages_max int, OUT forgotten int, OUT pages bigint)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    low tid := format('(%s,0)', page)::tid;
    high tid := format('(%s,0)', page + pages_max)::tid;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT tidings.key(t.name, f.id) AS key, f.stream, f.due, f.arrival FROM tidings.finished f
        JOIN tidings.tenant t ON t.tenant = f.stream / 6
        WHERE f.ctid >= low AND f.ctid < high AND f.at <= before
    ), free AS MATERIALIZED (
        SELECT r.key, r.stream, r.due, r.arrival FROM old o
        JOIN tidings.registry r ON r.key = o.key AND r.stream = o.stream AND r.due = o.due AND r.arrival = o.arrival
        ORDER BY r.key FOR UPDATE OF r SKIP LOCKED
    ), finished AS (
        DELETE FROM tidings.finished f USING free WHERE f.stream = free.stream AND f.due = free.due AND f.arrival = free.arrival
    ), told AS (
        DELETE FROM tidings.history h USING free WHERE h.key = free.key
    ), gone AS (
        DELETE FROM tidings.registry r USING free WHERE r.key = free.key RETURNING 1
    )
    SELECT count(*) INTO forgotten FROM gone;
    pages := pg_relation_size('tidings.finished'::regclass) / current_setting('block_size')::int;
END
$$;
