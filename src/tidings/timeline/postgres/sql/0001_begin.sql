-- The first layout. Times are integer microseconds since the epoch, UTC.
-- Tables through which everything passes are vacuumed early and at full speed: after so many rows, whatever their size.

-- One row: what was chosen when the store was made.
CREATE TABLE tidings.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    identity text NOT NULL,
    created bigint NOT NULL,
    lanes int NOT NULL,
    partitions int NOT NULL,          -- of every topic; a lane has partitions / lanes of them
    functions text NOT NULL DEFAULT '',  -- a digest of the functions,
    program text NOT NULL DEFAULT ''  -- and the version of the program that wrote them
);

-- Arrival numbers are given out in blocks.
CREATE SEQUENCE tidings.arrival_block MINVALUE 0 START 0;

-- Who releases a lane, for as long as its node lives. Every write of its owner begins by updating this row under its
-- token.
CREATE TABLE tidings.lane (
    lane smallint PRIMARY KEY,
    token uuid,                       -- NULL: free
    node uuid,
    since bigint,
    turns bigint NOT NULL DEFAULT 0,
    outbox_first bigint NOT NULL DEFAULT 0,
    outbox_next bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The nodes that share the work, for as long as they say that they live, and a minute longer. Their leases of lanes are
-- renewed here: in a row of its own, which no release holds.
CREATE TABLE tidings.node (
    node uuid PRIMARY KEY,
    since bigint NOT NULL,
    until bigint NOT NULL,            -- on the clock of this database
    lease bigint NOT NULL,
    roles text[] NOT NULL,
    report text NOT NULL              -- what it says of itself: JSON
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Transfers out of this store that are running: each owns the lanes meanwhile, though it is not a node.
CREATE TABLE tidings.copier (
    node uuid PRIMARY KEY,
    until bigint NOT NULL,            -- on the clock of this database
    lease bigint NOT NULL
);

-- The topics that readers of a node wait for, so that whoever releases something onto them tells it.
CREATE TABLE tidings.follower (
    node uuid PRIMARY KEY,
    topics int[] NOT NULL,
    until bigint NOT NULL
) WITH (fillfactor = 20);

-- Tenants are numbered from 0 without gaps: stream = tenant * 6 + priority, + 3 for what goes to Kafka; slot = stream
-- modulo 1536. What goes to Kafka has slots of its own, so that it can be left out while the outbox is full.
CREATE TABLE tidings.tenant (
    tenant int PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE tidings.topic (
    topic int PRIMARY KEY,
    tenant int NOT NULL,
    name text NOT NULL,
    UNIQUE (tenant, name)
);

-- The ends of a topic's partitions; each belongs to one lane, whose owner alone writes it.
CREATE TABLE tidings.partition (
    topic int NOT NULL,
    part smallint NOT NULL,
    lane smallint NOT NULL,
    first bigint NOT NULL DEFAULT 0,
    next bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX partition_lane ON tidings.partition (lane, topic);

-- Where each id's newest schedule lies: pending at (lane, slot, due, arrival), standing by arrival, finished at
-- (stream, due, arrival). The key is a digest of tenant and id; its first byte chooses the lane.
CREATE TABLE tidings.registry (
    key uuid PRIMARY KEY,
    due bigint NOT NULL,
    arrival bigint NOT NULL,
    stream int NOT NULL
) WITH (fillfactor = 95, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);

-- What waits for its time.
-- n: the occurrence's number, 0 for a row that only points to `standing`, negative for an extra one fired by hand.
-- part: its partition, -1 for what goes to Kafka.
CREATE TABLE tidings.timeline (
    due bigint NOT NULL,
    arrival bigint NOT NULL,
    accepted bigint NOT NULL,
    content uuid NOT NULL,
    stream int NOT NULL,
    topic int NOT NULL,
    generation int NOT NULL,
    n int NOT NULL,
    lane smallint NOT NULL,
    slot smallint NOT NULL,
    part smallint NOT NULL,
    reason smallint NOT NULL,
    id text NOT NULL,
    message bytea NOT NULL,
    deadline bigint,
    labels text
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE tidings.timeline ALTER COLUMN message SET STORAGE EXTERNAL;
CREATE INDEX timeline_order ON tidings.timeline (lane, slot, due, arrival);

-- The slots that ever had a row, which are those that have to be looked at: most tenants use one or two of their six.
-- To find them in the index itself would lead over all that has left and is not yet vacuumed.
CREATE TABLE tidings.slot (
    slot smallint PRIMARY KEY
);

-- Schedules that outlive one release or wait outside of the timeline: recurring and paused ones.
CREATE TABLE tidings.standing (
    arrival bigint PRIMARY KEY,
    due bigint NOT NULL,
    accepted bigint NOT NULL,
    content uuid NOT NULL,
    stream int NOT NULL,
    topic int NOT NULL,
    generation int NOT NULL,
    n int NOT NULL,
    fires int NOT NULL,
    released int NOT NULL,
    lane smallint NOT NULL,
    part smallint NOT NULL,
    state text NOT NULL,
    id text NOT NULL,
    message bytea NOT NULL,
    terms bytea NOT NULL,             -- when, lateness, jitter
    labels text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX standing_paused ON tidings.standing (stream, due, arrival) WHERE state = 'paused';

-- Extra records fired by hand that have not left: whose they are.
CREATE TABLE tidings.fired (
    schedule bigint NOT NULL,
    due bigint NOT NULL,
    arrival bigint NOT NULL,
    PRIMARY KEY (schedule, arrival)
);

-- The memory of finished schedules. position: the offset in its partition, or in the outbox of its lane.
CREATE TABLE tidings.finished (
    due bigint NOT NULL,
    arrival bigint NOT NULL,
    at bigint NOT NULL,
    accepted bigint NOT NULL,
    content uuid NOT NULL,
    stream int NOT NULL,
    topic int NOT NULL,
    generation int NOT NULL,
    n int NOT NULL,
    lane smallint NOT NULL,
    part smallint NOT NULL,
    state smallint NOT NULL,          -- 0 released, 1 missed, 2 cancelled, 3 ended
    reason smallint NOT NULL,
    id text NOT NULL,
    position bigint,
    labels text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX finished_place ON tidings.finished (stream, due, arrival);
CREATE INDEX finished_outbox ON tidings.finished (lane, position) WHERE part < 0 AND position IS NOT NULL;

CREATE TABLE tidings.log (
    topic int NOT NULL,
    part smallint NOT NULL,
    final boolean NOT NULL,
    "offset" bigint NOT NULL,
    due bigint NOT NULL,
    released bigint NOT NULL,
    generation int NOT NULL,
    n int NOT NULL,
    id text NOT NULL,
    message bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE tidings.log ALTER COLUMN message SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX log_place ON tidings.log (topic, part, "offset");

-- What is released to Kafka, by lane and in order, until it is there.
CREATE TABLE tidings.outbox (
    "offset" bigint NOT NULL,
    due bigint NOT NULL,
    released bigint NOT NULL,
    topic int NOT NULL,
    generation int NOT NULL,
    n int NOT NULL,
    lane smallint NOT NULL,
    final boolean NOT NULL,
    id text NOT NULL,
    message bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE tidings.outbox ALTER COLUMN message SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX outbox_place ON tidings.outbox (lane, "offset");

-- Records of the outbox that are kept back, because their topic does not take them.
CREATE TABLE tidings.held (
    lane smallint NOT NULL,
    "offset" bigint NOT NULL,
    topic int NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (lane, "offset")
);
CREATE INDEX held_topic ON tidings.held (lane, topic, "offset");

-- How far the partitions of Kafka's request topics have been taken in.
CREATE TABLE tidings.source (
    topic text NOT NULL,
    partition int NOT NULL,
    next bigint NOT NULL,
    PRIMARY KEY (topic, partition)
) WITH (fillfactor = 50);

-- What happened to a schedule beyond what its row tells: changes, and the occurrences of recurring ones.
CREATE TABLE tidings.history (
    key uuid NOT NULL,
    entry bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    event text NOT NULL,
    occurrence bigint,
    due bigint,
    reason text,
    count bigint,
    PRIMARY KEY (key, entry)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Answers kept for idempotency keys.
CREATE TABLE tidings.receipt (
    tenant text NOT NULL,
    key text NOT NULL,
    body bytea NOT NULL,
    outcomes bytea NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX receipt_at ON tidings.receipt (at);

-- Where consumer groups stand: the next offset to read.
CREATE TABLE tidings.committed (
    topic int NOT NULL,
    name text NOT NULL,
    part smallint NOT NULL,
    next bigint NOT NULL,
    PRIMARY KEY (topic, name, part)
) WITH (fillfactor = 50);

-- Who is in each consumer group, as the bus writes it down; its version is compared whenever it changes.
CREATE TABLE tidings.roster (
    tenant text NOT NULL,
    topic text NOT NULL,
    name text NOT NULL,
    version bigint NOT NULL,
    until bigint NOT NULL,            -- when the last session ends, on the clock of this database
    state bytea NOT NULL,
    PRIMARY KEY (tenant, topic, name)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE tidings.api_key (
    name text PRIMARY KEY,
    tenant text NOT NULL,
    digest bytea NOT NULL UNIQUE,
    admin boolean NOT NULL,
    created bigint NOT NULL
);

-- The mark of a store that has moved or is moving: one row.
CREATE TABLE tidings.moved (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    move bytea NOT NULL
);

-- The progress of each transfer into this store.
CREATE TABLE tidings.carried (
    passage text PRIMARY KEY,
    progress bytea NOT NULL
);
