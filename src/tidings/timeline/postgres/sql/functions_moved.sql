-- A store that has moved to another place rejects every write, also those of a node that was suspended meanwhile.

CREATE OR REPLACE FUNCTION tidings.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this store has moved' USING ERRCODE = 'TD003';
END
$$;

-- Reject every write from now on, once those in progress have ended; or accept them again. All tables are fenced but
-- those that a transfer itself writes (lane, copier, moved) and the version of the layout (meta). Tables that nodes lock
-- together come first, in the order in which nodes lock them.
CREATE OR REPLACE FUNCTION tidings.fence(up boolean) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT tablename FROM pg_tables
        WHERE schemaname = 'tidings' AND tablename NOT IN ('lane', 'copier', 'moved', 'meta')
        ORDER BY array_position(ARRAY['node', 'source', 'receipt', 'app_user', 'notification', 'delivery', 'suppression',
            'dedupe_key', 'template', 'template_version', 'inbox', 'provider_message', 'rate_limit', 'circuit_breaker',
            'registry', 'timeline', 'standing', 'log', 'outbox', 'held', 'finished', 'api_key'],
            tablename::text), tablename
    LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS has_moved ON tidings.%I', name);
        IF up THEN
            EXECUTE format('CREATE TRIGGER has_moved BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON tidings.%I'
                ' FOR EACH STATEMENT EXECUTE FUNCTION tidings.refuse()', name);
        END IF;
    END LOOP;
END
$$;
