-- The cabinet: small documents, found by name or by tag.

-- One row: the last version that was given to a document. It moves with them, so that no version comes twice.
CREATE TABLE cabinet (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
);
INSERT INTO cabinet VALUES (1, 0);

-- Rows of their own, as bodies may be large: those that are new lie together, whatever their names.
CREATE TABLE document (
    document INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    "order" INTEGER NOT NULL,
    until INTEGER,                    -- from then on it is as if it were not there
    tags BLOB NOT NULL,               -- empty, or a list of texts
    body BLOB NOT NULL,
    UNIQUE (tenant, kind, name)
);
CREATE INDEX document_until ON document (until) WHERE until IS NOT NULL;

-- Under each tag the places of the documents that have it.
CREATE TABLE tagged (
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    tag TEXT NOT NULL,
    "order" INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, tag, "order", name)
) WITHOUT ROWID;
