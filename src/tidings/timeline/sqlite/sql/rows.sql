-- How rows travel in bulk: a row is one blob of fixed decimal fields followed by its variable parts (rows.py), and an
-- array of them is bound as one value. A whole batch is then one step of SQLite, without Python in between.
--
-- bucket 1-8, arrival 9-24, due 25-40, stream 41-48, partition 49-56, deadline 57-72, hash 73-92, reason 93,
-- bytes of id 94-96, bytes of labels 97-100, content 101-116, then id, labels, message.

-- name: insert_near
-- Put rows that are due soon into their order.
INSERT INTO near (arrival, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT CAST(substr(value, 9, 16) AS INTEGER),
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

-- name: insert_recent
-- Remember where ids of callers lie.
INSERT INTO recent (arrival, hash, due)
SELECT CAST(substr(value, 9, 16) AS INTEGER),
       CAST(substr(value, 73, 20) AS INTEGER),
       CAST(substr(value, 25, 16) AS INTEGER)
FROM carray(?1);
