-- Single rows, for changes and recurring schedules.

-- name: near_one
-- Insert one row into `near`.
INSERT INTO near (stream, due, arrival, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: recurring_one
-- A recurring or paused schedule.
INSERT INTO standing (arrival, origin, stream, partition, state, due, n, fires, released, generation, accepted, policy, content, id, labels, message)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: finished_one
-- Store a finished schedule.
INSERT INTO finished (due, arrival, stream, partition, state, reason, at, position, last_due, generation, n, accepted, content, id, labels)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: history_one
-- The next line of a schedule's history.
INSERT INTO history (hash, entry, tenant, id, at, event, occurrence, due, reason, count)
VALUES (?1, (SELECT ifnull(max(entry), 0) + 1 FROM history WHERE hash = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
RETURNING entry;

-- name: history_trim
-- Keep the latest lines only.
DELETE FROM history WHERE hash = ? AND entry <= ?;

-- name: log_one
-- Append one record to the log.
INSERT INTO log (position, due, released, generation, n, final, id, message, target) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_offset
-- Take the next offset of a partition.
UPDATE partition SET next = next + 1, bytes = bytes + ?2 WHERE partition = ?1 RETURNING next - 1;
