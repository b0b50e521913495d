-- Rows of notifications: read, locked, written and expired by functions, which keep their plans. They differ only in the
-- names of tables and columns, so they are made from the catalog. Tables are locked in the order of this list, and the
-- rows of a table in the order of their keys, by everybody: so there are no deadlocks.
DO $make$
DECLARE
    tables CONSTANT text[] := ARRAY['app_user', 'notification', 'delivery', 'suppression', 'dedupe_key', 'template',
        'template_version', 'inbox', 'provider_message', 'rate_limit', 'circuit_breaker'];
    settings CONSTANT text := $$ SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off
        SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $body$ $$;
    place text;      -- the table
    key text;        -- its key column
    before text;     -- the slot before the first of its keys
    range_ text;     -- the slots of its keys
    join_ text;      -- finds its rows by slots
    parameters text; -- its other columns, as arrays
    columns_ text;
    values_ text;
    sets text;
    get_ text := '';
    lock_ text := '';
    expire_ text := '';
BEGIN
    FOR n IN 1 .. cardinality(tables) LOOP
        place := 'tidings.' || tables[n];
        SELECT attname INTO key FROM pg_attribute WHERE attrelid = place::regclass AND attnum = 2;
        SELECT string_agg(format(', %s_ %s[]', attname, format_type(atttypid, NULL)), '' ORDER BY attnum),
            string_agg(attname || ', ', '' ORDER BY attnum), string_agg(attname || '_[i], ', '' ORDER BY attnum),
            string_agg(format('%s = %s_[i], ', attname, attname), '' ORDER BY attnum)
        INTO parameters, columns_, values_, sets
        FROM pg_attribute WHERE attrelid = place::regclass AND attnum > 4 AND NOT attisdropped AND attname <> 'body';
        before := CASE n WHEN 1 THEN '0' ELSE format('ends[%s]', n - 1) END;
        range_ := format('generate_series(%s + 1, ends[%s])', before, n);
        join_ := format('JOIN %s d ON d.tenant = tenants[i] AND d.%s = names[i]', place, key);

        get_ := get_ || format($$
            IF ends[%s] > %s THEN
                RETURN QUERY SELECT i, d.version, d.until, d.body FROM %s AS i %s WHERE d.until IS NULL OR d.until > now_;
            END IF;
        $$, n, before, range_, join_);
        lock_ := lock_ || format($$
            IF ends[%1$s] > %4$s THEN
                IF shared[%1$s] THEN
                    SELECT slots || array_agg(l.i), versions || array_agg(l.seen) INTO slots, versions FROM (
                        SELECT i, CASE WHEN d.until <= now_ THEN -d.version ELSE d.version END AS seen
                        FROM %2$s AS i %3$s ORDER BY i FOR SHARE OF d) l;
                ELSE
                    SELECT slots || array_agg(l.i), versions || array_agg(l.seen) INTO slots, versions FROM (
                        SELECT i, CASE WHEN d.until <= now_ THEN -d.version ELSE d.version END AS seen
                        FROM %2$s AS i %3$s ORDER BY i FOR UPDATE OF d) l;
                END IF;
            END IF;
        $$, n, range_, join_, before);
        expire_ := expire_ || format($$
            DELETE FROM %1$s WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM %1$s WHERE until <= now_ ORDER BY until LIMIT rows_max FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS gone = ROW_COUNT;
            most := greatest(most, gone);
        $$, place);

        -- Writes rows: first new ones, sorted by key; then existing ones; then deletes the rest. A new row without a body
        -- is a guard: it is not to exist when we commit, so it is made and deleted again, and whoever creates it waits.
        EXECUTE format($$
            CREATE OR REPLACE FUNCTION tidings.write_%s(
                inserts int, updates int, guards boolean, tenants text[], names text[], versions bigint[], untils bigint[],
                bodies bytea[]%s
            ) RETURNS void LANGUAGE plpgsql VOLATILE$$ || settings || $$
            DECLARE
                written int;
            BEGIN
                IF inserts > 0 THEN
                    INSERT INTO %3$s (tenant, %4$s, version, until, %5$s body)
                    SELECT tenants[i], names[i], versions[i], untils[i], %6$s coalesce(bodies[i], '')
                    FROM generate_series(1, inserts) AS i ON CONFLICT (tenant, %4$s) DO NOTHING;
                    GET DIAGNOSTICS written = ROW_COUNT;
                    IF written < inserts THEN
                        RAISE EXCEPTION 'another transaction has created a row' USING ERRCODE = 'serialization_failure';
                    END IF;
                    IF guards THEN
                        DELETE FROM %3$s d USING generate_series(1, inserts) AS i
                        WHERE bodies[i] IS NULL AND d.tenant = tenants[i] AND d.%4$s = names[i];
                    END IF;
                END IF;
                IF updates > 0 THEN
                    UPDATE %3$s d SET version = versions[i], until = untils[i], %7$s body = bodies[i]
                    FROM generate_series(inserts + 1, inserts + updates) AS i
                    WHERE d.tenant = tenants[i] AND d.%4$s = names[i];
                END IF;
                IF cardinality(names) > inserts + updates THEN
                    DELETE FROM %3$s d USING generate_series(inserts + updates + 1, cardinality(names)) AS i
                    WHERE d.tenant = tenants[i] AND d.%4$s = names[i];
                END IF;
            END
            $body$ $$, tables[n], parameters, place, key, columns_, values_, sets);
    END LOOP;

    -- Reads rows by their keys. The keys of table n are those up to ends[n]. It is stable, so it reads one snapshot.
    EXECUTE $$
        CREATE OR REPLACE FUNCTION tidings.get_rows(now_ bigint, ends int[], tenants text[], names text[])
        RETURNS TABLE (slot int, version bigint, until bigint, body bytea) LANGUAGE plpgsql STABLE
        $$ || settings || 'BEGIN' || get_ || 'END $body$';

    -- Locks rows, the keys of each table being sorted, and reserves as many new versions as asked for; returns which keys
    -- have rows, and their versions, of expired ones negative. Rows that are only to stay as they are are shared.
    EXECUTE $$
        CREATE OR REPLACE FUNCTION tidings.lock_rows(
            now_ bigint, puts int, ends int[], shared boolean[], tenants text[], names text[],
            OUT slots int[], OUT versions bigint[], OUT fresh bigint[]
        ) LANGUAGE plpgsql VOLATILE
        $$ || settings || 'BEGIN' || lock_ || $$
            fresh := ARRAY(SELECT nextval('tidings.row_version') FROM generate_series(1, puts));
        END $body$ $$;

    -- Deletes some expired rows of each table, except locked ones; returns the most that were deleted from one table.
    EXECUTE $$
        CREATE OR REPLACE FUNCTION tidings.expire_rows(now_ bigint, rows_max int, OUT most bigint) LANGUAGE plpgsql VOLATILE
        $$ || settings || 'DECLARE gone bigint; BEGIN most := 0;' || expire_ || 'END $body$';
END
$make$;

-- Rejects changes of documents once they are copied to tables.
CREATE OR REPLACE FUNCTION tidings.refuse_documents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a newer Tidings uses this store and has copied its documents: upgrade this node';
END
$$;
