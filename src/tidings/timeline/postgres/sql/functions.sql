-- What is done in one round trip, its COMMIT included: each call is a transaction of its own that needs nobody to end it.
-- A lock is waited for 2 s at most, so that nobody holds up a lane.

-- Functions in PL/pgSQL keep their plans; those in SQL would be planned in every call.

-- The clock of the fleet.
CREATE OR REPLACE FUNCTION tidings.now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
END
$$;

-- How many slots are in use: they are numbered from 0.
CREATE OR REPLACE FUNCTION tidings.slots() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT coalesce(least(max(tenant) * 3 + 3, 768), 0) FROM tidings.tenant);
END
$$;

-- Under which key an id is known.
CREATE OR REPLACE FUNCTION tidings.key(tenant text, id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(substring(
        sha256(convert_to(tenant, 'UTF8') || '\x00'::bytea || convert_to(id, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid
$$;

-- When each lane has work to do, looking from a low-water mark on.
CREATE OR REPLACE FUNCTION tidings.heads(lanes smallint[], lows bigint[])
RETURNS TABLE (lane smallint, due bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    slots int := tidings.slots();
BEGIN
    RETURN QUERY SELECT l.lane, min(h.due) FROM unnest(lanes, lows) AS l(lane, low)
    CROSS JOIN generate_series(0, slots - 1) AS s(slot)
    CROSS JOIN LATERAL (
        SELECT t.due FROM tidings.timeline t
        WHERE t.lane = l.lane AND t.slot = s.slot AND t.due >= l.low ORDER BY t.due LIMIT 1
    ) h
    GROUP BY 1;
END
$$;

-- Add new one-shots; fails as a whole (unique_violation) if one of their ids is known. Columns are taken element by
-- element: PL/pgSQL holds them unpacked, and unnest would copy each of them once more.
CREATE OR REPLACE FUNCTION tidings.schedule(
    told text, now_ bigint, keys uuid[], key_dues bigint[], key_arrivals bigint[], key_streams int[],
    dues bigint[], arrivals bigint[], contents uuid[], streams int[], topics int[], lanes smallint[],
    parts smallint[], reasons smallint[], ids text[], messages bytea[], deadlines bigint[], labels_ text[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
BEGIN
    INSERT INTO tidings.registry (key, due, arrival, stream)
    SELECT keys[i], key_dues[i], key_arrivals[i], key_streams[i] FROM generate_series(1, cardinality(keys)) AS i;
    INSERT INTO tidings.timeline (due, arrival, accepted, content, stream, topic, generation, n, lane, slot, part,
        reason, id, message, deadline, labels)
    SELECT dues[i], arrivals[i], now_, contents[i], streams[i], topics[i], 1, 1, lanes[i], streams[i] % 768, parts[i],
        reasons[i], ids[i], messages[i], deadlines[i], labels_[i]
    FROM generate_series(1, cardinality(dues)) AS i;
    IF told IS NOT NULL THEN
        PERFORM pg_notify('tidings', told);
    END IF;
END
$$;

-- The rows of the next batch when more is due than it holds: the first ones by a virtual time, in which a slot's rows
-- follow each other the faster the larger its share is. Inside a slot what is fresh and what is overdue take turns.
CREATE OR REPLACE FUNCTION tidings.fair(lane_ smallint, now_ bigint, rows_max int, low bigint)
RETURNS TABLE (place tid, n int, slot int, due bigint, arrival bigint, size int) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    slots int := tidings.slots();
BEGIN
    RETURN QUERY WITH heads AS MATERIALIZED (
        SELECT s.slot, h.due FROM generate_series(0, slots - 1) AS s(slot)
        CROSS JOIN LATERAL (
            SELECT t.due FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= low AND t.due <= now_ ORDER BY t.due LIMIT 1
        ) h
    ), shares AS MATERIALIZED (
        SELECT slot, due AS head, (ARRAY[60, 30, 10])[slot % 3 + 1]::float8 / count(*) OVER (PARTITION BY slot % 3) AS weight,
            CASE WHEN count(*) OVER () <= 8 THEN rows_max
                 ELSE greatest(1, least(rows_max, 8 * rows_max / count(*) OVER ())) END AS most
        FROM heads
    ), rows AS (
        SELECT s.slot, s.head, s.weight, r.*,
            row_number() OVER (PARTITION BY s.slot, r.fresh ORDER BY r.due, r.arrival) AS rank,
            count(*) FILTER (WHERE r.fresh) OVER (PARTITION BY s.slot) AS fresh_rows,
            count(*) FILTER (WHERE NOT r.fresh) OVER (PARTITION BY s.slot) AS old_rows
        FROM shares s CROSS JOIN LATERAL (
            (SELECT t.ctid AS place, t.n, t.due, t.arrival, octet_length(t.message) AS size, true AS fresh FROM tidings.timeline t
             WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= greatest(low, now_ - 999999) AND t.due <= now_
             ORDER BY t.due, t.arrival LIMIT s.most)
            UNION ALL
            (SELECT t.ctid, t.n, t.due, t.arrival, octet_length(t.message), false FROM tidings.timeline t
             WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= low AND t.due < now_ - 999999
             ORDER BY t.due, t.arrival LIMIT s.most)
        ) r
    )
    SELECT place, n, slot, due, arrival, size FROM rows
    ORDER BY (CASE WHEN fresh THEN rank + least(rank - 1, old_rows) ELSE rank + least(rank, fresh_rows) END - 1) / weight,
        head, due, arrival
    LIMIT rows_max;
END
$$;

-- Choose the next batch: the places of its rows, and of those that belong to standing schedules (slot, due, arrival).
-- All that is due if the batch holds it, or if it is all of one slot and of one age; in fair shares otherwise.
CREATE OR REPLACE FUNCTION tidings.choose(
    lane_ smallint, at bigint, rows_max int, low bigint, OUT places tid[], OUT standing bigint[], OUT size bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    due_slots int[];
    fresh int;
    old int;
    total int;
    slots int := tidings.slots();
BEGIN
    SELECT array_agg(s.slot), count(f.due), count(o.due) INTO due_slots, fresh, old
    FROM generate_series(0, slots - 1) AS s(slot)
    LEFT JOIN LATERAL (
        SELECT t.due FROM tidings.timeline t WHERE t.lane = lane_ AND t.slot = s.slot
          AND t.due >= greatest(low, at - 999999) AND t.due <= at ORDER BY t.due LIMIT 1
    ) f ON true
    LEFT JOIN LATERAL (
        SELECT t.due FROM tidings.timeline t WHERE t.lane = lane_ AND t.slot = s.slot
          AND t.due >= low AND t.due < at - 999999 ORDER BY t.due LIMIT 1
    ) o ON true
    WHERE f.due IS NOT NULL OR o.due IS NOT NULL;
    IF fresh + old > 1 THEN
        SELECT count(*) INTO total FROM (
            SELECT 1 FROM unnest(due_slots) AS s(slot) CROSS JOIN LATERAL (
                SELECT 1 FROM tidings.timeline t
                WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= low AND t.due <= at LIMIT rows_max + 1
            ) t LIMIT rows_max + 1
        ) counted;
    END IF;
    IF total > rows_max THEN
        SELECT array_agg(f.place), array_agg(ARRAY[f.slot, f.due, f.arrival]) FILTER (WHERE f.n <= 0), sum(f.size)
        INTO places, standing, size FROM tidings.fair(lane_, at, rows_max, low) f;
    ELSE
        SELECT array_agg(t.place), array_agg(ARRAY[s.slot, t.due, t.arrival]) FILTER (WHERE t.n <= 0), sum(t.size)
        INTO places, standing, size FROM unnest(due_slots) AS s(slot) CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.due, t.arrival, t.n, octet_length(t.message) AS size FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= low AND t.due <= at
            ORDER BY t.due, t.arrival LIMIT rows_max
        ) t;
    END IF;
END
$$;

-- Move rows of one series off the timeline: all of them leave, for one partition or for the outbox.
CREATE OR REPLACE FUNCTION tidings.move_alike(places tid[], base bigint, at bigint, OUT late bigint[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH gone AS (
        DELETE FROM tidings.timeline t WHERE t.ctid = ANY (places) RETURNING t.*
    ), placed AS MATERIALIZED (
        SELECT g.*, base - 1 + row_number() OVER (ORDER BY g.due, g.arrival) AS position FROM gone g
    ), logged AS (
        INSERT INTO tidings.log (topic, part, final, "offset", due, released, generation, n, id, message)
        SELECT p.topic, p.part, true, p.position, p.due, at, p.generation, p.n, p.id, p.message FROM placed p WHERE p.part >= 0
    ), out AS (
        INSERT INTO tidings.outbox ("offset", due, released, topic, generation, n, lane, final, id, message)
        SELECT p.position, p.due, at, p.topic, p.generation, p.n, p.lane, true, p.id, p.message FROM placed p WHERE p.part < 0
    ), ended AS (
        INSERT INTO tidings.finished (due, arrival, at, accepted, content, stream, topic, generation, n, lane, part, state,
            reason, id, position, labels)
        SELECT p.due, p.arrival, move_alike.at, p.accepted, p.content, p.stream, p.topic, p.generation, p.n, p.lane, p.part,
            0, 0, p.id, p.position, p.labels FROM placed p
    )
    SELECT array_agg(move_alike.at - p.due) FILTER (WHERE p.part >= 0) INTO late FROM placed p;
END
$$;

-- Move rows of any kind off the timeline: each to the end of its partition, into the outbox, or to what was missed.
CREATE OR REPLACE FUNCTION tidings.move_mixed(
    places tid[], following bigint, at bigint, OUT late bigint[], OUT topics int[], OUT missed int[], OUT handed int
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    arrivals bigint[];
    positions bigint[];
BEGIN
    WITH rows AS MATERIALIZED (
        SELECT t.due, t.arrival, t.part, CASE WHEN t.part < 0 THEN -1 ELSE t.topic END AS series,
            t.deadline IS NULL OR t.deadline >= at AS leaves, octet_length(t.message) + octet_length(t.id) + 64 AS size
        FROM tidings.timeline t WHERE t.ctid = ANY (places)
    ), ends AS (
        UPDATE tidings.partition p SET next = p.next + c.rows, bytes = p.bytes + c.size
        FROM (SELECT series, part, count(*) AS rows, sum(size) AS size FROM rows WHERE leaves AND part >= 0 GROUP BY 1, 2) c
        WHERE p.topic = c.series AND p.part = c.part RETURNING p.topic AS series, p.part, p.next - c.rows AS base
    ), placed AS (
        SELECT r.*, CASE WHEN r.leaves THEN coalesce(e.base, following) - 1
            + row_number() OVER (PARTITION BY r.series, r.part, r.leaves ORDER BY r.due, r.arrival) END AS position
        FROM rows r LEFT JOIN ends e ON e.series = r.series AND e.part = r.part
    )
    SELECT array_agg(p.arrival), array_agg(p.position), array_agg(at - p.due) FILTER (WHERE p.leaves AND p.part >= 0),
        count(*) FILTER (WHERE p.leaves AND p.part < 0)
    INTO arrivals, positions, late, handed FROM placed p;
    WITH gone AS (
        DELETE FROM tidings.timeline t WHERE t.ctid = ANY (places) RETURNING t.*
    ), placed AS MATERIALIZED (
        SELECT g.*, p.position FROM gone g JOIN unnest(arrivals, positions) AS p(arrival, position) USING (arrival)
    ), logged AS (
        INSERT INTO tidings.log (topic, part, final, "offset", due, released, generation, n, id, message)
        SELECT p.topic, p.part, true, p.position, p.due, at, p.generation, p.n, p.id, p.message
        FROM placed p WHERE p.position IS NOT NULL AND p.part >= 0
    ), out AS (
        INSERT INTO tidings.outbox ("offset", due, released, topic, generation, n, lane, final, id, message)
        SELECT p.position, p.due, at, p.topic, p.generation, p.n, p.lane, true, p.id, p.message
        FROM placed p WHERE p.position IS NOT NULL AND p.part < 0
    ), ended AS (
        INSERT INTO tidings.finished (due, arrival, at, accepted, content, stream, topic, generation, n, lane, part, state,
            reason, id, position, labels)
        SELECT p.due, p.arrival, move_mixed.at, p.accepted, p.content, p.stream, p.topic, p.generation, p.n, p.lane, p.part,
            (p.position IS NULL)::int, CASE WHEN p.position IS NULL THEN p.reason ELSE 0 END, p.id, p.position, p.labels
        FROM placed p
    )
    SELECT array_agg(DISTINCT p.topic) FILTER (WHERE p.position IS NOT NULL AND p.part >= 0),
        array_agg(p.reason::int) FILTER (WHERE p.position IS NULL)
    INTO topics, missed FROM placed p;
END
$$;

-- Move one-shots that are due from the timeline to the log or into the outbox, and remember how they ended.
-- Answers the moment, how late each was, the topics, what was missed by reason, the bytes, how many went into the
-- outbox, the rows of standing schedules that were chosen too and are left to the caller, and what is due next.
CREATE OR REPLACE FUNCTION tidings.release(
    lane_ smallint, token_ uuid, given bigint, capped boolean, rows_max int, low bigint,
    OUT at bigint, OUT late bigint[], OUT topics int[], OUT missed int[], OUT bytes bigint, OUT handed int,
    OUT standing bigint[], OUT head bigint, OUT taken int
) LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    places tid[];
    following bigint;
    size bigint;
    alike record;
BEGIN
    UPDATE tidings.lane SET turns = turns + 1 WHERE lane.lane = lane_ AND token = token_ RETURNING outbox_next INTO following;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another node owns this lane' USING ERRCODE = 'TD002';
    END IF;
    at := CASE WHEN capped THEN least(given, tidings.now()) ELSE given END;
    SELECT c.places, c.standing, c.size INTO places, standing, size FROM tidings.choose(lane_, at, rows_max, low) c;
    IF size > 8388608 THEN
        places := places[1:greatest(1, (cardinality(places) * 8388608 / size)::int)];
    END IF;
    -- what somebody is changing is left for later; what was changed meanwhile is no longer there
    SELECT array_agg(l.ctid) AS places, count(*)::int AS rows, coalesce(sum(l.size), 0) AS size, min(l.topic) AS topic,
        min(l.part) AS part, min(l.topic) = max(l.topic) AND min(l.part) = max(l.part) AND bool_and(l.leaves) AS one
    INTO alike FROM (
        SELECT t.ctid, t.topic, t.part, t.deadline IS NULL OR t.deadline >= at AS leaves,
            octet_length(t.message) + octet_length(t.id) + 64 AS size
        FROM tidings.timeline t
        WHERE t.ctid = ANY (places) AND t.lane = lane_ AND t.due <= at AND t.n > 0 FOR UPDATE SKIP LOCKED
    ) l;
    taken := alike.rows;
    bytes := alike.size;
    handed := 0;
    IF alike.one AND alike.part >= 0 THEN
        UPDATE tidings.partition p SET next = p.next + alike.rows, bytes = p.bytes + alike.size
        WHERE p.topic = alike.topic AND p.part = alike.part RETURNING p.next - alike.rows INTO following;
        SELECT m.late INTO late FROM tidings.move_alike(alike.places, following, at) m;
        topics := ARRAY[alike.topic];
    ELSIF alike.one THEN
        handed := alike.rows;
        PERFORM tidings.move_alike(alike.places, following, at);
    ELSIF taken > 0 THEN
        SELECT m.late, m.topics, m.missed, m.handed INTO late, topics, missed, handed
        FROM tidings.move_mixed(alike.places, following, at) m;
    END IF;
    IF handed > 0 THEN
        UPDATE tidings.lane SET outbox_next = following + handed WHERE lane.lane = lane_;
    END IF;
    SELECT h.due INTO head FROM tidings.heads(ARRAY[lane_], ARRAY[low]) h;
END
$$;

-- Renew a node's leases, give back what is more than its share, take what is free up to it. Shares are even.
CREATE OR REPLACE FUNCTION tidings.acquire(node_ uuid, name_ text, lease bigint)
RETURNS TABLE (lane smallint, token uuid, outbox_first bigint, freed boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    now_ bigint := tidings.now();
    place int;
    nodes int;
    total int;
    share int;
    mine int;
    given int := 0;
BEGIN
    INSERT INTO tidings.node AS n (node, name, since, until) VALUES (node_, name_, now_, now_ + lease)
    ON CONFLICT (node) DO UPDATE SET until = excluded.until;
    DELETE FROM tidings.node WHERE until < now_ - 60000000;
    SELECT count(*) FILTER (WHERE n.node < node_), count(*) INTO place, nodes FROM tidings.node n WHERE n.until > now_;
    SELECT count(*) INTO total FROM tidings.lane;
    share := total / nodes + (place < total % nodes)::int;
    UPDATE tidings.lane l SET until = now_ + lease WHERE l.node = node_;
    GET DIAGNOSTICS mine = ROW_COUNT;
    IF mine > share THEN
        UPDATE tidings.lane l SET token = NULL, node = NULL, until = 0 WHERE l.lane IN (
            SELECT o.lane FROM tidings.lane o WHERE o.node = node_ ORDER BY o.since DESC, o.lane DESC LIMIT mine - share);
        GET DIAGNOSTICS given = ROW_COUNT;
    ELSIF mine < share THEN
        UPDATE tidings.lane l SET token = gen_random_uuid(), node = node_, since = now_, until = now_ + lease
        WHERE l.lane IN (
            SELECT o.lane FROM tidings.lane o WHERE o.token IS NULL OR o.until <= now_
            ORDER BY o.lane LIMIT share - mine FOR UPDATE SKIP LOCKED);
    END IF;
    IF given > 0 THEN
        PERFORM pg_notify('tidings', 'free');
    END IF;
    RETURN QUERY SELECT l.lane, l.token, l.outbox_first, given > 0 FROM tidings.lane l WHERE l.node = node_ ORDER BY l.lane;
END
$$;

-- Hand over everything that a node owns.
CREATE OR REPLACE FUNCTION tidings.resign(node_ uuid) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
BEGIN
    UPDATE tidings.lane SET token = NULL, node = NULL, until = 0 WHERE node = node_;
    DELETE FROM tidings.node WHERE node = node_;
    PERFORM pg_notify('tidings', 'free');
END
$$;

-- The first step of every write of a lane's owner: it waits for those under way, and fails if another node owns it.
CREATE OR REPLACE FUNCTION tidings.own(lane_ smallint, token_ uuid) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    following bigint;
BEGIN
    UPDATE tidings.lane SET turns = turns + 1 WHERE lane = lane_ AND token = token_ RETURNING outbox_next INTO following;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another node owns this lane' USING ERRCODE = 'TD002';
    END IF;
    RETURN following;
END
$$;

-- Drop the oldest records of some topics of a lane, while they are too old or a topic is too large for the lane.
-- Answers the last topic that was looked at (NULL: those were all) and whether there is more to drop.
CREATE OR REPLACE FUNCTION tidings.trim(
    lane_ smallint, token_ uuid, oldest bigint, bytes_max bigint, after int, rows_max int, OUT last int, OUT more boolean
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' SET enable_seqscan = off AS $$
DECLARE
    place record;
    gone record;
    excess bigint;
BEGIN
    PERFORM tidings.own(lane_, token_);
    more := false;
    FOR place IN
        SELECT p.topic, p.part, p.first FROM tidings.partition p
        WHERE p.lane = lane_ AND p.topic > after AND p.topic <= after + 256 AND p.first < p.next
    LOOP
        WITH oldest_rows AS (
            SELECT l."offset", l.released FROM tidings.log l
            WHERE l.topic = place.topic AND l.part = place.part AND l."offset" >= place.first
            ORDER BY l."offset" LIMIT rows_max
        ), dropped AS (
            DELETE FROM tidings.log l USING oldest_rows o
            WHERE l.topic = place.topic AND l.part = place.part AND l."offset" = o."offset" AND o.released < oldest
            RETURNING l."offset", octet_length(l.message) + octet_length(l.id) + 64 AS bytes
        )
        SELECT count(*) AS rows, max("offset") AS last, sum(bytes) AS bytes INTO gone FROM dropped;
        IF gone.rows > 0 THEN
            UPDATE tidings.partition p SET first = gone.last + 1, bytes = p.bytes - gone.bytes
            WHERE p.topic = place.topic AND p.part = place.part;
            more := more OR gone.rows = rows_max;
        END IF;
    END LOOP;
    FOR place IN
        SELECT p.topic, sum(p.bytes) - bytes_max AS excess FROM tidings.partition p
        WHERE p.lane = lane_ AND p.topic > after AND p.topic <= after + 256 GROUP BY 1 HAVING sum(p.bytes) > bytes_max
    LOOP
        WITH oldest_rows AS (
            SELECT l.part, l."offset", l.released, octet_length(l.message) + octet_length(l.id) + 64 AS bytes
            FROM tidings.partition p CROSS JOIN LATERAL (
                SELECT * FROM tidings.log l WHERE l.topic = p.topic AND l.part = p.part AND l."offset" >= p.first
                ORDER BY l."offset" LIMIT rows_max
            ) l WHERE p.lane = lane_ AND p.topic = place.topic
        ), summed AS (
            SELECT part, "offset", bytes, sum(bytes) OVER (ORDER BY released, part, "offset") - bytes AS before
            FROM oldest_rows ORDER BY released, part, "offset" LIMIT rows_max
        ), dropped AS (
            DELETE FROM tidings.log l USING summed s
            WHERE l.topic = place.topic AND l.part = s.part AND l."offset" = s."offset" AND s.before < place.excess
            RETURNING l.part, l."offset", s.bytes
        ), moved AS (
            UPDATE tidings.partition p SET first = d.last + 1, bytes = p.bytes - d.bytes
            FROM (SELECT part, max("offset") AS last, sum(bytes) AS bytes, count(*) AS rows FROM dropped GROUP BY 1) d
            WHERE p.topic = place.topic AND p.part = d.part RETURNING d.rows
        )
        SELECT coalesce(sum(rows), 0) AS rows INTO gone FROM moved;
        more := more OR gone.rows = rows_max;
    END LOOP;
    SELECT after + 256 INTO last WHERE EXISTS (SELECT 1 FROM tidings.topic t WHERE t.topic > after + 256);
END
$$;

-- Forget schedules that finished before a moment, their ids and histories, in some pages of the table; answers how many,
-- and how many pages it has. Ids that somebody is changing are left for later. Pages are looked at one after the other:
-- an index on the time of the end would cost every release more than this does.
CREATE OR REPLACE FUNCTION tidings.forget(before bigint, page bigint, pages_max int, OUT forgotten int, OUT pages bigint)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' SET enable_seqscan = off AS $$
DECLARE
    low tid := format('(%s,0)', page)::tid;
    high tid := format('(%s,0)', page + pages_max)::tid;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT tidings.key(t.name, f.id) AS key, f.stream, f.due, f.arrival FROM tidings.finished f
        JOIN tidings.tenant t ON t.tenant = f.stream / 3
        WHERE f.ctid >= low AND f.ctid < high AND f.at <= before
    ), free AS MATERIALIZED (
        SELECT r.key, r.stream, r.due, r.arrival FROM old o
        JOIN tidings.registry r ON r.key = o.key AND r.stream = o.stream AND r.due = o.due AND r.arrival = o.arrival
        ORDER BY r.key FOR UPDATE OF r SKIP LOCKED
    ), finished AS (
        DELETE FROM tidings.finished f USING free WHERE f.stream = free.stream AND f.due = free.due AND f.arrival = free.arrival
    ), told AS (
        DELETE FROM tidings.history h USING free WHERE h.key = free.key
    ), gone AS (
        DELETE FROM tidings.registry r USING free WHERE r.key = free.key RETURNING 1
    )
    SELECT count(*) INTO forgotten FROM gone;
    pages := pg_relation_size('tidings.finished'::regclass) / current_setting('block_size')::int;
END
$$;
