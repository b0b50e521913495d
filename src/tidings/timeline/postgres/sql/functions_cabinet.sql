-- Documents: changed in groups, each completely or not at all.

-- Each group of changes ends with the number of its last one; a change names its document by its slot among the keys, and
-- removes it where it has no body, or leaves it as it is where it has no tenant. The tags of a change are those from
-- `tags_first` on, up to those of the next. The result of a group that was not applied is 0; of one that was, the
-- version of its last put.
--
-- All existing documents are locked first, in the order of their keys. Groups are decided in memory, each on the result
-- of those before it, and the final state is written once. New documents are written first, again in the order of their
-- keys, so that there are no deadlocks. If another transaction has just created one of them, everything is rolled back
-- (serialization_failure) and can be repeated.
CREATE OR REPLACE FUNCTION tidings.change_documents(
    now_ bigint, keys uuid[], group_ends int[], slots int[], expecteds bigint[], tenants bytea[], kinds bytea[],
    names bytea[], bodies bytea[], orders bigint[], untils bigint[], tags_ bytea[], tags_first int[], shelves_ uuid[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    size int := cardinality(keys);
    versions bigint[] := array_fill(0::bigint, ARRAY[size]); -- by slot, the current versions; 0: none
    given bigint[] := array_fill(0::bigint, ARRAY[size]);    -- by slot, the versions to be written
    known boolean[] := array_fill(false, ARRAY[size]);       -- by slot, whether there is a row
    last int[] := array_fill(0, ARRAY[size]);                -- by slot, the change that counts in the end
    answers bigint[] := array_fill(0::bigint, ARRAY[cardinality(group_ends)]);
    begins int := 1;
    fits boolean;
    found record;
    moved int[];
    wanted bigint;
    written bigint;
BEGIN
    FOR found IN
        SELECT s.slot, d.version, d.until FROM generate_series(1, size) AS s(slot)
        JOIN tidings.document d ON d.key = keys[s.slot] ORDER BY s.slot FOR UPDATE OF d
    LOOP
        known[found.slot] := true;
        IF found.until IS NULL OR found.until > now_ THEN
            versions[found.slot] := found.version;
        END IF;
    END LOOP;
    FOR g IN 1 .. cardinality(group_ends) LOOP
        fits := true;
        FOR i IN begins .. group_ends[g] LOOP
            IF expecteds[i] <> -1 AND expecteds[i] <> versions[slots[i]] THEN
                fits := false;
                EXIT;
            END IF;
        END LOOP;
        IF fits THEN
            answers[g] := 1;
            FOR i IN begins .. group_ends[g] LOOP
                CONTINUE WHEN tenants[i] IS NULL;
                last[slots[i]] := i;
                versions[slots[i]] := 0;
                IF bodies[i] IS NOT NULL THEN
                    given[slots[i]] := nextval('tidings.document_version');
                    answers[g] := given[slots[i]];
                    IF untils[i] IS NULL OR untils[i] > now_ THEN
                        versions[slots[i]] := given[slots[i]];
                    END IF;
                END IF;
            END LOOP;
        END IF;
        begins := group_ends[g] + 1;
    END LOOP;

    SELECT count(*) INTO wanted FROM generate_series(1, size) AS s
    WHERE last[s] > 0 AND NOT known[s] AND bodies[last[s]] IS NOT NULL;
    IF wanted > 0 THEN
        INSERT INTO tidings.document (key, version, "order", until, shelves, tenant, kind, name, tags, body)
        SELECT keys[s], given[s], orders[last[s]], untils[last[s]],
            shelves_[tags_first[last[s]]:tags_first[last[s] + 1] - 1], tenants[last[s]], kinds[last[s]], names[last[s]],
            tags_[last[s]], bodies[last[s]]
        FROM generate_series(1, size) AS s WHERE last[s] > 0 AND NOT known[s] AND bodies[last[s]] IS NOT NULL ORDER BY s
        ON CONFLICT (key) DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < wanted THEN
            RAISE EXCEPTION 'another call was quicker to make a document' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;

    -- documents whose tags change
    moved := ARRAY(
        SELECT s.slot FROM generate_series(1, size) AS s(slot) JOIN tidings.document d ON d.key = keys[s.slot]
        WHERE last[s.slot] > 0 AND known[s.slot] AND (bodies[last[s.slot]] IS NULL OR d."order" <> orders[last[s.slot]]
            OR d.shelves <> shelves_[tags_first[last[s.slot]]:tags_first[last[s.slot] + 1] - 1])
    );
    IF cardinality(moved) > 0 THEN
        DELETE FROM tidings.tagged t USING (
            SELECT unnest(d.shelves) AS shelf, d."order", d.name
            FROM unnest(moved) AS m(slot) JOIN tidings.document d ON d.key = keys[m.slot]
        ) o WHERE t.shelf = o.shelf AND t."order" = o."order" AND t.name = o.name;
        DELETE FROM tidings.document d USING unnest(moved) AS m(slot)
        WHERE d.key = keys[m.slot] AND bodies[last[m.slot]] IS NULL;
    END IF;
    UPDATE tidings.document d SET version = given[s.slot], "order" = orders[last[s.slot]], until = untils[last[s.slot]],
        shelves = shelves_[tags_first[last[s.slot]]:tags_first[last[s.slot] + 1] - 1], tags = tags_[last[s.slot]],
        body = bodies[last[s.slot]]
    FROM generate_series(1, size) AS s(slot)
    WHERE d.key = keys[s.slot] AND known[s.slot] AND last[s.slot] > 0 AND bodies[last[s.slot]] IS NOT NULL;
    INSERT INTO tidings.tagged (shelf, "order", name, key)
    SELECT shelves_[t], orders[last[s]], names[last[s]], keys[s] FROM generate_series(1, size) AS s
    CROSS JOIN LATERAL generate_series(tags_first[last[s]], tags_first[last[s] + 1] - 1) AS t
    WHERE last[s] > 0 AND bodies[last[s]] IS NOT NULL AND (NOT known[s] OR s = ANY (moved));
    RETURN answers;
END
$$;

-- Delete some expired documents; returns how many. Locked ones are left for later.
CREATE OR REPLACE FUNCTION tidings.expire_documents(now_ bigint, rows_max int) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    gone uuid[] := ARRAY(
        SELECT d.key FROM tidings.document d WHERE d.until <= now_ ORDER BY d.until LIMIT rows_max FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(gone) > 0 THEN
        DELETE FROM tidings.tagged t USING (
            SELECT unnest(d.shelves) AS shelf, d."order", d.name FROM tidings.document d WHERE d.key = ANY (gone)
        ) o WHERE t.shelf = o.shelf AND t."order" = o."order" AND t.name = o.name;
        DELETE FROM tidings.document d WHERE d.key = ANY (gone);
    END IF;
    RETURN cardinality(gone);
END
$$;
