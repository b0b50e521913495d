-- The bulk release of recurring schedules. Arrays have a value for each ordinal of the batch, -1 for other rows.

-- name: pending
-- The recurring schedules of the batch, in any order, with the columns that decide how they continue.
SELECT batch.ordinal, batch.arrival, batch.due, batch.partition, batch.size, batch.stream, standing.n, standing.id, standing.policy
FROM batch CROSS JOIN standing ON standing.arrival = batch.arrival WHERE batch.n = 0;

-- name: log
-- Append their pending occurrences to the log.
INSERT INTO log (position, due, released, generation, n, final, id, message, target)
SELECT positions.value, standing.due, ?2, standing.generation, standing.n, 0, standing.id, standing.message,
       CASE WHEN positions.value < 1 << 38 THEN standing.partition END
FROM carray(?1) AS positions
CROSS JOIN batch ON batch.ordinal = positions.rowid
CROSS JOIN standing ON standing.arrival = batch.arrival
WHERE positions.value >= 0;

-- name: note
-- Add a line to each history; the array has the hashes of ids, 0 for other rows.
INSERT INTO history (hash, entry, tenant, id, at, event, occurrence, due, reason, count)
SELECT hashes.value, (SELECT ifnull(max(entry), 0) + 1 FROM history WHERE hash = hashes.value), stream.tenant, standing.id,
       ?2, 'released', standing.n, standing.due, NULL, NULL
FROM carray(?1) AS hashes
CROSS JOIN batch ON batch.ordinal = hashes.rowid
CROSS JOIN standing ON standing.arrival = batch.arrival
CROSS JOIN stream ON stream.stream = batch.stream
WHERE hashes.value <> 0;

-- name: trim
-- Keep only the latest lines of a history.
DELETE FROM history WHERE hash = ?1 AND entry <= (SELECT max(entry) FROM history WHERE hash = ?1) - ?2;

-- name: go_on
-- Advance each to its next occurrence; the array has the due times.
WITH next AS MATERIALIZED (
    SELECT batch.arrival, dues.value AS due FROM carray(?1) AS dues CROSS JOIN batch ON batch.ordinal = dues.rowid
    WHERE dues.value >= 0
)
UPDATE standing SET n = standing.n + 1, due = next.due, released = standing.released + 1
FROM next WHERE standing.arrival = next.arrival;

-- name: wait_near
-- Put those that are due soon back onto the timeline; the array has their due times.
INSERT INTO near (stream, due, arrival, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT standing.stream, standing.due, standing.arrival, standing.partition, ?2, 0, standing.generation, 0,
       standing.accepted, ?3, standing.id, standing.labels, x''
FROM carray(?1) AS dues
CROSS JOIN batch ON batch.ordinal = dues.rowid
CROSS JOIN standing ON standing.arrival = batch.arrival
WHERE dues.value >= 0;

-- name: wait_far
-- Put those that are due later back onto the timeline; the array has their places.
INSERT INTO far (place, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT places.value, standing.due, standing.stream, standing.partition, ?2, 0, standing.generation, 0,
       standing.accepted, ?3, standing.id, standing.labels, x''
FROM carray(?1) AS places
CROSS JOIN batch ON batch.ordinal = places.rowid
CROSS JOIN standing ON standing.arrival = batch.arrival
WHERE places.value >= 0;
