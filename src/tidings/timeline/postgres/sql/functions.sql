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
    RETURN (SELECT coalesce(least(max(tenant) * 6 + 6, 1536), 0) FROM tidings.tenant);
END
$$;

-- Under which key an id is known.
CREATE OR REPLACE FUNCTION tidings.key(tenant text, id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(substring(
        sha256(convert_to(tenant, 'UTF8') || '\x00'::bytea || convert_to(id, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid
$$;

-- When each way has work to do, looking from a low-water mark on. A lane has two: its number is the way to the log, the
-- complement of its number the way to Kafka.
CREATE OR REPLACE FUNCTION tidings.heads(ways smallint[], lows bigint[])
RETURNS TABLE (way smallint, due bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    slots int := tidings.slots();
BEGIN
    RETURN QUERY SELECT w.way, min(h.due) FROM unnest(ways, lows) AS w(way, low)
    CROSS JOIN generate_series(0, slots - 1) AS s(slot)
    CROSS JOIN LATERAL (
        SELECT t.due FROM tidings.timeline t
        WHERE t.lane = greatest(w.way, -1 - w.way) AND t.slot = s.slot AND t.due >= w.low ORDER BY t.due LIMIT 1
    ) h
    WHERE (w.way < 0) = (s.slot / 3 % 2 = 1)
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
    SELECT dues[i], arrivals[i], now_, contents[i], streams[i], topics[i], 1, 1, lanes[i], streams[i] % 1536, parts[i],
        reasons[i], ids[i], messages[i], deadlines[i], labels_[i]
    FROM generate_series(1, cardinality(dues)) AS i;
    IF told IS NOT NULL THEN
        PERFORM pg_notify('tidings', told);
    END IF;
END
$$;

-- Renew a node's leases, give back what is more than its share, take what is free up to it. Shares are even among those
-- that dispatch; who does not only says that it lives.
CREATE OR REPLACE FUNCTION tidings.acquire(node_ uuid, lease bigint, roles_ text[], report_ text)
RETURNS TABLE (lane smallint, token uuid, outbox_first bigint)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    now_ bigint := tidings.now();
    place int;
    nodes int;
    total int;
    share int := 0;
    mine int;
BEGIN
    INSERT INTO tidings.node AS n (node, since, until, roles, report) VALUES (node_, now_, now_ + lease, roles_, report_)
    ON CONFLICT (node) DO UPDATE SET until = excluded.until, roles = excluded.roles, report = excluded.report;
    DELETE FROM tidings.node WHERE until < now_ - 60000000;
    IF 'dispatch' = ANY (roles_) THEN
        SELECT count(*) FILTER (WHERE n.node < node_), count(*) INTO place, nodes
        FROM tidings.node n WHERE n.until > now_ AND 'dispatch' = ANY (n.roles);
        SELECT count(*) INTO total FROM tidings.lane;
        share := total / nodes + (place < total % nodes)::int;
    END IF;
    PERFORM 1 FROM tidings.lane l WHERE l.node = node_ ORDER BY l.lane FOR UPDATE; -- in the order of everybody
    UPDATE tidings.lane l SET until = now_ + lease WHERE l.node = node_;
    GET DIAGNOSTICS mine = ROW_COUNT;
    IF mine > share THEN
        UPDATE tidings.lane l SET token = NULL, node = NULL, until = 0 WHERE l.lane IN (
            SELECT o.lane FROM tidings.lane o WHERE o.node = node_ ORDER BY o.since DESC, o.lane DESC LIMIT mine - share);
        PERFORM pg_notify('tidings', 'free');
    ELSIF mine < share THEN
        UPDATE tidings.lane l SET token = gen_random_uuid(), node = node_, since = now_, until = now_ + lease
        WHERE l.lane IN (
            SELECT o.lane FROM tidings.lane o WHERE o.token IS NULL OR o.until <= now_
            ORDER BY o.lane LIMIT share - mine FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY SELECT l.lane, l.token, l.outbox_first FROM tidings.lane l WHERE l.node = node_ ORDER BY l.lane;
END
$$;

-- Hand over everything that a node owns.
CREATE OR REPLACE FUNCTION tidings.resign(node_ uuid) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
BEGIN
    PERFORM 1 FROM tidings.lane l WHERE l.node = node_ ORDER BY l.lane FOR UPDATE;
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
