-- What recurring schedules depend on.

-- Days on which nothing may happen, by tenant and name.
CREATE TABLE calendar (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    days BLOB NOT NULL,               -- a list of days since 1970
    changed INTEGER NOT NULL,
    turn INTEGER NOT NULL,            -- grows with each change
    settled INTEGER NOT NULL,         -- 1: what is pending follows it
    dropped INTEGER NOT NULL,         -- 1: gone, and forgotten once what is pending follows that
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- The rules of zones by which what is pending was computed, so that a change of them can be told.
CREATE TABLE zone (
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    version TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (name, digest)
) WITHOUT ROWID;

-- Pending occurrences that a new calendar or new rules of a zone moved, the latest ones.
CREATE TABLE movement (
    entry INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    cause TEXT NOT NULL,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    occurrence INTEGER NOT NULL,
    before INTEGER NOT NULL,
    after INTEGER
);
CREATE INDEX movement_tenant ON movement (tenant, entry);
