-- Reading and writing everything for a transfer. Each stage is read in the order of its place, its first columns.

-- name: positions
-- Positions in Kafka's request topics.
SELECT topic, partition, next FROM source WHERE (topic, partition) > (?, ?) ORDER BY topic, partition;

-- name: keys
-- API keys.
SELECT name, tenant, digest, admin, created FROM api_key WHERE name > ? ORDER BY name;

-- name: receipts
-- Answers stored for idempotency keys.
SELECT tenant, key, body, outcomes, at FROM receipt WHERE (tenant, key) > (?, ?) ORDER BY tenant, key;

-- name: calendars
-- Calendars of days off.
SELECT tenant, name, days, changed FROM calendar WHERE (tenant, name) > (?, ?) AND dropped = 0 ORDER BY tenant, name;

-- name: zones
-- Time zone rules in use.
SELECT name, digest, version, content FROM zone WHERE (name, digest) > (?, ?) ORDER BY name, digest;

-- name: parcels
-- One-shots that came in bulk and are due later.
SELECT place, heads, bodies FROM parcel WHERE place > ? ORDER BY place;

-- name: far
-- Single one-shots that are due later, without the rows that only point to recurring schedules.
SELECT place, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM far WHERE place > ? AND n > 0 ORDER BY place;

-- name: near
-- One-shots that are due soon.
SELECT stream, due, arrival, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM near WHERE (stream, due, arrival) > (?, ?, ?) AND n > 0 ORDER BY stream, due, arrival;

-- name: standing
-- Recurring and paused schedules, with their records fired by hand that are not released yet.
SELECT arrival, stream, due, partition, generation, n, accepted, content, id, labels, message, state, origin, fires,
    released, policy, (
        SELECT json_group_array(json_array(near.due, near.n) ORDER BY fired.arrival) FROM fired
        JOIN near ON near.stream = standing.stream AND near.due = fired.due AND near.arrival = fired.arrival
        WHERE fired.schedule = standing.arrival
    )
FROM standing WHERE arrival > ? ORDER BY arrival;

-- name: finished
-- Finished schedules that are remembered.
SELECT due, arrival, stream, ifnull(last_due, due), partition, generation, n, accepted, content, id, labels, state, reason,
    at, position
FROM finished WHERE (due, arrival) > (?, ?) ORDER BY due, arrival;

-- name: histories
-- The histories of some ids, by their hashes.
SELECT tenant, id, at, event, occurrence, due, reason, count FROM history
WHERE hash IN (SELECT value FROM carray(?)) ORDER BY hash, entry;

-- name: counts
-- Totals: positions, keys, answers, paused, finished, pending, rows of notifications.
SELECT (SELECT count(*) FROM source), (SELECT count(*) FROM api_key), (SELECT count(*) FROM receipt),
    (SELECT count(*) FROM standing WHERE state = 'paused'), (SELECT count(*) FROM finished),
    (SELECT pending FROM tally),
    (SELECT count(*) FROM app_user) + (SELECT count(*) FROM notification) + (SELECT count(*) FROM delivery)
    + (SELECT count(*) FROM suppression) + (SELECT count(*) FROM dedupe_key) + (SELECT count(*) FROM template)
    + (SELECT count(*) FROM template_version) + (SELECT count(*) FROM inbox) + (SELECT count(*) FROM provider_message)
    + (SELECT count(*) FROM rate_limit) + (SELECT count(*) FROM circuit_breaker);

-- name: pending_terms
-- The terms of pending schedules with a rule, to tell recurring ones from one-shots.
SELECT policy FROM standing WHERE state = 'pending';

-- name: behind
-- Consumer groups that have not read all records of a topic, and how many. Delivery workers are a group of every topic
-- of notifications, even before one has started.
SELECT topic.tenant, topic.name, g.name, sum(p.next - max(p.first, ifnull(c.next, p.first)))
FROM (
    SELECT DISTINCT partition / 16 AS topic, name FROM committed
    UNION SELECT topic, ? FROM topic WHERE name IN (SELECT value FROM json_each(?))
) g
JOIN topic ON topic.topic = g.topic
JOIN partition p ON p.partition / 16 = g.topic
LEFT JOIN committed c ON c.partition = p.partition AND c.name = g.name
GROUP BY 1, 2, 3 HAVING sum(p.next - max(p.first, ifnull(c.next, p.first))) > 0 ORDER BY 1, 2, 3;

-- name: remainder
-- Totals: records in the outbox, those of them that are held back, records on the log.
-- A packed row stays until its last record is on Kafka: the others in it count only if they are held back.
SELECT (SELECT count(*) FROM log WHERE position < 1 << 38)
    + (SELECT ifnull(sum(packed.first + packed.count - max(packed.first, outbox.first)), 0) FROM packed, partition AS outbox
       WHERE outbox.partition = 0 AND packed.first + packed.count > outbox.first)
    - (SELECT count(*) FROM gone, partition AS outbox WHERE outbox.partition = 0 AND gone.offset >= outbox.first)
    + (SELECT count(*) FROM held, partition AS outbox WHERE outbox.partition = 0 AND held.offset < outbox.first
       AND NOT EXISTS (SELECT 1 FROM log WHERE log.position = held.offset)),
    (SELECT count(*) FROM held),
    (SELECT ifnull(sum(next - first), 0) FROM partition WHERE partition >= 16);

-- name: put_PositionItem
-- Forward only: what the target has read already is not read again.
INSERT INTO source VALUES (:topic, :partition, :next)
ON CONFLICT DO UPDATE SET next = excluded.next WHERE next < excluded.next RETURNING 1;

-- name: same_PositionItem
-- Whether the target is at the same position.
SELECT 1 FROM source WHERE topic = :topic AND partition = :partition AND next = :next;

-- name: put_ApiKey
-- Add an API key unless its name or its digest is taken.
INSERT INTO api_key VALUES (:name, :tenant, :digest, :admin, :created) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_ApiKey
-- Whether the target has this key.
SELECT 1 FROM api_key WHERE name = :name AND digest = :digest;

-- name: put_AnswerItem
-- Add an answer unless the idempotency key is taken.
INSERT INTO receipt VALUES (:tenant, :key, :body, :outcomes, :at) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_AnswerItem
-- Whether the target has answered the same request.
SELECT 1 FROM receipt WHERE tenant = :tenant AND key = :key AND body = :body;

-- name: put_CalendarItem
-- Add a calendar, not settled yet: at the first start all pending occurrences are checked against it.
INSERT INTO calendar VALUES (:tenant, :name, :days, :changed, :changed, 0, 0) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_CalendarItem
-- Whether the target has the same days.
SELECT 1 FROM calendar WHERE tenant = :tenant AND name = :name AND days = :days;

-- name: put_ZoneItem
-- Add the rules of a time zone.
INSERT INTO zone VALUES (:name, :digest, :version, :content) ON CONFLICT DO NOTHING RETURNING 1;

-- name: same_ZoneItem
-- Whether the target has these rules.
SELECT 1 FROM zone WHERE name = :name AND digest = :digest;
