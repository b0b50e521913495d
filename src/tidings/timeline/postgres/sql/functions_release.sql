-- The release: which rows leave in one batch, and how they are moved.

-- The slots that may leave now, each with the low-water mark to look from: those of Kafka only if there is room.
CREATE OR REPLACE FUNCTION tidings.open_slots(low_ bigint, kafka_low bigint, room int)
RETURNS TABLE (slot int, low bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT s.slot, CASE WHEN s.slot / 3 % 2 = 1 THEN kafka_low ELSE low_ END
    FROM generate_series(0, tidings.slots() - 1) AS s(slot) WHERE room > 0 OR s.slot / 3 % 2 = 0;
END
$$;

-- The rows of the next batch when more is due than it or the outbox holds: the first ones by a virtual time, in which a
-- slot's rows follow each other the faster the larger its share is. Inside a slot what is fresh and what is overdue take
-- turns. Of those for Kafka the first for which there is room.
CREATE OR REPLACE FUNCTION tidings.fair(
    lane_ smallint, now_ bigint, rows_max int, low_ bigint, kafka_low bigint, room int, room_bytes bigint
) RETURNS TABLE (place tid, n int, slot int, due bigint, arrival bigint, size int) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH heads AS MATERIALIZED (
        SELECT s.slot, s.low, h.due FROM tidings.open_slots(low_, kafka_low, room) AS s
        CROSS JOIN LATERAL (
            SELECT t.due FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low AND t.due <= now_ ORDER BY t.due LIMIT 1
        ) h
    ), shares AS MATERIALIZED (
        SELECT slot, low, due AS head, (ARRAY[60, 30, 10])[slot % 3 + 1]::float8 / count(*) OVER (PARTITION BY slot % 3) AS weight,
            CASE WHEN count(*) OVER () <= 8 THEN rows_max
                 ELSE greatest(1, least(rows_max, 8 * rows_max / count(*) OVER ())) END AS most
        FROM heads
    ), rows AS (
        SELECT s.slot, s.head, s.weight, r.*,
            row_number() OVER (PARTITION BY s.slot, r.fresh ORDER BY r.due, r.arrival) AS rank,
            count(*) FILTER (WHERE r.fresh) OVER (PARTITION BY s.slot) AS fresh_rows,
            count(*) FILTER (WHERE NOT r.fresh) OVER (PARTITION BY s.slot) AS old_rows
        FROM shares s CROSS JOIN LATERAL (
            (SELECT t.ctid AS place, t.n, t.due, t.arrival, octet_length(t.message) AS size, true AS fresh
             FROM tidings.timeline t
             WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= greatest(s.low, now_ - 999999) AND t.due <= now_
             ORDER BY t.due, t.arrival LIMIT s.most)
            UNION ALL
            (SELECT t.ctid, t.n, t.due, t.arrival, octet_length(t.message), false FROM tidings.timeline t
             WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low AND t.due < now_ - 999999
             ORDER BY t.due, t.arrival LIMIT s.most)
        ) r
    ), dealt AS (
        SELECT place, n, slot, due, arrival, size, slot / 3 % 2 = 1 AS to_kafka, row_number() OVER (
            ORDER BY (CASE WHEN fresh THEN rank + least(rank - 1, old_rows) ELSE rank + least(rank, fresh_rows) END - 1)
                / weight, head, due, arrival) AS turn
        FROM rows ORDER BY turn LIMIT CASE WHEN room < rows_max OR room_bytes < 8388608 THEN NULL ELSE rows_max END
    ), bounded AS (
        SELECT d.*, count(*) FILTER (WHERE to_kafka) OVER turns AS going,
            sum(d.size + 64 + CASE WHEN d.n = 0 AND d.to_kafka AND room_bytes < 8388608 THEN
                (SELECT octet_length(s.message) FROM tidings.standing s WHERE s.arrival = d.arrival) ELSE 0 END
            ) FILTER (WHERE to_kafka) OVER (turns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM dealt d WINDOW turns AS (ORDER BY turn)
    )
    SELECT place, n, slot, due, arrival, size FROM bounded
    WHERE NOT to_kafka OR (going <= room AND coalesce(before, 0) < room_bytes) ORDER BY turn LIMIT rows_max;
END
$$;

-- Choose the next batch: the places of its rows, and of those that belong to standing schedules (slot, due, arrival).
-- All that is due if the batch and the outbox hold it, or if it is all of one slot and of one age; in fair shares otherwise.
CREATE OR REPLACE FUNCTION tidings.choose(
    lane_ smallint, at bigint, rows_max int, low bigint, kafka_low bigint, room int, room_bytes bigint, OUT places tid[], OUT standing bigint[], OUT size bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    due_slots int[];
    lows bigint[];
    narrow boolean;
    fresh int;
    old int;
    total int;
BEGIN
    SELECT array_agg(s.slot), array_agg(s.low), count(f.due), count(o.due), bool_or(s.slot / 3 % 2 = 1)
    INTO due_slots, lows, fresh, old, narrow FROM tidings.open_slots(low, kafka_low, room) AS s
    LEFT JOIN LATERAL (
        SELECT t.due FROM tidings.timeline t WHERE t.lane = lane_ AND t.slot = s.slot
          AND t.due >= greatest(s.low, at - 999999) AND t.due <= at ORDER BY t.due LIMIT 1
    ) f ON true
    LEFT JOIN LATERAL (
        SELECT t.due FROM tidings.timeline t WHERE t.lane = lane_ AND t.slot = s.slot
          AND t.due >= s.low AND t.due < at - 999999 ORDER BY t.due LIMIT 1
    ) o ON true
    WHERE f.due IS NOT NULL OR o.due IS NOT NULL;
    IF fresh + old > 1 THEN
        SELECT count(*) INTO total FROM (
            SELECT 1 FROM unnest(due_slots, lows) AS s(slot, low) CROSS JOIN LATERAL (
                SELECT 1 FROM tidings.timeline t
                WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low AND t.due <= at LIMIT rows_max + 1
            ) t LIMIT rows_max + 1
        ) counted;
    END IF;
    IF total > rows_max OR (narrow AND (room < rows_max OR room_bytes < 8388608)) THEN
        SELECT array_agg(f.place), array_agg(ARRAY[f.slot, f.due, f.arrival]) FILTER (WHERE f.n <= 0), sum(f.size)
        INTO places, standing, size FROM tidings.fair(lane_, at, rows_max, low, kafka_low, room, room_bytes) f;
    ELSE
        SELECT array_agg(t.place), array_agg(ARRAY[s.slot, t.due, t.arrival]) FILTER (WHERE t.n <= 0), sum(t.size)
        INTO places, standing, size FROM unnest(due_slots, lows) AS s(slot, low) CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.due, t.arrival, t.n, octet_length(t.message) AS size FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low AND t.due <= at
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
-- outbox, from which offset on and their bytes, the rows of standing schedules that were chosen too and are left to the
-- caller, and what is due next, for the log and for Kafka.
CREATE OR REPLACE FUNCTION tidings.release(
    lane_ smallint, token_ uuid, given bigint, capped boolean, rows_max int, low bigint,
    kafka_low bigint, room int, room_bytes bigint,
    OUT at bigint, OUT late bigint[], OUT topics int[], OUT missed int[], OUT bytes bigint, OUT handed int,
    OUT handed_from bigint, OUT handed_bytes bigint, OUT standing bigint[], OUT head bigint, OUT kafka_head bigint,
    OUT taken int
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
    handed_from := following;
    at := CASE WHEN capped THEN least(given, tidings.now()) ELSE given END;
    SELECT c.places, c.standing, c.size INTO places, standing, size 
    FROM tidings.choose(lane_, at, rows_max, low, kafka_low, room, room_bytes) c;
    IF size > 8388608 THEN
        places := places[1:greatest(1, (cardinality(places) * 8388608 / size)::int)];
    END IF;
    -- what somebody is changing is left for later; what was changed meanwhile is no longer there
    SELECT array_agg(l.ctid) AS places, count(*)::int AS rows, coalesce(sum(l.size), 0) AS size, min(l.topic) AS topic,
        min(l.part) AS part, min(l.topic) = max(l.topic) AND min(l.part) = max(l.part) AND bool_and(l.leaves) AS one,
        coalesce(sum(l.size) FILTER (WHERE l.part < 0 AND l.leaves), 0) AS outgoing
    INTO alike FROM (
        SELECT t.ctid, t.topic, t.part, t.deadline IS NULL OR t.deadline >= at AS leaves,
            octet_length(t.message) + octet_length(t.id) + 64 AS size
        FROM tidings.timeline t
        WHERE t.ctid = ANY (places) AND t.lane = lane_ AND t.due <= at AND t.n > 0 FOR UPDATE SKIP LOCKED
    ) l;
    taken := alike.rows;
    bytes := alike.size;
    handed_bytes := alike.outgoing;
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
    IF topics IS NOT NULL THEN
        PERFORM tidings.tell(lane_, topics);
    END IF;
    IF handed > 0 THEN
        UPDATE tidings.lane SET outbox_next = following + handed WHERE lane.lane = lane_;
    END IF;
    SELECT min(h.due) FILTER (WHERE h.way >= 0), min(h.due) FILTER (WHERE h.way < 0) INTO head, kafka_head
    FROM tidings.heads(ARRAY[lane_, -1 - lane_]::smallint[], ARRAY[low, kafka_low]) h;
END
$$;
