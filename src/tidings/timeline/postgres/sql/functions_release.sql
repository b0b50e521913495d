-- The release: which rows are in a batch, and how they are moved.

-- The slots that may be released now, each with its low-water mark: those for Kafka only if there is room.
CREATE OR REPLACE FUNCTION tidings.open_slots(low_ bigint, kafka_low bigint, room int)
RETURNS TABLE (slot int, low bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT s.slot::int, CASE WHEN s.slot / 3 % 2 = 1 THEN kafka_low ELSE low_ END
    FROM tidings.slot s WHERE room > 0 OR s.slot / 3 % 2 = 0;
END
$$;

-- The rows of the next batch when more is due than it or the outbox holds: the first ones by a virtual time, in which a
-- slot's rows follow each other the faster the larger its share is. Inside a slot what is fresh and what is overdue
-- take turns. Of those for Kafka the first for which there is room.
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
        SELECT slot, low, due AS head,
            (ARRAY[60, 30, 10])[slot % 3 + 1]::float8 / count(*) OVER (PARTITION BY slot % 3) AS weight,
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

-- Choose the next batch where several slots, or what is fresh and what is overdue, have rows: the places of its rows,
-- and of those that belong to recurring schedules (slot, due, arrival). All that is due if the batch holds it and the
-- outbox is not narrow, in fair shares otherwise.
CREATE OR REPLACE FUNCTION tidings.choose(
    lane_ smallint, at bigint, rows_max int, low bigint, kafka_low bigint, room int, room_bytes bigint,
    due_slots int[], lows bigint[], narrow boolean, OUT places tid[], OUT standing bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    total int;
BEGIN
    SELECT count(*) INTO total FROM (
        SELECT 1 FROM unnest(due_slots, lows) AS s(slot, low) CROSS JOIN LATERAL (
            SELECT 1 FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low AND t.due <= at LIMIT rows_max + 1
        ) t LIMIT rows_max + 1
    ) counted;
    IF narrow OR total > rows_max THEN
        SELECT array_agg(f.place), array_agg(ARRAY[f.slot, f.due, f.arrival]) FILTER (WHERE f.n <= 0)
        INTO places, standing FROM tidings.fair(lane_, at, rows_max, low, kafka_low, room, room_bytes) f;
    ELSE
        SELECT array_agg(t.place), array_agg(ARRAY[s.slot, t.due, t.arrival]) FILTER (WHERE t.n <= 0)
        INTO places, standing FROM unnest(due_slots, lows) AS s(slot, low) CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.due, t.arrival, t.n FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low AND t.due <= at
            ORDER BY t.due, t.arrival LIMIT rows_max
        ) t;
    END IF;
END
$$;

-- Lock the rows of a batch: locked rows are left for later, and rows that were changed meanwhile are not found. Returns
-- their places in order of due time, the lateness of those for the log, the size, whether all of them are released to
-- one partition (and to which), and the size of those for Kafka.
CREATE OR REPLACE FUNCTION tidings.lock_chosen(
    lane_ smallint, at bigint, chosen tid[], OUT places tid[], OUT late bigint[], OUT size bigint, OUT topic int,
    OUT part smallint, OUT alike boolean, OUT outgoing bigint
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT array_agg(l.ctid ORDER BY l.due, l.arrival), array_agg(at - l.due) FILTER (WHERE l.leaves AND l.part >= 0),
        sum(l.size), min(l.topic), min(l.part),
        min(l.topic) = max(l.topic) AND min(l.part) = max(l.part) AND bool_and(l.leaves),
        sum(l.size) FILTER (WHERE l.part < 0 AND l.leaves)
    INTO places, late, size, topic, part, alike, outgoing FROM (
        SELECT t.ctid, t.due, t.arrival, t.topic, t.part, t.deadline IS NULL OR t.deadline >= at AS leaves,
            octet_length(t.message) + octet_length(t.id) + 64 AS size
        FROM tidings.timeline t
        WHERE t.ctid = ANY (chosen) AND t.lane = lane_ AND t.due <= at AND t.n > 0 FOR UPDATE SKIP LOCKED
    ) l;
END
$$;

-- The same for the first rows of one slot, selected and locked in one pass, and the rows of recurring schedules among
-- them. It starts with the first row that was seen, after the dead rows that are not vacuumed yet.
CREATE OR REPLACE FUNCTION tidings.lock_first(
    lane_ smallint, at bigint, rows_max int, slot_ int, first bigint, first_arrival bigint,
    OUT places tid[], OUT late bigint[], OUT size bigint, OUT topic int, OUT part smallint, OUT alike boolean,
    OUT outgoing bigint, OUT standing bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT array_agg(l.ctid) FILTER (WHERE l.leaves IS NOT NULL),
        array_agg(at - l.due) FILTER (WHERE l.leaves AND l.part >= 0),
        sum(l.size) FILTER (WHERE l.leaves IS NOT NULL), min(l.topic), min(l.part),
        min(l.topic) = max(l.topic) AND min(l.part) = max(l.part) AND bool_and(l.leaves),
        sum(l.size) FILTER (WHERE l.part < 0 AND l.leaves),
        array_agg(ARRAY[slot_, l.due, l.arrival]) FILTER (WHERE l.leaves IS NULL)
    INTO places, late, size, topic, part, alike, outgoing, standing FROM (
        SELECT t.ctid, t.due, t.arrival, t.topic, t.part,
            CASE WHEN t.n > 0 THEN t.deadline IS NULL OR t.deadline >= at END AS leaves,
            octet_length(t.message) + octet_length(t.id) + 64 AS size
        FROM tidings.timeline t WHERE t.lane = lane_ AND t.slot = slot_ AND (t.due, t.arrival) >= (first, first_arrival)
            AND t.due <= at
        ORDER BY t.due, t.arrival LIMIT rows_max FOR UPDATE SKIP LOCKED
    ) l;
END
$$;

-- Where rows of any kind go: each to the end of its partition, into the outbox, or nowhere because it is missed.
-- Returns the positions in the order of the places, the topics, the missed rows by reason, and the number of rows for
-- the outbox.
CREATE OR REPLACE FUNCTION tidings.position(
    places tid[], following bigint, at bigint,
    OUT positions bigint[], OUT topics int[], OUT missed int[], OUT handed int
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH rows AS MATERIALIZED (
        SELECT p.turn, t.part, t.topic, CASE WHEN t.part < 0 THEN -1 ELSE t.topic END AS series, t.reason,
            t.deadline IS NULL OR t.deadline >= at AS leaves, octet_length(t.message) + octet_length(t.id) + 64 AS size
        FROM unnest(places) WITH ORDINALITY AS p(place, turn) JOIN tidings.timeline t ON t.ctid = p.place
    ), ends AS (
        UPDATE tidings.partition p SET next = p.next + c.rows, bytes = p.bytes + c.size
        FROM (
            SELECT series, part, count(*) AS rows, sum(size) AS size FROM rows WHERE leaves AND part >= 0 GROUP BY 1, 2
        ) c
        WHERE p.topic = c.series AND p.part = c.part RETURNING p.topic AS series, p.part, p.next - c.rows AS base
    ), placed AS (
        SELECT r.*, CASE WHEN r.leaves THEN coalesce(e.base, following) - 1
            + row_number() OVER (PARTITION BY r.series, r.part, r.leaves ORDER BY r.turn) END AS position
        FROM rows r LEFT JOIN ends e ON e.series = r.series AND e.part = r.part
    )
    SELECT array_agg(p.position ORDER BY p.turn), array_agg(DISTINCT p.topic) FILTER (WHERE p.leaves AND p.part >= 0),
        array_agg(p.reason::int) FILTER (WHERE NOT p.leaves), count(*) FILTER (WHERE p.leaves AND p.part < 0)
    INTO positions, topics, missed, handed FROM placed p;
END
$$;

-- Take locked rows off the timeline. They are read by their places once for each table, which costs less than
-- carrying their messages along.
CREATE OR REPLACE FUNCTION tidings.move(places tid[], positions bigint[], at bigint, logged boolean, handed boolean)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF logged THEN
        INSERT INTO tidings.log (topic, part, final, "offset", due, released, generation, n, id, message)
        SELECT t.topic, t.part, true, p.position, t.due, at, t.generation, t.n, t.id, t.message
        FROM unnest(places, positions) AS p(place, position) JOIN tidings.timeline t ON t.ctid = p.place
        WHERE p.position IS NOT NULL AND t.part >= 0;
    END IF;
    IF handed THEN
        INSERT INTO tidings.outbox ("offset", due, released, topic, generation, n, lane, final, id, message, expires)
        SELECT p.position, t.due, at, t.topic, t.generation, t.n, t.lane, true, t.id, t.message,
            CASE t.reason WHEN 1 THEN t.deadline END
        FROM unnest(places, positions) AS p(place, position) JOIN tidings.timeline t ON t.ctid = p.place
        WHERE p.position IS NOT NULL AND t.part < 0;
    END IF;
    INSERT INTO tidings.finished (due, arrival, at, accepted, content, stream, topic, generation, n, lane, part, state,
        reason, id, position, labels)
    SELECT t.due, t.arrival, move.at, t.accepted, t.content, t.stream, t.topic, t.generation, t.n, t.lane, t.part,
        (p.position IS NULL)::int, CASE WHEN p.position IS NULL THEN t.reason ELSE 0 END, t.id, p.position, t.labels
    FROM unnest(places, positions) AS p(place, position) JOIN tidings.timeline t ON t.ctid = p.place;
    DELETE FROM tidings.timeline t WHERE t.ctid = ANY (places);
END
$$;

-- The first of some rows of recurring schedules (slot, due, arrival), up to 8 MB of messages; at least one. Their
-- messages are stored with the schedules, not on the timeline.
CREATE OR REPLACE FUNCTION tidings.bounded(lane_ smallint, places bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT array_agg(ARRAY[b.slot, b.due, b.arrival] ORDER BY b.i) FROM (
            SELECT p.*, sum(p.size) OVER (ORDER BY p.i) - p.size AS before FROM (
                SELECT i, places[i][1] AS slot, places[i][2] AS due, places[i][3] AS arrival, coalesce(
                    (SELECT octet_length(s.message) FROM tidings.standing s WHERE s.arrival = places[i][3]),
                    (SELECT octet_length(t.message) FROM tidings.timeline t WHERE t.lane = lane_
                        AND t.slot = places[i][1] AND t.due = places[i][2] AND t.arrival = places[i][3]),
                    0)::bigint AS size
                FROM generate_subscripts(places, 1) AS i
            ) p
        ) b WHERE b.before < 8388608
    );
END
$$;

-- Move due one-shots from the timeline to the log or the outbox, and store them as finished. Returns the time, the
-- lateness of each, the topics, the missed ones by reason, the bytes, the number of records in the outbox with their
-- first offset and bytes, the selected rows of recurring schedules, which are left to the caller, and the next due times
-- for the log and for Kafka, before which nothing is due.
CREATE OR REPLACE FUNCTION tidings.release(
    lane_ smallint, token_ uuid, given bigint, capped boolean, rows_max int, low bigint,
    kafka_low bigint, room int, room_bytes bigint,
    OUT at bigint, OUT late bigint[], OUT topics int[], OUT missed int[], OUT bytes bigint, OUT handed int,
    OUT handed_from bigint, OUT handed_bytes bigint, OUT standing bigint[], OUT head bigint, OUT kafka_head bigint,
    OUT taken int
) LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET enable_seqscan = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    following bigint;
    seen record;
    batch record;
    narrow boolean;
    alone boolean;
    positions bigint[];
BEGIN
    UPDATE tidings.lane SET turns = turns + 1 WHERE lane.lane = lane_ AND token = token_
    RETURNING outbox_next INTO handed_from;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another node owns this lane' USING ERRCODE = 'TD002';
    END IF;
    at := CASE WHEN capped THEN least(given, tidings.now()) ELSE given END;
    bytes := 0; handed := 0; handed_bytes := 0; taken := 0;
    SELECT array_agg(h.slot) FILTER (WHERE h.leaves) AS slots, array_agg(h.low) FILTER (WHERE h.leaves) AS lows,
        min(h.due) FILTER (WHERE h.leaves) AS first, min(h.arrival) FILTER (WHERE h.leaves) AS first_arrival,
        bool_or(h.kafka) FILTER (WHERE h.leaves) AS kafka,
        min(h.due) FILTER (WHERE NOT h.kafka) AS head, min(h.due) FILTER (WHERE h.kafka) AS kafka_head,
        min(h.due) FILTER (WHERE NOT h.kafka AND NOT h.leaves) AS later,
        min(h.due) FILTER (WHERE h.kafka AND NOT h.leaves) AS kafka_later
    INTO seen FROM (
        SELECT s.slot, s.kafka, s.low, h.due, h.arrival, h.due <= at AND (room > 0 OR NOT s.kafka) AS leaves FROM (
            SELECT u.slot::int AS slot, u.slot / 3 % 2 = 1 AS kafka,
                CASE WHEN u.slot / 3 % 2 = 1 THEN kafka_low ELSE release.low END AS low
            FROM tidings.slot u
        ) s CROSS JOIN LATERAL (
            SELECT t.due, t.arrival FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low ORDER BY t.due, t.arrival LIMIT 1
        ) h
    ) h;
    IF seen.slots IS NULL THEN
        head := seen.head;
        kafka_head := seen.kafka_head;
        RETURN;
    END IF;
    narrow := seen.kafka AND (room < rows_max OR room_bytes < 8388608);
    alone := cardinality(seen.slots) = 1 AND NOT narrow;
    IF alone AND seen.first < at - 999999 THEN
        alone := NOT EXISTS (SELECT 1 FROM tidings.timeline t WHERE t.lane = lane_ AND t.slot = seen.slots[1]
            AND t.due >= at - 999999 AND t.due <= at);
    END IF;
    IF alone THEN
        SELECT * INTO batch FROM tidings.lock_first(lane_, at, rows_max, seen.slots[1], seen.first, seen.first_arrival);
        standing := batch.standing;
    ELSE
        SELECT c.places, c.standing INTO batch FROM tidings.choose(
            lane_, at, rows_max, low, kafka_low, room, room_bytes, seen.slots, seen.lows, narrow) c;
        standing := batch.standing;
        SELECT * INTO batch FROM tidings.lock_chosen(lane_, at, batch.places);
    END IF;
    IF standing IS NOT NULL THEN
        standing := tidings.bounded(lane_, standing);
    END IF;
    IF batch.size > 8388608 THEN
        SELECT * INTO batch FROM tidings.lock_chosen(
            lane_, at, batch.places[1:greatest(1, (cardinality(batch.places) * 8388608 / batch.size)::int)]);
    END IF;
    taken := coalesce(cardinality(batch.places), 0);
    bytes := coalesce(batch.size, 0);
    handed_bytes := coalesce(batch.outgoing, 0);
    late := batch.late;
    IF batch.alike THEN
        following := handed_from;
        IF batch.part >= 0 THEN
            UPDATE tidings.partition p SET next = p.next + taken, bytes = p.bytes + batch.size
            WHERE p.topic = batch.topic AND p.part = batch.part RETURNING p.next - taken INTO following;
            topics := ARRAY[batch.topic];
        ELSE
            handed := taken;
        END IF;
        positions := ARRAY(SELECT generate_series(following, following + taken - 1));
    ELSIF taken > 0 THEN
        SELECT p.positions, p.topics, p.missed, p.handed INTO positions, topics, missed, handed
        FROM tidings.position(batch.places, handed_from, at) p;
    END IF;
    IF taken > 0 THEN
        PERFORM tidings.move(batch.places, positions, at, topics IS NOT NULL, handed > 0);
    END IF;
    IF topics IS NOT NULL THEN
        PERFORM tidings.tell(lane_, topics);
    END IF;
    IF handed > 0 THEN
        UPDATE tidings.lane SET outbox_next = handed_from + handed WHERE lane.lane = lane_;
    END IF;
    IF taken = rows_max THEN -- there may be more of the same age; to look for it would lead over all that has just left
        head := seen.head;
        kafka_head := seen.kafka_head;
    ELSE
        SELECT least(seen.later, min(h.due) FILTER (WHERE s.slot / 3 % 2 = 0)),
            least(seen.kafka_later, min(h.due) FILTER (WHERE s.slot / 3 % 2 = 1))
        INTO head, kafka_head FROM unnest(seen.slots, seen.lows) AS s(slot, low) CROSS JOIN LATERAL (
            SELECT t.due FROM tidings.timeline t
            WHERE t.lane = lane_ AND t.slot = s.slot AND t.due >= s.low ORDER BY t.due LIMIT 1
        ) h;
    END IF;
END
$$;
