-- What recurring schedules depend on.

-- Days on which nothing may happen, by tenant and name: a list of days since 1970. `turn` grows with each change, and
-- `settled` says that what is pending follows it. What was dropped is forgotten then.
CREATE TABLE tidings.calendar (
    tenant text NOT NULL,
    name text NOT NULL,
    days bytea NOT NULL,
    changed bigint NOT NULL,
    turn bigint NOT NULL,
    settled boolean NOT NULL DEFAULT false,
    dropped boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, name)
);

-- The rules of zones by which what is pending was computed, so that a change of them can be told, and since when.
CREATE TABLE tidings.zone (
    name text NOT NULL,
    digest text NOT NULL,
    version text NOT NULL,
    content bytea NOT NULL,
    kept bigint NOT NULL,
    PRIMARY KEY (name, digest)
);

-- Pending occurrences that a new calendar or new rules of a zone moved, the latest ones.
CREATE TABLE tidings.movement (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    cause text NOT NULL,
    tenant text NOT NULL,
    id text NOT NULL,
    occurrence bigint NOT NULL,
    before bigint NOT NULL,
    after bigint
);
CREATE INDEX movement_tenant ON tidings.movement (tenant, entry);
