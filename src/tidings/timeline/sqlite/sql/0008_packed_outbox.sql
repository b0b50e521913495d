-- One-shots that were released to Kafka together, until all of them are there: their records as one row. Other records
-- of the outbox are single rows of `log`.
CREATE TABLE packed (
    first INTEGER PRIMARY KEY,        -- the offset of its first record; the others follow without gaps
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    released INTEGER NOT NULL,
    records BLOB NOT NULL             -- msgpack: a list of records (release/outbox.py)
);

-- Records in packed rows that were held back, and have reached Kafka or are missed since.
CREATE TABLE gone (
    offset INTEGER PRIMARY KEY
);

-- A record in the outbox names the key of its row in `finished`.
DROP INDEX finished_in_outbox;
