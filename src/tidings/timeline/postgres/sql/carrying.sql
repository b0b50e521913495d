-- What is carried into another store or comes from one, each kind in the order of its table.

-- name: positions
-- Where intake stands.
SELECT topic, partition, next FROM tidings.source WHERE (topic, partition) > (%s, %s) ORDER BY topic, partition LIMIT %s;

-- name: keys
-- API keys.
SELECT name, tenant, digest, admin, created FROM tidings.api_key WHERE name > %s ORDER BY name LIMIT %s;

-- name: receipts
-- Answers kept for idempotency keys.
SELECT tenant, key, body, outcomes, at FROM tidings.receipt WHERE (tenant, key) > (%s, %s) ORDER BY tenant, key LIMIT %s;

-- name: document_sizes
-- How large the next documents are.
SELECT octet_length(body) FROM tidings.document WHERE key > %s::uuid ORDER BY key LIMIT %s;

-- name: documents
-- What is in the cabinet.
SELECT uuid_send(key), tenant, kind, name, body, version, tags, "order", until FROM tidings.document
WHERE key > %s::uuid ORDER BY key LIMIT %s;

-- name: sizes
-- How large the next messages of a stage are: looked at first, so that a load never holds many large ones.
SELECT octet_length(message) FROM tidings.timeline
WHERE (lane, slot, due, arrival) > (%s, %s, %s, %s) AND n > 0 ORDER BY lane, slot, due, arrival LIMIT %s;

-- name: one_shots
-- Pending one-shots.
SELECT slot, arrival, due, lane, stream, topic, part, generation, n, accepted, uuid_send(content), id, labels, message,
    deadline, reason
FROM tidings.timeline
WHERE (lane, slot, due, arrival) > (%s, %s, %s, %s) AND n > 0 ORDER BY lane, slot, due, arrival LIMIT %s;

-- name: standing_sizes
-- How large the next messages of standing schedules are.
SELECT octet_length(message) FROM tidings.standing WHERE arrival > %s ORDER BY arrival LIMIT %s;

-- name: all_standing
-- Recurring and paused schedules.
SELECT arrival, due, lane, stream, topic, part, generation, n, accepted, uuid_send(content), id, labels, message, state,
    fires, released, terms
FROM tidings.standing WHERE arrival > %s ORDER BY arrival LIMIT %s;

-- name: all_fired
-- Records fired by hand that have not left, with their schedules.
SELECT f.schedule, t.due, t.n FROM tidings.fired f
JOIN tidings.standing s ON s.arrival = f.schedule
JOIN tidings.timeline t ON t.lane = s.lane AND t.slot = s.stream %% 1536 AND t.due = f.due AND t.arrival = f.arrival
WHERE f.schedule = ANY (%s) ORDER BY f.arrival;

-- name: all_finished
-- The memory of finished schedules.
SELECT f.arrival, f.due, f.lane, f.stream, f.topic, f.part, f.generation, f.n, f.accepted, uuid_send(f.content), f.id,
    f.labels, f.state, f.reason, f.at, NULL::bigint, NULL::boolean, NULL::text
FROM tidings.finished f WHERE (stream, due, arrival) > (%s, %s, %s) ORDER BY stream, due, arrival LIMIT %s;

-- name: histories
-- What was written down of some ids.
SELECT uuid_send(key), at, event, occurrence, due, reason, count FROM tidings.history
WHERE key = ANY (%s) ORDER BY key, entry;

-- name: counts
-- How much there is of each kind: positions, keys, receipts, paused, finished, rows of the timeline.
SELECT (SELECT count(*) FROM tidings.source), (SELECT count(*) FROM tidings.api_key), (SELECT count(*) FROM tidings.receipt),
    (SELECT count(*) FROM tidings.document), (SELECT count(*) FROM tidings.standing WHERE state = 'paused'), (SELECT count(*) FROM tidings.finished),
    (SELECT count(*) FROM tidings.timeline WHERE n >= 0);

-- name: pointers
-- The terms of standing schedules that pend, to tell recurring ones from one-shots.
SELECT terms FROM tidings.standing WHERE state = 'pending';

-- name: rest
-- The records in the outboxes, those of them that are kept back, and those on the log.
SELECT (SELECT count(*) FROM tidings.outbox), (SELECT count(*) FROM tidings.held),
    (SELECT coalesce(sum(next - first), 0)::bigint FROM tidings.partition);

