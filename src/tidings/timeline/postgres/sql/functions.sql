-- Functions that do their work in one round trip, including the COMMIT: each call is its own transaction. They wait for
-- a lock for 2 s at most, so that no lane is blocked for long.

-- Functions in PL/pgSQL keep their plans; those in SQL would be planned in every call.

-- The clock of the fleet.
CREATE OR REPLACE FUNCTION tidings.now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
END
$$;

-- The key of an id.
CREATE OR REPLACE FUNCTION tidings.key(tenant text, id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(substring(
        sha256(convert_to(tenant, 'UTF8') || '\x00'::bytea || convert_to(id, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid
$$;

-- When each route has work to do, from its low-water mark on. A lane has two: its number is the route to the log, the
-- complement of its number the route to Kafka.
CREATE OR REPLACE FUNCTION tidings.heads(ways smallint[], lows bigint[])
RETURNS TABLE (way smallint, due bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT w.way, min(h.due) FROM unnest(ways, lows) AS w(way, low) CROSS JOIN tidings.slot s
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
    INSERT INTO tidings.slot SELECT DISTINCT stream % 1536 AS slot FROM unnest(streams) AS stream ORDER BY slot
    ON CONFLICT DO NOTHING;
    IF told IS NOT NULL THEN
        PERFORM pg_notify('tidings', told);
    END IF;
END
$$;

-- Whether a lease is valid. One that ends much later than its duration allows was given before the clock was set back.
CREATE OR REPLACE FUNCTION tidings.runs(until bigint, lease bigint, now_ bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT until > now_ AND until <= now_ + 2 * lease
$$;

-- The lanes without a living owner, with their tokens, which are compared when a lane is taken.
CREATE OR REPLACE FUNCTION tidings.free_lanes(now_ bigint) RETURNS TABLE (lane smallint, token uuid)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT l.lane, l.token FROM tidings.lane l WHERE l.token IS NULL OR NOT EXISTS (
        SELECT 1 FROM tidings.node n WHERE n.node = l.node AND tidings.runs(n.until, n.lease, now_)
    ) AND NOT EXISTS (
        SELECT 1 FROM tidings.copier c WHERE c.node = l.node AND tidings.runs(c.until, c.lease, now_)
    );
END
$$;

-- Renew the leases of a node, give back lanes beyond its share, and take free lanes up to it. Shares are even among the
-- nodes with the role dispatch; others only report that they are alive. Neither renewing nor taking waits for a release:
-- a node has its own row, and locked lanes are left for the next time.
CREATE OR REPLACE FUNCTION tidings.acquire(node_ uuid, lease_ bigint, roles_ text[], report_ text)
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
    INSERT INTO tidings.node AS n (node, since, until, lease, roles, report)
    VALUES (node_, now_, now_ + lease_, lease_, roles_, report_)
    ON CONFLICT (node) DO UPDATE SET
        until = excluded.until, lease = excluded.lease, roles = excluded.roles, report = excluded.report;
    DELETE FROM tidings.node n WHERE n.node IN (
        SELECT o.node FROM tidings.node o WHERE o.until < now_ - 60000000 FOR UPDATE SKIP LOCKED);
    IF 'dispatch' = ANY (roles_) THEN
        SELECT count(*) FILTER (WHERE n.node < node_), count(*) INTO place, nodes
        FROM tidings.node n WHERE tidings.runs(n.until, n.lease, now_) AND 'dispatch' = ANY (n.roles);
        SELECT count(*) INTO total FROM tidings.lane;
        share := total / nodes + (place < total % nodes)::int;
    END IF;
    SELECT count(*) INTO mine FROM tidings.lane l WHERE l.node = node_;
    IF mine > share THEN
        PERFORM tidings.give_back(node_, mine - share);
    ELSIF mine < share THEN
        UPDATE tidings.lane l SET token = gen_random_uuid(), node = node_, since = now_ WHERE l.lane IN (
            SELECT o.lane FROM tidings.lane o
            JOIN tidings.free_lanes(now_) f ON f.lane = o.lane AND f.token IS NOT DISTINCT FROM o.token
            ORDER BY o.lane LIMIT share - mine FOR UPDATE OF o SKIP LOCKED);
    END IF;
    RETURN QUERY SELECT l.lane, l.token, l.outbox_first FROM tidings.lane l WHERE l.node = node_ ORDER BY l.lane;
END
$$;

-- Give back some lanes that are not locked, the last ones taken first. If all are locked, wait for the release of one
-- lane, but not for long: there is a next time. The waiting transaction has locked nothing else.
CREATE OR REPLACE FUNCTION tidings.give_back(node_ uuid, count_ int) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '500ms' AS $$
DECLARE
    given smallint[] := ARRAY(
        SELECT l.lane FROM tidings.lane l WHERE l.node = node_
        ORDER BY l.since DESC, l.lane DESC LIMIT count_ FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(given) = 0 THEN
        given := ARRAY(
            SELECT l.lane FROM tidings.lane l WHERE l.node = node_ ORDER BY l.since DESC, l.lane DESC LIMIT 1 FOR UPDATE);
    END IF;
    UPDATE tidings.lane l SET token = NULL, node = NULL WHERE l.lane = ANY (given) AND l.node = node_;
    PERFORM pg_notify('tidings', 'free');
EXCEPTION WHEN lock_not_available THEN
    NULL;
END
$$;

-- Give up all lanes of a node that stops. Locked lanes become free when their transactions end.
CREATE OR REPLACE FUNCTION tidings.resign(node_ uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
BEGIN
    DELETE FROM tidings.node WHERE node = node_;
    UPDATE tidings.lane SET token = NULL, node = NULL WHERE lane IN (
        SELECT l.lane FROM tidings.lane l WHERE l.node = node_ ORDER BY l.lane FOR UPDATE SKIP LOCKED);
    PERFORM pg_notify('tidings', 'free');
END
$$;

-- The first step of every write of a lane: it waits for writes in progress, and fails if another node owns the lane.
CREATE OR REPLACE FUNCTION tidings.own(lane_ smallint, token_ uuid) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    following bigint;
BEGIN
    UPDATE tidings.lane SET turns = turns + 1 WHERE lane = lane_ AND token = token_
    RETURNING outbox_next INTO following;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another node owns this lane' USING ERRCODE = 'TD002';
    END IF;
    RETURN following;
END
$$;
