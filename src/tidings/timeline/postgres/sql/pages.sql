-- Reads. Conditions that are not used are NULL; lists have pending rows in order of
-- (due, arrival), then finished ones backwards.

-- name: page_pending
-- Pending schedules of some streams; a row with n = 0 points to the recurring schedule of its arrival.
SELECT t.arrival, t.due, t.lane, t.stream, t.topic, t.part, t.generation, t.n, t.accepted, uuid_send(t.content), t.id,
    t.labels, t.message, t.deadline, t.reason
FROM unnest(%(streams)s::int[]) AS s(stream) CROSS JOIN generate_series(0, %(lanes)s::int - 1) AS l(lane)
CROSS JOIN LATERAL (
    SELECT * FROM tidings.timeline t
    WHERE t.lane = l.lane AND t.slot = s.stream %% 1536 AND (t.due, t.arrival) > (%(due)s, %(arrival)s)
      AND t.due < %(until)s AND t.stream = s.stream AND t.n >= 0
      AND (%(topics)s::int[] IS NULL OR t.topic = ANY (%(topics)s::int[]))
      AND (%(prefix)s::text IS NULL OR starts_with(t.id, %(prefix)s::text))
      AND (%(label)s::text IS NULL OR t.n = 0 OR t.labels::jsonb ->> %(label)s::text = %(value)s::text)
    ORDER BY t.due, t.arrival LIMIT %(limit)s
) t
ORDER BY t.due, t.arrival LIMIT %(limit)s;

-- name: page_paused
-- Paused schedules of some streams.
SELECT t.arrival, t.due, t.lane, t.stream, t.topic, t.part, t.generation, t.n, t.accepted, uuid_send(t.content), t.id,
    t.labels, t.message, t.state, t.fires, t.released, t.terms
FROM unnest(%(streams)s::int[]) AS s(stream) CROSS JOIN LATERAL (
    SELECT * FROM tidings.standing t
    WHERE t.stream = s.stream AND t.state = 'paused' AND (t.due, t.arrival) > (%(due)s, %(arrival)s)
      AND t.due < %(until)s
      AND (%(topics)s::int[] IS NULL OR t.topic = ANY (%(topics)s::int[]))
      AND (%(prefix)s::text IS NULL OR starts_with(t.id, %(prefix)s::text))
      AND (%(label)s::text IS NULL OR t.labels::jsonb ->> %(label)s::text = %(value)s::text)
    ORDER BY t.due, t.arrival LIMIT %(limit)s
) t
ORDER BY t.due, t.arrival LIMIT %(limit)s;

-- name: page_finished
-- Finished schedules of some streams that are still remembered.
SELECT f.arrival, f.due, f.lane, f.stream, f.topic, f.part, f.generation, f.n, f.accepted, uuid_send(f.content), f.id,
    f.labels, f.state, f.reason, f.at, f.position, f.beyond, f.held
FROM unnest(%(streams)s::int[]) AS s(stream) CROSS JOIN LATERAL (
    SELECT f.*, f.part < 0 AND f.position >= l.outbox_first AS beyond, h.reason AS held FROM tidings.finished f
    LEFT JOIN tidings.lane l ON f.part < 0 AND l.lane = f.lane
    LEFT JOIN tidings.held h ON f.part < 0 AND h.lane = f.lane AND h."offset" = f.position
    WHERE f.stream = s.stream AND (f.due, f.arrival) < (%(before)s, %(before_arrival)s) AND f.due >= %(from)s
      AND f.at > %(remembered)s
      AND (%(state)s::int IS NULL OR f.state = %(state)s::int)
      AND (%(flying)s::boolean IS NULL OR %(flying)s::boolean = (f.part < 0 AND coalesce(
          h.reason IS NOT NULL OR f.position >= greatest(l.outbox_first, (%(arrived)s::bigint[])[f.lane + 1]), false)))
      AND (%(topics)s::int[] IS NULL OR f.topic = ANY (%(topics)s::int[]))
      AND (%(prefix)s::text IS NULL OR starts_with(f.id, %(prefix)s::text))
      AND (%(label)s::text IS NULL OR f.labels::jsonb ->> %(label)s::text = %(value)s::text)
    ORDER BY f.due DESC, f.arrival DESC LIMIT %(limit)s
) f
ORDER BY f.due DESC, f.arrival DESC LIMIT %(limit)s;

-- name: forecast
-- Pending rows by step of time, for some streams.
SELECT t.due / %(width)s, count(*)
FROM unnest(%(streams)s::int[]) AS s(stream) CROSS JOIN generate_series(0, %(lanes)s::int - 1) AS l(lane)
JOIN tidings.timeline t ON t.lane = l.lane AND t.slot = s.stream %% 1536 AND t.stream = s.stream
WHERE t.due >= %(start)s AND t.due < %(end)s AND t.n >= 0
GROUP BY 1 ORDER BY 1 LIMIT %(limit)s;

-- name: history
-- The history of a schedule: only the latest lines, because older ones may not be trimmed yet.
SELECT at, event, occurrence, due, reason, count FROM (
    SELECT * FROM tidings.history WHERE key = %s::uuid ORDER BY entry DESC LIMIT 100
) AS latest ORDER BY entry;

-- name: trace_notification
-- The row of a notification.
SELECT id, body, version, until, 0 FROM tidings.notification
WHERE tenant = %s AND id = %s AND (until IS NULL OR until > %s);

