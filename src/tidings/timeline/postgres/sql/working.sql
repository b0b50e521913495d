-- The schedules that a transaction works on: read under locks, and written back in bulk.

-- name: lock
-- Every change of an id locks it here first, in the order of keys.
SELECT uuid_send(key), due, arrival, stream FROM tidings.registry WHERE key = ANY (%s) ORDER BY key FOR UPDATE;

-- name: lock_free
-- The same, without ids that another transaction has locked.
SELECT uuid_send(key), due, arrival, stream FROM tidings.registry WHERE key = ANY (%s) ORDER BY key FOR UPDATE SKIP LOCKED;

-- name: registered
-- The registry entries of ids, for readers: no locks.
SELECT uuid_send(key), due, arrival, stream FROM tidings.registry WHERE key = ANY (%s);

-- name: timeline
-- Pending one-shots by their keys; waits for a release that has locked one of them.
SELECT t.arrival, t.due, t.lane, t.stream, t.topic, t.part, t.generation, t.n, t.accepted, uuid_send(t.content), t.id,
    t.labels, t.message, t.deadline, t.reason
FROM unnest(%s, %s, %s, %s) AS p(lane, slot, due, arrival)
JOIN tidings.timeline t ON t.lane = p.lane AND t.slot = p.slot AND t.due = p.due AND t.arrival = p.arrival
WHERE t.n > 0
FOR UPDATE OF t;

-- name: timeline_seen
-- The same for readers.
SELECT t.arrival, t.due, t.lane, t.stream, t.topic, t.part, t.generation, t.n, t.accepted, uuid_send(t.content), t.id,
    t.labels, t.message, t.deadline, t.reason
FROM unnest(%s, %s, %s, %s) AS p(lane, slot, due, arrival)
JOIN tidings.timeline t ON t.lane = p.lane AND t.slot = p.slot AND t.due = p.due AND t.arrival = p.arrival
WHERE t.n > 0;

-- name: recurring
-- Recurring and paused schedules by arrival.
SELECT arrival, due, lane, stream, topic, part, generation, n, accepted, uuid_send(content), id, labels, message, state,
    fires, released, terms
FROM tidings.standing WHERE arrival = ANY (%s);

-- name: finished
-- Finished schedules by their keys, and whether they are on their way to Kafka.
SELECT f.arrival, f.due, f.lane, f.stream, f.topic, f.part, f.generation, f.n, f.accepted, uuid_send(f.content), f.id,
    f.labels, f.state, f.reason, f.at, f.position, f.position >= l.outbox_first, h.reason
FROM unnest(%s, %s, %s) AS p(stream, due, arrival)
JOIN tidings.finished f ON f.stream = p.stream AND f.due = p.due AND f.arrival = p.arrival
LEFT JOIN tidings.lane l ON f.part < 0 AND l.lane = f.lane
LEFT JOIN tidings.held h ON f.part < 0 AND h.lane = f.lane AND h."offset" = f.position;

-- name: in_flight
-- Records of some ids in the outbox that the store does not know to be on Kafka, and whether they are held back.
SELECT o.lane, o.id, t.tenant, o."offset", o.generation, o.n, h.lane IS NOT NULL
FROM unnest(%s, %s) AS p(lane, id)
JOIN tidings.outbox o ON o.lane = p.lane AND o.id = p.id
JOIN tidings.topic t ON t.topic = o.topic
JOIN tidings.lane l ON l.lane = o.lane
LEFT JOIN tidings.held h ON h.lane = o.lane AND h."offset" = o."offset"
WHERE o."offset" >= l.outbox_first OR h.lane IS NOT NULL;

-- name: register
-- Add new ids; fewer rows than ids: another transaction has added one of them.
INSERT INTO tidings.registry (key, due, arrival, stream)
SELECT * FROM unnest(%s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1;

-- name: move
-- Update the registry entries of ids.
UPDATE tidings.registry r SET due = p.due, arrival = p.arrival, stream = p.stream
FROM unnest(%s, %s, %s, %s) AS p(key, due, arrival, stream) WHERE r.key = p.key;

-- name: leave
-- Take rows off the timeline.
DELETE FROM tidings.timeline t USING unnest(%s, %s, %s, %s) AS p(lane, slot, due, arrival)
WHERE t.lane = p.lane AND t.slot = p.slot AND t.due = p.due AND t.arrival = p.arrival;

-- name: wait
-- Put rows onto the timeline; their slots are in use from now on.
WITH used AS (INSERT INTO tidings.slot SELECT * FROM unnest(%s) AS slot ORDER BY slot ON CONFLICT DO NOTHING)
INSERT INTO tidings.timeline (due, arrival, accepted, content, stream, topic, generation, n, lane, slot, part, reason, id,
    message, deadline, labels)
SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: drop_recurring
-- Delete recurring or paused schedules.
DELETE FROM tidings.standing WHERE arrival = ANY (%s);

-- name: stand
-- Recurring and paused schedules, new or changed; fewer rows than schedules: an arrival number belongs to another one.
INSERT INTO tidings.standing AS s (arrival, due, accepted, content, stream, topic, generation, n, fires, released, lane, part,
    state, id, message, terms, labels)
SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (arrival) DO UPDATE SET due = excluded.due, n = excluded.n, fires = excluded.fires,
    released = excluded.released, state = excluded.state, terms = excluded.terms
WHERE s.id = excluded.id AND s.stream = excluded.stream RETURNING 1;

-- name: forget
-- Delete finished schedules whose ids are reused.
DELETE FROM tidings.finished f USING unnest(%s, %s, %s) AS p(stream, due, arrival)
WHERE f.stream = p.stream AND f.due = p.due AND f.arrival = p.arrival;

-- name: finish
-- Store finished schedules.
INSERT INTO tidings.finished (due, arrival, at, accepted, content, stream, topic, generation, n, lane, part, state, reason,
    id, position, labels)
SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: note
-- Add lines to histories, in order.
INSERT INTO tidings.history (key, at, event, occurrence, due, reason, count)
SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s);

-- name: trim_notes
-- Keep only the latest lines of histories.
DELETE FROM tidings.history h USING unnest(%s) AS k(key)
WHERE h.key = k.key AND h.entry < (
    SELECT min(entry) FROM (SELECT entry FROM tidings.history l WHERE l.key = k.key ORDER BY entry DESC LIMIT 100) AS latest
);

-- name: fire
-- Records fired by hand, and their schedules.
INSERT INTO tidings.fired (schedule, due, arrival) SELECT * FROM unnest(%s, %s, %s);

-- name: drop_fired
-- Delete records fired by hand that are not released, together with their schedules.
DELETE FROM tidings.fired WHERE schedule = ANY (%s) RETURNING schedule, due, arrival;

-- name: extras
-- Rows of recurring schedules on the timeline by their keys: pointers, and records fired by hand.
SELECT t.arrival, t.due, t.lane, t.stream, t.topic, t.part, t.generation, t.n, t.accepted, uuid_send(t.content), t.id,
    t.labels, t.message, t.deadline, t.reason
FROM unnest(%s, %s, %s, %s) AS p(lane, slot, due, arrival)
JOIN tidings.timeline t ON t.lane = p.lane AND t.slot = p.slot AND t.due = p.due AND t.arrival = p.arrival
WHERE t.n <= 0;

-- name: left_fired
-- Delete records fired by hand that were released.
DELETE FROM tidings.fired f USING unnest(%s, %s) AS p(schedule, arrival)
WHERE f.schedule = p.schedule AND f.arrival = p.arrival;
