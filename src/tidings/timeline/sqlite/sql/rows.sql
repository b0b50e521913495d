-- Rows in bulk: a row is one blob of fixed decimal fields followed by its variable parts (packed_rows.py), and an array
-- of them is bound as one value. A whole batch is then one step of SQLite, without Python in between.
--
-- arrival 1-16, due 17-32, stream 33-40, partition 41-48, deadline 49-64, accepted 65-80, reason 81, bytes of id 82-84,
-- bytes of labels 85-88, content 89-104, then id, labels, message.

-- name: insert_near
-- Insert rows that are due soon.
INSERT INTO near (arrival, due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)
SELECT CAST(substr(value, 1, 16) AS INTEGER),
       CAST(substr(value, 17, 16) AS INTEGER),
       CAST(substr(value, 33, 8) AS INTEGER),
       CAST(substr(value, 41, 8) AS INTEGER),
       CAST(substr(value, 49, 16) AS INTEGER),
       CAST(substr(value, 81, 1) AS INTEGER),
       1,
       1,
       CAST(substr(value, 65, 16) AS INTEGER),
       substr(value, 89, 16),
       CAST(substr(value, 105, substr(value, 82, 3)) AS TEXT),
       CASE WHEN substr(value, 85, 4) = x'30303030' THEN NULL
            ELSE CAST(substr(value, 105 + substr(value, 82, 3), substr(value, 85, 4)) AS TEXT)
       END,
       substr(value, 105 + substr(value, 82, 3) + substr(value, 85, 4))
FROM carray(?1);
