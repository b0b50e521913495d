-- Rows that are due later. place = bucket * 2^41 + arrival, a bucket being the quarter of an hour since the epoch at which its
-- time begins: all rows of a distant day are in its first bucket, in order of arrival.
--
-- Rows that arrive in bulk are stored in parcels (packed_rows.py), which never overlap inside a bucket. Single rows, and
-- pointers to recurring schedules, which keep an old arrival, are in `far`.

-- name: insert_parcels
-- Parcels as blobs: place 1-20, bytes of heads 21-28, then heads and bodies.
INSERT INTO parcel (place, heads, bodies)
SELECT CAST(substr(value, 1, 20) AS INTEGER), substr(value, 29, substr(value, 21, 8)), substr(value, 29 + substr(value, 21, 8))
FROM carray(?1);

-- name: insert_one
-- One row; the third value is its place.
INSERT INTO far (stream, due, place, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete
-- Delete one row.
DELETE FROM far WHERE place = ?;

-- name: row
-- Read one row.
SELECT stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM far WHERE place = ?;

-- name: parcel
-- The parcel of its bucket that may have a place.
SELECT place, heads FROM parcel WHERE place >= ?1 AND place <= ?2 ORDER BY place DESC LIMIT 1;

-- name: body
-- One body of a parcel: which, from where (counted from 1), how long.
SELECT substr(bodies, ?2, ?3) FROM parcel WHERE place = ?1;

-- name: whole
-- Read one parcel.
SELECT heads, bodies FROM parcel WHERE place = ?;

-- name: delete_parcel
-- Delete one parcel.
DELETE FROM parcel WHERE place = ?;

-- name: update_parcel
-- Replace the contents of a parcel.
UPDATE parcel SET heads = ?2, bodies = ?3 WHERE place = ?1;

-- name: first_from
-- The first place from a given one on that has a row.
SELECT min(place) FROM (
    SELECT min(place) AS place FROM far WHERE place >= ?1 UNION ALL SELECT min(place) FROM parcel WHERE place >= ?1
);

-- name: parcels
-- The parcels of a span, in order.
SELECT place, heads, bodies FROM parcel WHERE place >= ?1 AND place < ?2 ORDER BY place;

-- name: heads
-- The same without their bodies.
SELECT place, heads FROM parcel WHERE place >= ?1 AND place < ?2 ORDER BY place;

-- name: clear_parcels
-- Delete the parcels of a slice.
DELETE FROM parcel WHERE place >= ?1 AND place <= ?2;

-- name: slice
-- The next few rows of a span, and how large they are.
SELECT place, length(message) FROM far WHERE place >= ?1 AND place < ?2 ORDER BY place LIMIT ?3;

-- name: last_before
-- The last parcel before a place.
SELECT max(place) FROM parcel WHERE place < ?1;

-- name: near_heads
-- The first due time of each stream in a slice that moves to `near`.
SELECT stream, min(due) FROM far WHERE place >= ?1 AND place <= ?2 AND due < ?3 GROUP BY stream;

-- name: to_near
-- Move the rows of a slice that are due soon.
INSERT INTO near (arrival, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT place & 2199023255551, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM far WHERE place >= ?1 AND place <= ?2 AND due < ?3;

-- name: to_quarters
-- Move the rows of a slice that are due later to their quarter of an hour.
INSERT INTO far (place, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT (min(due / 900000000, 4194303) << 41) | (place & 2199023255551), due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM far WHERE place >= ?1 AND place <= ?2 AND due >= ?3;

-- name: clear
-- Delete the rows of a slice that are due from a given time on.
DELETE FROM far WHERE place >= ?1 AND place <= ?2 AND due >= ?3;
