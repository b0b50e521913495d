-- What is due later: a table for each day, named by its number since the epoch. In one table for all days every
-- insert would fall into the middle of the tree, and splitting full pages there costs more than the insert itself.
--
-- place = bucket * 2^41 + arrival, a bucket being the quarter of an hour since the epoch at which its time begins: all
-- rows of a distant day stand in its first bucket, in order of arrival, so that every insert is an append.

-- name: create
-- A new day.
CREATE TABLE {table} (
    place INTEGER PRIMARY KEY,
    due INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    reason INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    n INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    content BLOB NOT NULL,
    id TEXT NOT NULL,
    labels TEXT,
    message BLOB NOT NULL
);

-- name: drop
-- A day that is over.
DROP TABLE {table};

-- name: days
-- The days that have a table.
SELECT CAST(substr(name, 5) AS INTEGER) FROM sqlite_schema WHERE type = 'table' AND name GLOB 'far_[0-9]*' ORDER BY 1;

-- name: insert
-- Append rows to their buckets; a row is a blob as rows.sql describes it.
INSERT INTO {table} (place, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT CAST(substr(value, 1, 8) AS INTEGER) << 41 | CAST(substr(value, 9, 16) AS INTEGER),
       CAST(substr(value, 25, 16) AS INTEGER),
       CAST(substr(value, 41, 8) AS INTEGER),
       CAST(substr(value, 49, 8) AS INTEGER),
       CAST(substr(value, 57, 16) AS INTEGER),
       CAST(substr(value, 93, 1) AS INTEGER),
       1,
       1,
       ?2,
       substr(value, 101, 16),
       CAST(substr(value, 117, substr(value, 94, 3)) AS TEXT),
       CASE WHEN substr(value, 97, 4) = x'30303030' THEN NULL
            ELSE CAST(substr(value, 117 + substr(value, 94, 3), substr(value, 97, 4)) AS TEXT)
       END,
       substr(value, 117 + substr(value, 94, 3) + substr(value, 97, 4))
FROM carray(?1);

-- name: insert_one
-- One row; the third value is its place.
INSERT INTO {table} (stream, due, place, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete
-- One row.
DELETE FROM {table} WHERE place = ?;

-- name: row
-- One row.
SELECT stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM {table} WHERE place = ?;

-- name: first
-- The first place that holds a row.
SELECT min(place) FROM {table};

-- name: slice
-- The last place of the next few rows of a span.
SELECT max(place) FROM (SELECT place FROM {table} WHERE place >= ?1 AND place < ?2 ORDER BY place LIMIT ?3);

-- name: near_heads
-- When the first row of each stream is due, of a slice that comes near.
SELECT stream, min(due) FROM {table} WHERE place >= ?1 AND place <= ?2 AND due < ?3 GROUP BY stream;

-- name: to_near
-- Move the rows of a slice that are due soon.
INSERT INTO near (arrival, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT place & 2199023255551, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM {table} WHERE place >= ?1 AND place <= ?2 AND due < ?3;

-- name: to_quarters
-- Move the rows of a slice that are due later to their quarter of an hour.
INSERT INTO {table} (place, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT (due / 900000000 << 41) | (place & 2199023255551), due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM {table} WHERE place >= ?1 AND place <= ?2 AND due >= ?3;

-- name: clear
-- Delete the rows of a slice that are due from a moment on.
DELETE FROM {table} WHERE place >= ?1 AND place <= ?2 AND due >= ?3;
