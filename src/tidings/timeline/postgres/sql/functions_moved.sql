-- A store that has moved to another place: whoever still writes to it, a node that stood still meanwhile too, is refused.

CREATE OR REPLACE FUNCTION tidings.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this store has moved' USING ERRCODE = 'TD003';
END
$$;

-- Refuse every write from now on, once those under way have ended; or none.
CREATE OR REPLACE FUNCTION tidings.fence(up boolean) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['node', 'source', 'receipt', 'registry', 'timeline', 'standing', 'log', 'outbox', 'held',
            'finished', 'api_key', 'document'] LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS has_moved ON tidings.%I', name);
        IF up THEN
            EXECUTE format('CREATE TRIGGER has_moved BEFORE INSERT OR UPDATE OR DELETE ON tidings.%I'
                ' FOR EACH STATEMENT EXECUTE FUNCTION tidings.refuse()', name);
        END IF;
    END LOOP;
END
$$;
