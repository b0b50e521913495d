-- Statements of a lane besides its release: the outbox, and recurring schedules.

-- name: own
-- The first statement of every write: locks the lane and checks the fencing token.
SELECT tidings.own(%s, %s);

-- name: confirm
-- Whether we own a lane.
SELECT 1 FROM tidings.lane WHERE lane = %s AND token = %s;

-- name: outgoing
-- Records of an outbox in order, without those that are held back, up to a size; at least one.
SELECT "offset", topic, id, generation, n, due, released, message, final, expires FROM (
    SELECT o.*, sum(octet_length(message)) OVER (ORDER BY "offset") - octet_length(message) AS before FROM (
        SELECT * FROM tidings.outbox o WHERE lane = %s AND "offset" >= %s
          AND NOT EXISTS (SELECT 1 FROM tidings.held h WHERE h.lane = o.lane AND h."offset" = o."offset")
        ORDER BY "offset" LIMIT %s
    ) o
) o WHERE before < 16777216 ORDER BY "offset";

-- name: held_topics
-- The topics that have records held back: one step for each, however many records there are.
WITH RECURSIVE each AS (
    SELECT min(topic) AS topic, lane FROM tidings.held WHERE lane = %s GROUP BY lane
    UNION ALL
    SELECT (SELECT min(h.topic) FROM tidings.held h WHERE h.lane = e.lane AND h.topic > e.topic), e.lane
    FROM each e WHERE e.topic IS NOT NULL
)
SELECT DISTINCT t.name FROM each e JOIN tidings.topic t ON t.topic = e.topic;

-- name: held
-- Records of a topic that are held back, of all tenants, up to a size; at least one.
SELECT "offset", topic, id, generation, n, due, released, message, final, expires FROM (
    SELECT o.*, sum(octet_length(message)) OVER (ORDER BY "offset") - octet_length(message) AS before FROM (
        SELECT o.* FROM tidings.topic t
        CROSS JOIN LATERAL (
            SELECT * FROM tidings.held h WHERE h.lane = %s AND h.topic = t.topic ORDER BY h."offset" LIMIT %s
        ) h
        JOIN tidings.outbox o ON o.lane = h.lane AND o."offset" = h."offset"
        WHERE t.name = %s ORDER BY o."offset" LIMIT %s
    ) o
) o WHERE before < 16777216 ORDER BY "offset";

-- name: in_outbox
-- Offsets and sizes of the records in an outbox from an offset on, without those that are held back.
SELECT o."offset", octet_length(o.message) + octet_length(o.id) + 64 FROM tidings.outbox o
WHERE o.lane = %s AND o."offset" >= %s
  AND NOT EXISTS (SELECT 1 FROM tidings.held h WHERE h.lane = o.lane AND h."offset" = o."offset")
ORDER BY o."offset";

-- name: span
-- The first stored offset, and the next offset to be assigned.
SELECT outbox_first, outbox_next FROM tidings.lane WHERE lane = %s;

-- name: settle
-- Delete a slice of the records that are on Kafka.
WITH mine AS (
    UPDATE tidings.lane SET outbox_first = greatest(outbox_first, least(%s, outbox_next, outbox_first + 5000))
    WHERE lane = %s AND token = %s RETURNING lane, outbox_first, outbox_next
), gone AS (
    DELETE FROM tidings.outbox o USING mine WHERE o.lane = mine.lane AND o."offset" < mine.outbox_first
      AND NOT EXISTS (SELECT 1 FROM tidings.held h WHERE h.lane = o.lane AND h."offset" = o."offset")
)
SELECT outbox_first, outbox_next FROM mine;

-- name: hold
-- Hold records back.
INSERT INTO tidings.held (lane, "offset", topic, reason)
SELECT o.lane, o."offset", o.topic, %s FROM tidings.outbox o WHERE o.lane = %s AND o."offset" = ANY (%s)
ON CONFLICT (lane, "offset") DO UPDATE SET reason = excluded.reason;

-- name: free
-- Delete records that were held back.
WITH freed AS (DELETE FROM tidings.held WHERE lane = %s AND "offset" = ANY (%s) RETURNING lane, "offset")
DELETE FROM tidings.outbox o USING freed f WHERE o.lane = f.lane AND o."offset" = f."offset";

-- name: miss
-- Count the records at some offsets of the outbox as missed.
UPDATE tidings.finished SET state = 1, reason = %s, at = %s, position = NULL
WHERE lane = %s AND position = ANY (%s) AND part < 0;

-- name: expired
-- Delete records that are not held back.
DELETE FROM tidings.outbox o WHERE o.lane = %s AND o."offset" = ANY (%s);

-- name: left
-- Store when records left that had waited in the outbox.
UPDATE tidings.finished SET at = %s WHERE lane = %s AND position = ANY (%s) AND part < 0;

-- name: advance
-- Advance the ends of partitions; returns the old ends. Subscribers of these topics are notified.
WITH moved AS (
    UPDATE tidings.partition p SET next = p.next + c.rows, bytes = p.bytes + c.bytes
    FROM unnest(%s, %s, %s, %s) AS c(topic, part, rows, bytes)
    WHERE p.topic = c.topic AND p.part = c.part RETURNING p.topic, p.part, p.next - c.rows AS first
), told AS MATERIALIZED (
    SELECT tidings.tell(%s, (SELECT array_agg(DISTINCT topic) FROM moved))
)
SELECT m.topic, m.part, m.first FROM moved m CROSS JOIN told;

-- name: hand
-- Advance the end of an outbox.
UPDATE tidings.lane SET outbox_next = outbox_next + %s WHERE lane = %s;

-- name: log
-- Append records to the log.
INSERT INTO tidings.log (topic, part, final, "offset", due, released, generation, n, id, message)
SELECT topic, part, final <> 0, "offset", due, %s, generation, n, id, message
FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s, %s) AS r(topic, part, final, "offset", due, generation, n, id, message);

-- name: out
-- Put records into the outbox.
INSERT INTO tidings.outbox (lane, released, topic, final, "offset", due, generation, n, id, message)
SELECT %s, %s, topic, final <> 0, "offset", due, generation, n, id, message
FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s) AS r(topic, final, "offset", due, generation, n, id, message);
