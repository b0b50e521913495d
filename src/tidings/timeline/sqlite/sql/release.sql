-- The release: due rows move from `near` to `log` and `finished`, in one transaction, without passing through Python.

-- name: select
-- Select the first rows of a stream in a span of due times for this batch. A pointer has its message in `standing`.
INSERT INTO batch (stream, due, arrival, partition, deadline, n, size)
SELECT stream, due, arrival, partition, deadline, n,
       CASE n WHEN 0 THEN (SELECT length(message) FROM standing WHERE standing.arrival = near.arrival) ELSE length(message) END
       + length(id) + 64
FROM near
WHERE stream = ?1 AND due > ?2 AND due <= ?3 ORDER BY due, arrival LIMIT ?4 OFFSET ?5;

-- name: count
-- How many rows of a stream are due in a span, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM near WHERE stream = ?1 AND due > ?2 AND due <= ?3 LIMIT ?4);

-- name: survey
-- The batch as columns, in order of ordinal: whether a row is released, its number, partition, due time, arrival and size.
SELECT group_concat(n > 0 AND deadline >= ?1), group_concat(n), group_concat(partition), group_concat(due),
       group_concat(arrival), group_concat(size)
FROM (SELECT n, deadline, partition, due, arrival, size FROM batch ORDER BY ordinal);

-- name: log
-- Append the rows that are released to topics of the log. The array has a position for each ordinal, -1 for a row that
-- is not released, and less than 1 << 38 for one that goes to the outbox.
INSERT INTO log (position, due, released, generation, n, final, id, message)
SELECT positions.value, near.due, ?2, near.generation, near.n, 1, near.id, near.message
FROM carray(?1) AS positions
JOIN batch ON batch.ordinal = positions.rowid
JOIN near ON near.stream = batch.stream AND near.due = batch.due AND near.arrival = batch.arrival
WHERE positions.value >= 1 << 38;

-- name: outgoing
-- The rows that are released to Kafka, in the order of their offsets: the columns of `writer.Member`.
SELECT near.partition, near.id, near.generation, near.n, near.due, near.arrival,
       CASE near.reason WHEN 1 THEN near.deadline END, near.message
FROM batch
CROSS JOIN stream ON stream.stream = batch.stream
CROSS JOIN near ON near.stream = batch.stream AND near.due = batch.due AND near.arrival = batch.arrival
WHERE stream.to_kafka AND batch.n > 0 AND batch.deadline >= ?1 ORDER BY batch.ordinal;

-- name: pack
-- Put a packed row into the outbox.
INSERT INTO packed (first, count, bytes, released, records) VALUES (?, ?, ?, ?, ?);

-- name: finish
-- Store them as finished.
INSERT INTO finished (due, arrival, stream, partition, state, reason, at, position, generation, n, accepted, content, id, labels)
SELECT near.due, near.arrival, near.stream, near.partition, 'released', NULL, ?2, positions.value,
       near.generation, near.n, near.accepted, near.content, near.id, near.labels
FROM carray(?1) AS positions
JOIN batch ON batch.ordinal = positions.rowid
JOIN near ON near.stream = batch.stream AND near.due = batch.due AND near.arrival = batch.arrival
WHERE positions.value >= 0;

-- name: advance
-- Advance the end of a partition; returns the old end.
UPDATE partition SET next = next + ?2, bytes = bytes + ?3 WHERE partition = ?1 RETURNING next - ?2;

-- name: miss
-- Store the rows that are too late as missed.
INSERT INTO finished (due, arrival, stream, partition, state, reason, at, position, generation, n, accepted, content, id, labels)
SELECT near.due, near.arrival, near.stream, near.partition, 'missed',
       CASE near.reason WHEN 1 THEN 'expired' WHEN 2 THEN 'late_skipped' ELSE 'late_max' END, ?1, NULL,
       near.generation, near.n, near.accepted, near.content, near.id, near.labels
FROM batch JOIN near ON near.stream = batch.stream AND near.due = batch.due AND near.arrival = batch.arrival
WHERE batch.n > 0 AND batch.deadline < ?1;

-- name: missed_by_reason
-- How many rows are too late, by reason.
SELECT CASE near.reason WHEN 1 THEN 'expired' WHEN 2 THEN 'late_skipped' ELSE 'late_max' END, count(*)
FROM batch JOIN near ON near.stream = batch.stream AND near.due = batch.due AND near.arrival = batch.arrival
WHERE batch.n > 0 AND batch.deadline < ?1 GROUP BY 1;

-- name: leave
-- Take a span of a stream off the timeline.
DELETE FROM near WHERE stream = ?1 AND due > ?2 AND (due, arrival) <= (?3, ?4);

-- name: fired
-- Records fired by hand, in order.
SELECT near.arrival, near.stream, near.due, near.partition, near.deadline, near.reason, near.generation, near.n,
       near.accepted, near.content, near.id, near.labels, near.message
FROM batch JOIN near ON near.stream = batch.stream AND near.due = batch.due AND near.arrival = batch.arrival
WHERE batch.n < 0 ORDER BY near.due, near.arrival;

-- name: damaged
-- The damaged row that cannot be released.
SELECT arrival, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM near WHERE stream = ? AND due = ? AND arrival = ?;
