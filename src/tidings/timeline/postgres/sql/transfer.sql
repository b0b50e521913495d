-- Reading and writing everything for a transfer. Each stage is read in the order of its place, its first columns; `size`
-- is what a row adds to a chunk. The program adds the limits.

-- name: positions
-- Positions in Kafka's request topics.
SELECT topic, partition, next, 0 AS size FROM tidings.source
WHERE (topic, partition) > (%s, %s) ORDER BY topic, partition;

-- name: keys
-- API keys.
SELECT name, tenant, digest, admin, created, 0 AS size FROM tidings.api_key WHERE name > %s ORDER BY name;

-- name: receipts
-- Answers stored for idempotency keys.
SELECT tenant, key, body, outcomes, at, octet_length(outcomes) AS size FROM tidings.receipt
WHERE (tenant, key) > (%s, %s) ORDER BY tenant, key;

-- name: calendars
-- Calendars of days off.
SELECT tenant, name, days, changed, octet_length(days) AS size FROM tidings.calendar
WHERE (tenant, name) > (%s, %s) AND NOT dropped ORDER BY tenant, name;

-- name: zones
-- Time zone rules in use.
SELECT name, digest, version, content, octet_length(content) AS size FROM tidings.zone
WHERE (name, digest) > (%s, %s) ORDER BY name, digest;

-- name: one_shots
-- Pending one-shots.
SELECT lane, slot, due, arrival, arrival AS arrival_, due AS due_, lane AS lane_, stream, topic, part, generation, n,
    accepted, uuid_send(content), id, labels, message, deadline, reason, octet_length(message) AS size
FROM tidings.timeline WHERE (lane, slot, due, arrival) > (%s, %s, %s, %s) AND n > 0 ORDER BY lane, slot, due, arrival;

-- name: standing
-- Recurring and paused schedules, with their records fired by hand that are not released yet.
SELECT arrival, due, lane, stream, topic, part, generation, n, accepted, uuid_send(content), id, labels, message, state,
    fires, released, terms, (
        SELECT coalesce(json_agg(json_build_array(t.due, t.n) ORDER BY f.arrival), '[]') FROM tidings.fired f
        JOIN tidings.timeline t ON t.lane = s.lane AND t.slot = s.stream %% 1536 AND t.due = f.due AND t.arrival = f.arrival
        WHERE f.schedule = s.arrival
    ) AS extras, octet_length(message) AS size
FROM tidings.standing s WHERE arrival > %s ORDER BY arrival;

-- name: finished
-- Finished schedules that are remembered.
SELECT stream, due, arrival, arrival AS arrival_, due AS due_, lane, stream AS stream_, topic, part, generation, n,
    accepted, uuid_send(content), id, labels, state, reason, at, NULL::bigint, NULL::boolean, NULL::text, 0 AS size
FROM tidings.finished WHERE (stream, due, arrival) > (%s, %s, %s) ORDER BY stream, due, arrival;

-- name: histories
-- The histories of some ids.
SELECT uuid_send(key), at, event, occurrence, due, reason, count FROM tidings.history
WHERE key = ANY (%s) ORDER BY key, entry;

-- name: counts
-- Totals: positions, keys, answers, paused, finished, pending, rows of notifications.
SELECT (SELECT count(*) FROM tidings.source), (SELECT count(*) FROM tidings.api_key), (SELECT count(*) FROM tidings.receipt),
    (SELECT count(*) FROM tidings.standing WHERE state = 'paused'),
    (SELECT count(*) FROM tidings.finished), (SELECT count(*) FROM tidings.timeline WHERE n >= 0),
    (SELECT count(*) FROM tidings.app_user) + (SELECT count(*) FROM tidings.notification)
    + (SELECT count(*) FROM tidings.delivery) + (SELECT count(*) FROM tidings.suppression)
    + (SELECT count(*) FROM tidings.dedupe_key) + (SELECT count(*) FROM tidings.template)
    + (SELECT count(*) FROM tidings.template_version) + (SELECT count(*) FROM tidings.inbox)
    + (SELECT count(*) FROM tidings.provider_message) + (SELECT count(*) FROM tidings.rate_limit)
    + (SELECT count(*) FROM tidings.circuit_breaker);

-- name: pending_terms
-- The terms of pending schedules with a rule, to tell recurring ones from one-shots.
SELECT terms FROM tidings.standing WHERE state = 'pending';

