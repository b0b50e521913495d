-- The last instant at which a one-shot with `expires_after` may be published. NULL: there is none, or a node of an older
-- version has released it.
ALTER TABLE tidings.outbox ADD COLUMN expires bigint;