-- name: trace_timeline
-- A pending one-shot by its id; its lane and the number of slots are given.
SELECT t.arrival, t.due, t.lane, t.stream, t.topic, t.part, t.generation, t.n, t.accepted, uuid_send(t.content), t.id,
    t.labels, t.message, t.deadline, t.reason
FROM tidings.registry r
JOIN tidings.timeline t ON t.lane = %s AND t.slot = mod(r.stream, %s)::int2 AND t.due = r.due AND t.arrival = r.arrival
WHERE r.key = %s::uuid AND t.n > 0;

-- name: trace_recurring
-- A recurring or paused schedule by its id.
SELECT s.arrival, s.due, s.lane, s.stream, s.topic, s.part, s.generation, s.n, s.accepted, uuid_send(s.content), s.id,
    s.labels, s.message, s.state, s.fires, s.released, s.terms
FROM tidings.registry r JOIN tidings.standing s ON s.arrival = r.arrival WHERE r.key = %s::uuid;

-- name: trace_finished
-- A finished schedule by its id, and whether it is on its way to Kafka.
SELECT f.arrival, f.due, f.lane, f.stream, f.topic, f.part, f.generation, f.n, f.accepted, uuid_send(f.content), f.id,
    f.labels, f.state, f.reason, f.at, f.position, f.position >= l.outbox_first, h.reason
FROM tidings.registry r
JOIN tidings.finished f ON f.stream = r.stream AND f.due = r.due AND f.arrival = r.arrival
LEFT JOIN tidings.lane l ON f.part < 0 AND l.lane = f.lane
LEFT JOIN tidings.held h ON f.part < 0 AND h.lane = f.lane AND h."offset" = f.position
WHERE r.key = %s::uuid;

-- name: pending
-- How many schedules are pending, counted up to a limit, beyond it estimated from statistics.
SELECT counted.rows - (SELECT count(*) FROM tidings.fired), (
    SELECT reltuples::bigint FROM pg_class WHERE oid = 'tidings.timeline'::regclass
) FROM (SELECT count(*) AS rows FROM (SELECT 1 FROM tidings.timeline LIMIT %s) AS first) AS counted;

-- name: overdue
-- How many rows are due and not released, counted up to a limit in each slot.
SELECT count(*) FROM generate_series(0, %s::int - 1) AS l(lane) CROSS JOIN tidings.slot s
CROSS JOIN LATERAL (
    SELECT 1 FROM tidings.timeline t WHERE t.lane = l.lane AND t.slot = s.slot AND t.due <= %s LIMIT %s
) t;

-- name: size
-- The size of the store on disk.
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r';

-- name: message
-- The message of a released one-shot, while its record is stored.
SELECT message FROM tidings.log WHERE topic = %s AND part = %s AND "offset" = %s;

-- name: message_out
-- The same while it is in the outbox.
SELECT message FROM tidings.outbox WHERE lane = %s AND "offset" = %s;

-- name: topics
-- The topics of a tenant that ever had a record, by name, with the ends of each partition.
SELECT t.name, array_agg(p.first ORDER BY p.part), array_agg(p.next ORDER BY p.part), sum(p.bytes)::bigint
FROM tidings.topic t JOIN tidings.partition p ON p.topic = t.topic
WHERE t.tenant = (SELECT tenant FROM tidings.tenant WHERE name = %s) AND (%s::text IS NULL OR t.name = %s::text)
GROUP BY t.topic, t.name ORDER BY t.name;

-- name: prefixed
-- The topics of all tenants that start with a prefix.
SELECT o.name, t.name, array_agg(p.first ORDER BY p.part), array_agg(p.next ORDER BY p.part), sum(p.bytes)::bigint
FROM tidings.topic t JOIN tidings.tenant o ON o.tenant = t.tenant JOIN tidings.partition p ON p.topic = t.topic
WHERE starts_with(t.name, %s) GROUP BY o.name, t.topic, t.name ORDER BY o.name, t.name;

-- name: read
-- Records of one partition from an offset on.
SELECT l.part, l."offset", l.id, l.generation, l.n, l.due, l.released, l.message, l.final
FROM tidings.log l WHERE l.topic = %s AND l.part = %s AND l."offset" >= %s ORDER BY l."offset" LIMIT %s;

-- name: read_fitting
-- The same, up to a total size of messages; at least one.
SELECT part, "offset", id, generation, n, due, released, message, final
FROM (
    SELECT l.*, sum(octet_length(l.message)) OVER running AS size, row_number() OVER running AS place
    FROM (
        SELECT part, "offset", id, generation, n, due, released, message, final
        FROM tidings.log WHERE topic = %s AND part = %s AND "offset" >= %s ORDER BY "offset" LIMIT %s
    ) l
    WINDOW running AS (ORDER BY l."offset" ROWS UNBOUNDED PRECEDING)
) fitting
WHERE place = 1 OR size <= %s ORDER BY "offset";

-- name: committed
-- The committed offsets of a group.
SELECT part, next FROM tidings.committed WHERE topic = %s AND name = %s;

-- name: commit
-- Store the committed offsets of a group.
INSERT INTO tidings.committed (topic, name, part, next) SELECT %s, %s, part, next FROM unnest(%s, %s) AS p(part, next)
ON CONFLICT (topic, name, part) DO UPDATE SET next = excluded.next;