-- name: remainder
-- Totals: records in the outboxes, those of them that are held back, records on the log.
SELECT (SELECT count(*) FROM tidings.outbox), (SELECT count(*) FROM tidings.held),
    (SELECT coalesce(sum(next - first), 0)::bigint FROM tidings.partition);

-- name: behind
-- Consumer groups that have not read all records of a topic, and how many. Delivery workers are a group of every topic
-- of notifications, even before one has started.
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

-- name: arrival
-- The last block of arrival numbers that was given out.
SELECT last_value FROM tidings.arrival_block;

-- name: acquire
-- Take every lane without an owner, and renew those that we own. We are not a node, so we never give back a share.
-- If the store has moved, take all lanes at once: another owner can only be another copy, and the target lets only one
-- of them continue.
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

-- name: release
-- Give the lanes back.
WITH gone AS (DELETE FROM tidings.copier WHERE node = %(us)s OR until < tidings.now() - 60000000)
UPDATE tidings.lane SET token = NULL, node = NULL WHERE node = %(us)s;

-- name: lock_lanes
-- Lock the lanes that we own, in the order in which everybody locks them; returns the ends of their outboxes.
SELECT outbox_next FROM tidings.lane WHERE node = %s ORDER BY lane FOR UPDATE;

-- name: fence
-- Reject every write, or none.
SELECT tidings.fence(%s);

-- name: move
-- The mark of a store that has moved.
SELECT move FROM tidings.moved;

-- name: unmark
-- Remove the mark.
DELETE FROM tidings.moved;

-- name: mark
-- Write the mark.
INSERT INTO tidings.moved (move) VALUES (%s) ON CONFLICT (one) DO UPDATE SET move = excluded.move;

-- name: transfers
-- The progress of every transfer into this store.
SELECT progress FROM tidings.carried;

-- name: begin_progress
-- Record a new transfer.
INSERT INTO tidings.carried VALUES (%s, %s) ON CONFLICT DO NOTHING;

-- name: progress
-- The progress of a transfer, locked until it is advanced.
SELECT progress FROM tidings.carried WHERE passage = %s FOR UPDATE;

-- name: keep_progress
-- Advance a transfer.
UPDATE tidings.carried SET progress = %s WHERE passage = %s;

-- name: put_PositionItem
-- Forward only: what the target has read already is not read again.
INSERT INTO tidings.source AS s VALUES (%(topic)s, %(partition)s, %(next)s)
ON CONFLICT (topic, partition) DO UPDATE SET next = excluded.next WHERE s.next < excluded.next RETURNING 1;

-- name: same_PositionItem
-- Whether the target is at the same position.
SELECT 1 FROM tidings.source WHERE topic = %(topic)s AND partition = %(partition)s AND next = %(next)s;

-- name: put_ApiKey
-- Add an API key unless its name or its digest is taken.
INSERT INTO tidings.api_key VALUES (%(name)s, %(tenant)s, %(digest)s, %(admin)s, %(created)s)
ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_ApiKey
-- Whether the target has this key.
SELECT 1 FROM tidings.api_key WHERE name = %(name)s AND digest = %(digest)s;

-- name: put_AnswerItem
-- Add an answer unless the idempotency key is taken.
INSERT INTO tidings.receipt VALUES (%(tenant)s, %(key)s, %(body)s, %(outcomes)s, %(at)s) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_AnswerItem
-- Whether the target has answered the same request.
SELECT 1 FROM tidings.receipt WHERE tenant = %(tenant)s AND key = %(key)s AND body = %(body)s;

-- name: put_CalendarItem
-- Add a calendar, not settled yet: at the first start all pending occurrences are checked against it.
INSERT INTO tidings.calendar (tenant, name, days, changed, turn)
VALUES (%(tenant)s, %(name)s, %(days)s, %(changed)s, %(changed)s) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_CalendarItem
-- Whether the target has the same days.
SELECT 1 FROM tidings.calendar WHERE tenant = %(tenant)s AND name = %(name)s AND days = %(days)s;

-- name: put_ZoneItem
-- Add the rules of a time zone.
INSERT INTO tidings.zone VALUES (%(name)s, %(digest)s, %(version)s, %(content)s, 0) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_ZoneItem
-- Whether the target has these rules.
SELECT 1 FROM tidings.zone WHERE name = %(name)s AND digest = %(digest)s;
