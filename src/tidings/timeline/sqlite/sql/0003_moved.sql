-- The mark of a store that has moved or is moving: one row.
CREATE TABLE moved (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    move BLOB NOT NULL
);

-- The progress of each transfer into this store.
CREATE TABLE carried (
    passage TEXT PRIMARY KEY,
    progress BLOB NOT NULL
) WITHOUT ROWID;
