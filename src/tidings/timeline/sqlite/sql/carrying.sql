-- What is carried into another store, each kind in the order of its table.

-- name: positions
-- Where intake stands.
SELECT topic, partition, next FROM source WHERE (topic, partition) > (?, ?) ORDER BY topic, partition;

-- name: keys
-- API keys.
SELECT name, tenant, digest, admin, created FROM api_key WHERE name > ? ORDER BY name;

-- name: receipts
-- Answers kept for idempotency keys.
SELECT tenant, key, body, outcomes, at FROM receipt WHERE (tenant, key) > (?, ?) ORDER BY tenant, key;

-- name: documents
-- What is in the cabinet.
SELECT document, tenant, kind, name, body, version, tags, "order", until FROM document WHERE document > ? ORDER BY document;

-- name: parcels
-- What came in bulk and is due later.
SELECT place, heads, bodies FROM parcel WHERE place > ? ORDER BY place;

-- name: far
-- Single rows that are due later, without those that point to standing schedules.
SELECT place, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM far WHERE place > ? AND n > 0 ORDER BY place;

-- name: near
-- The same of what is due soon.
SELECT arrival, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM near WHERE (stream, due, arrival) > (?, ?, ?) AND n > 0 ORDER BY stream, due, arrival;

-- name: standing
-- Recurring and paused schedules.
SELECT arrival, stream, due, partition, generation, n, accepted, content, id, labels, message, state, origin, fires,
    released, policy
FROM standing WHERE arrival > ? ORDER BY arrival;

-- name: extras
-- Records fired by hand that have not left, with their schedules.
SELECT fired.schedule, near.due, near.n FROM fired
JOIN standing ON standing.arrival = fired.schedule
JOIN near ON near.stream = standing.stream AND near.due = fired.due AND near.arrival = fired.arrival
WHERE fired.schedule IN (SELECT value FROM carray(?)) ORDER BY fired.arrival;

-- name: finished
-- The memory of finished schedules.
SELECT due, arrival, stream, ifnull(last_due, due), partition, generation, n, accepted, content, id, labels, state, reason,
    at, position
FROM finished WHERE (due, arrival) > (?, ?) ORDER BY due, arrival;

-- name: histories
-- What was written down of some ids, by their hashes.
SELECT tenant, id, at, event, occurrence, due, reason, count FROM history
WHERE hash IN (SELECT value FROM carray(?)) ORDER BY hash, entry;

-- name: counts
-- How much there is of each kind that the tally does not count.
SELECT (SELECT count(*) FROM source), (SELECT count(*) FROM api_key), (SELECT count(*) FROM receipt),
    (SELECT count(*) FROM document), (SELECT count(*) FROM standing WHERE state = 'paused'), (SELECT count(*) FROM finished),
    (SELECT pending FROM tally);

-- name: pointers
-- The due times of standing schedules that pend, to tell recurring ones from one-shots.
SELECT policy FROM standing WHERE state = 'pending';

-- name: behind
-- Groups that have not read all of a topic: how many records each has before it. Workers read the topics of
-- notifications, whether one has begun to or not.
SELECT topic.tenant, topic.name, g.name, sum(p.next - max(p.first, ifnull(c.next, p.first)))
FROM (
    SELECT DISTINCT partition / 16 AS topic, name FROM committed
    UNION SELECT topic, ? FROM topic WHERE name IN (SELECT value FROM json_each(?))
) g
JOIN topic ON topic.topic = g.topic
JOIN partition p ON p.partition / 16 = g.topic
LEFT JOIN committed c ON c.partition = p.partition AND c.name = g.name
GROUP BY 1, 2, 3 HAVING sum(p.next - max(p.first, ifnull(c.next, p.first))) > 0 ORDER BY 1, 2, 3;

-- name: rest
-- The records in the outbox, those of them that are kept back, and those on the log.
SELECT (SELECT count(*) FROM log WHERE position < 1 << 38), (SELECT count(*) FROM held),
    (SELECT ifnull(sum(next - first), 0) FROM partition WHERE partition >= 16);
