-- Consumer groups: one step is one call.

-- Store a change of a group unless another transaction has changed it; returns whether it was stored. Committed offsets
-- are part of it, and durable at once; members need not be: after a crash of the server they join again. Versions start
-- at random, so that those of a group that is created again never equal those of the former one.
CREATE OR REPLACE FUNCTION tidings.keep_roster(
    tenant_ text, topic_ text, name_ text, expected bigint, until_ bigint, state_ bytea, told text, number int,
    parts smallint[], offsets bigint[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
BEGIN
    IF expected = 0 THEN
        DELETE FROM tidings.roster WHERE tenant = tenant_ AND until < tidings.now() - 60000000;
        INSERT INTO tidings.roster (tenant, topic, name, version, until, state)
        VALUES (tenant_, topic_, name_, 1 + floor(random() * (1::bigint << 60))::bigint, until_, state_)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE tidings.roster SET version = version + 1, until = until_, state = state_
        WHERE tenant = tenant_ AND topic = topic_ AND name = name_ AND version = expected;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF parts IS NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSE
        INSERT INTO tidings.committed (topic, name, part, next)
        SELECT number, name_, parts[i], offsets[i] FROM generate_series(1, cardinality(parts)) AS i
        ON CONFLICT (topic, name, part) DO UPDATE SET next = excluded.next;
    END IF;
    IF told IS NOT NULL THEN
        PERFORM pg_notify('tidings', told);
    END IF;
    RETURN true;
END
$$;
