-- Keeping: what is old enough is forgotten.

-- Drop the oldest records of some topics of a lane, while they are too old or a topic is too large for the lane.
-- Answers the last topic that was looked at (NULL: those were all) and whether there is more to drop.
CREATE OR REPLACE FUNCTION tidings.trim(
    lane_ smallint, token_ uuid, oldest bigint, bytes_max bigint, after int, rows_max int, OUT last int, OUT more boolean
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' SET enable_seqscan = off AS $$
DECLARE
    place record;
    gone record;
    excess bigint;
BEGIN
    PERFORM tidings.own(lane_, token_);
    more := false;
    FOR place IN
        SELECT p.topic, p.part, p.first FROM tidings.partition p
        WHERE p.lane = lane_ AND p.topic > after AND p.topic <= after + 256 AND p.first < p.next
    LOOP
        WITH oldest_rows AS (
            SELECT l."offset", l.released FROM tidings.log l
            WHERE l.topic = place.topic AND l.part = place.part AND l."offset" >= place.first
            ORDER BY l."offset" LIMIT rows_max
        ), dropped AS (
            DELETE FROM tidings.log l USING oldest_rows o
            WHERE l.topic = place.topic AND l.part = place.part AND l."offset" = o."offset" AND o.released < oldest
            RETURNING l."offset", octet_length(l.message) + octet_length(l.id) + 64 AS bytes
        )
        SELECT count(*) AS rows, max("offset") AS last, sum(bytes) AS bytes INTO gone FROM dropped;
        IF gone.rows > 0 THEN
            UPDATE tidings.partition p SET first = gone.last + 1, bytes = p.bytes - gone.bytes
            WHERE p.topic = place.topic AND p.part = place.part;
            more := more OR gone.rows = rows_max;
        END IF;
    END LOOP;
    FOR place IN
        SELECT p.topic, sum(p.bytes) - bytes_max AS excess FROM tidings.partition p
        WHERE p.lane = lane_ AND p.topic > after AND p.topic <= after + 256 GROUP BY 1 HAVING sum(p.bytes) > bytes_max
    LOOP
        WITH oldest_rows AS (
            SELECT l.part, l."offset", l.released, octet_length(l.message) + octet_length(l.id) + 64 AS bytes
            FROM tidings.partition p CROSS JOIN LATERAL (
                SELECT * FROM tidings.log l WHERE l.topic = p.topic AND l.part = p.part AND l."offset" >= p.first
                ORDER BY l."offset" LIMIT rows_max
            ) l WHERE p.lane = lane_ AND p.topic = place.topic
        ), summed AS (
            SELECT part, "offset", bytes, sum(bytes) OVER (ORDER BY released, part, "offset") - bytes AS before
            FROM oldest_rows ORDER BY released, part, "offset" LIMIT rows_max
        ), dropped AS (
            DELETE FROM tidings.log l USING summed s
            WHERE l.topic = place.topic AND l.part = s.part AND l."offset" = s."offset" AND s.before < place.excess
            RETURNING l.part, l."offset", s.bytes
        ), moved AS (
            UPDATE tidings.partition p SET first = d.last + 1, bytes = p.bytes - d.bytes
            FROM (SELECT part, max("offset") AS last, sum(bytes) AS bytes, count(*) AS rows FROM dropped GROUP BY 1) d
            WHERE p.topic = place.topic AND p.part = d.part RETURNING d.rows
        )
        SELECT coalesce(sum(rows), 0) AS rows INTO gone FROM moved;
        more := more OR gone.rows = rows_max;
    END LOOP;
    SELECT after + 256 INTO last WHERE EXISTS (SELECT 1 FROM tidings.topic t WHERE t.topic > after + 256);
END
$$;

-- Forget schedules that finished before a moment, their ids and histories, in some pages of the table; answers how many,
-- and how many pages it has. Ids that somebody is changing are left for later. Pages are looked at one after the other:
-- an index on the time of the end would cost every release more than this does.
CREATE OR REPLACE FUNCTION tidings.forget(before bigint, page bigint, pages_max int, OUT forgotten int, OUT pages bigint)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' SET enable_seqscan = off AS $$
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
