-- Where this store has moved to: one row, once it is being carried into another.
CREATE TABLE moved (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    move BLOB NOT NULL
);

-- What came from other stores: how far each passage has come.
CREATE TABLE carried (
    passage TEXT PRIMARY KEY,
    progress BLOB NOT NULL
) WITHOUT ROWID;
