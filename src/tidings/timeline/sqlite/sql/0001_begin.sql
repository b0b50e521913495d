-- The first layout. Times are integer microseconds since the epoch, UTC.

-- One row: counters that must move with the data, and how far the wheel has turned.
CREATE TABLE tally (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    created INTEGER NOT NULL,
    secret BLOB NOT NULL,             -- keys the hashes of ids
    partitions INTEGER NOT NULL,      -- of every topic
    arrival INTEGER NOT NULL,         -- the last arrival number given out
    pending INTEGER NOT NULL,
    near_until INTEGER NOT NULL,      -- what is due before this goes to `near`
    split_until INTEGER NOT NULL      -- days before this lie in quarters of an hour
);

-- One row: who may write. `until` counts on the clock of the boot named beside it.
CREATE TABLE lease (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token BLOB,
    boot TEXT,
    until INTEGER
);

-- A stream is a tenant's share of one priority and one bus: what fairness is dealt by. Those of Kafka are apart, so that
-- they can be left out of a release while the outbox is full.
CREATE TABLE stream (
    stream INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    priority INTEGER NOT NULL,
    to_kafka INTEGER NOT NULL,
    UNIQUE (tenant, priority, to_kafka)
);

CREATE TABLE topic (
    topic INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (tenant, name)
);

-- partition = topic * 16 + index; the log's position = partition * 2^38 + offset.
CREATE TABLE partition (
    partition INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    next INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
INSERT INTO partition VALUES (0, 0, 0, 0); -- the outbox: what is released to Kafka, until it is there

-- What is due later (far.sql): parcels of rows that came together, and single rows.
CREATE TABLE parcel (
    place INTEGER PRIMARY KEY,
    heads BLOB NOT NULL,
    bodies BLOB NOT NULL
);

CREATE TABLE far (
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

-- What is due within minutes, in the order in which it leaves.
-- n: the occurrence's number, 0 for a row that only points to `standing`, negative for an extra one fired by hand.
CREATE TABLE near (
    stream INTEGER NOT NULL,
    due INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    reason INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    n INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    content BLOB NOT NULL,
    id TEXT NOT NULL,
    labels TEXT,
    message BLOB NOT NULL,
    PRIMARY KEY (stream, due, arrival)
) WITHOUT ROWID;

-- Schedules that outlive one release or wait outside of the timeline: recurring and paused ones.
-- origin is the due time under which the id's place is known; released counts what has left.
CREATE TABLE standing (
    arrival INTEGER PRIMARY KEY,
    origin INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    state TEXT NOT NULL,
    due INTEGER NOT NULL,
    n INTEGER NOT NULL,
    fires INTEGER NOT NULL,
    released INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    policy BLOB NOT NULL,             -- when, lateness, jitter
    content BLOB NOT NULL,
    id TEXT NOT NULL,
    labels TEXT,
    message BLOB NOT NULL
);
CREATE INDEX standing_due ON standing (state, due, arrival);
CREATE INDEX standing_id ON standing (id);

-- Extra records fired by hand that have not left: rows of `near` by their arrival, and whose they are.
CREATE TABLE fired (
    arrival INTEGER PRIMARY KEY,
    schedule INTEGER NOT NULL,
    due INTEGER NOT NULL
);
CREATE INDEX fired_schedule ON fired (schedule);

-- The memory of finished schedules, by the place under which their ids are known.
CREATE TABLE finished (
    due INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    at INTEGER NOT NULL,
    position INTEGER,
    last_due INTEGER,                 -- of its last occurrence, where that is not the place's due time
    generation INTEGER NOT NULL,
    n INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    content BLOB NOT NULL,
    id TEXT NOT NULL,
    labels TEXT,
    PRIMARY KEY (due, arrival)
) WITHOUT ROWID;

CREATE INDEX finished_in_outbox ON finished (position) WHERE position < 1 << 38;
CREATE INDEX finished_last ON finished (last_due, arrival) WHERE last_due IS NOT NULL;

CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    due INTEGER NOT NULL,
    released INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    n INTEGER NOT NULL,
    final INTEGER NOT NULL,
    id TEXT NOT NULL,
    message BLOB NOT NULL,
    target INTEGER                    -- in the outbox: topic * 16 of the topic it is for
);

-- Records of the outbox that are kept back, because their topic does not take them.
CREATE TABLE held (
    offset INTEGER PRIMARY KEY,
    topic INTEGER NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX held_topic ON held (topic, offset);

-- How far the partitions of Kafka's request topics have been taken in.
CREATE TABLE source (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;

-- What happened to a schedule beyond what its row tells: changes, and the occurrences of recurring ones.
CREATE TABLE history (
    hash INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    event TEXT NOT NULL,
    occurrence INTEGER,
    due INTEGER,
    reason TEXT,
    count INTEGER,
    PRIMARY KEY (hash, entry)
) WITHOUT ROWID;

-- The map from ids to places: what came lately in order of arrival, the rest in sorted runs of chunks.
CREATE TABLE recent (
    first INTEGER PRIMARY KEY,        -- arrival
    entries BLOB NOT NULL
);
CREATE TABLE run (
    run INTEGER PRIMARY KEY,
    level INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    live INTEGER NOT NULL
);
CREATE TABLE chunk (
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,
    entries BLOB NOT NULL,            -- hashes, arrivals, due times: three arrays of 64-bit integers
    PRIMARY KEY (run, first)
) WITHOUT ROWID;
CREATE TABLE filter (
    run INTEGER NOT NULL,
    part INTEGER NOT NULL,
    words BLOB NOT NULL,
    PRIMARY KEY (run, part)
) WITHOUT ROWID;

-- Answers kept for idempotency keys.
CREATE TABLE receipt (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    body BLOB NOT NULL,
    outcomes BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX receipt_at ON receipt (at);

-- Where consumer groups stand: the next offset to read.
CREATE TABLE committed (
    partition INTEGER NOT NULL,
    name TEXT NOT NULL,
    next INTEGER NOT NULL,
    PRIMARY KEY (partition, name)
) WITHOUT ROWID;

CREATE TABLE api_key (
    name TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    admin INTEGER NOT NULL,
    created INTEGER NOT NULL
) WITHOUT ROWID;