-- name: behind
-- Groups that have not read all of a topic: how many records each has before it. Workers read the topics of
-- notifications, whether one has begun to or not.
SELECT n.name, t.name, g.name, sum(p.next - greatest(p.first, coalesce(c.next, p.first)))::bigint
FROM (
    SELECT DISTINCT topic, name FROM tidings.committed
    UNION SELECT topic, %s::text FROM tidings.topic WHERE name = ANY(%s)
) g
JOIN tidings.topic t ON t.topic = g.topic
JOIN tidings.tenant n ON n.tenant = t.tenant
JOIN tidings.partition p ON p.topic = g.topic
LEFT JOIN tidings.committed c ON c.topic = p.topic AND c.part = p.part AND c.name = g.name
GROUP BY 1, 2, 3 HAVING sum(p.next - greatest(p.first, coalesce(c.next, p.first))) > 0 ORDER BY 1, 2, 3;

-- name: seize
-- Take every lane that nobody owns, and renew those that are ours. We are no node, so no share of them is given back.
-- Of a store that has moved all are taken at once: whoever else has them carries it too, and the target lets one go on.
WITH us AS (
    INSERT INTO tidings.copier (node, until, lease) VALUES (%(us)s, tidings.now() + %(lease)s, %(lease)s)
    ON CONFLICT (node) DO UPDATE SET until = excluded.until, lease = excluded.lease
), free AS MATERIALIZED (
    SELECT lane, token FROM tidings.free_lanes(tidings.now())
    UNION SELECT lane, token FROM tidings.lane WHERE node = %(us)s OR EXISTS (SELECT 1 FROM tidings.moved)
)
UPDATE tidings.lane l SET
    token = CASE WHEN l.node = %(us)s THEN l.token ELSE gen_random_uuid() END, node = %(us)s, since = tidings.now()
FROM free f WHERE f.lane = l.lane AND f.token IS NOT DISTINCT FROM l.token RETURNING 1;

-- name: let_go
-- Give them back.
WITH gone AS (DELETE FROM tidings.copier WHERE node = %(us)s OR until < tidings.now() - 60000000)
UPDATE tidings.lane SET token = NULL, node = NULL WHERE node = %(us)s;

-- name: still_ours
-- Lock the lanes that we have, in the order in which everybody does: where their outboxes end.
SELECT outbox_next FROM tidings.lane WHERE node = %s ORDER BY lane FOR UPDATE;

-- name: fence
-- Refuse every write, or none.
SELECT tidings.fence(%s);

-- name: moved
-- Where this store has moved to.
SELECT move FROM tidings.moved;

-- name: stay
-- It has not moved.
DELETE FROM tidings.moved;

-- name: mark
-- It has moved.
INSERT INTO tidings.moved (move) VALUES (%s) ON CONFLICT (one) DO UPDATE SET move = excluded.move;

-- name: progress
-- How far a passage has come.
SELECT progress FROM tidings.carried WHERE passage = %s;

-- name: passages
-- All that came from other stores.
SELECT progress FROM tidings.carried;

-- name: begin_progress
-- A passage begins.
INSERT INTO tidings.carried VALUES (%s, %s) ON CONFLICT DO NOTHING;

-- name: lock_progress
-- How far it has come, for whoever takes it further.
SELECT progress FROM tidings.carried WHERE passage = %s FOR UPDATE;

-- name: keep_progress
-- It has come further.
UPDATE tidings.carried SET progress = %s WHERE passage = %s;

-- name: bring_receipts
-- Receipts that are new, by tenant and key.
INSERT INTO tidings.receipt SELECT * FROM unnest(%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING tenant, key;

-- name: bodies
-- What is kept for idempotency keys.
SELECT r.tenant, r.key, r.body FROM unnest(%s, %s) AS k(tenant, key)
JOIN tidings.receipt r ON r.tenant = k.tenant AND r.key = k.key;

-- name: bring_position
-- Forward only: what was read further here is not read again. Answers where it stands if that is not moved.
WITH moved AS (
    INSERT INTO tidings.source AS s VALUES (%(topic)s, %(partition)s, %(next)s)
    ON CONFLICT (topic, partition) DO UPDATE SET next = excluded.next WHERE s.next < excluded.next RETURNING 1
)
SELECT next FROM tidings.source WHERE topic = %(topic)s AND partition = %(partition)s AND NOT EXISTS (SELECT 1 FROM moved);

-- name: bring_key
-- An API key that is new by its name and its digest.
INSERT INTO tidings.api_key VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1;

-- name: key
-- What there is under a name or a digest.
SELECT name, digest FROM tidings.api_key WHERE name = %s OR digest = %s;
