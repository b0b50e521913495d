-- Documents: found by name or by tag, and written as a transaction has decided.

-- name: get
-- One document that is not expired.
SELECT body, version, tags, "order", until FROM document
WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND (until IS NULL OR until > ?4);

-- name: find
-- Documents of a tag after a place, in order. CROSS JOIN keeps the order of the index.
SELECT d.name, d.body, d.version, d.tags, d."order", d.until FROM tagged t CROSS JOIN document d
ON d.tenant = t.tenant AND d.kind = t.kind AND d.name = t.name
WHERE t.tenant = ?1 AND t.kind = ?2 AND t.tag = ?3 AND (t."order", t.name) > (?4, ?5) AND (d.until IS NULL OR d.until > ?6)
ORDER BY t."order", t.name LIMIT ?7;

-- name: find_newest
-- The same in reverse order.
SELECT d.name, d.body, d.version, d.tags, d."order", d.until FROM tagged t CROSS JOIN document d
ON d.tenant = t.tenant AND d.kind = t.kind AND d.name = t.name
WHERE t.tenant = ?1 AND t.kind = ?2 AND t.tag = ?3 AND (t."order", t.name) < (?4, ?5) AND (d.until IS NULL OR d.until > ?6)
ORDER BY t."order" DESC, t.name DESC LIMIT ?7;

-- name: kept
-- The stored state that a change needs.
SELECT document, version, "order", until, tags FROM document WHERE tenant = ? AND kind = ? AND name = ?;

-- name: insert
INSERT INTO document (tenant, kind, name, version, "order", until, tags, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: update
UPDATE document SET version = ?, "order" = ?, until = ?, tags = ?, body = ? WHERE document = ?;

-- name: delete
DELETE FROM document WHERE document = ?;

-- name: tag
INSERT INTO tagged VALUES (?, ?, ?, ?, ?);

-- name: untag
DELETE FROM tagged WHERE tenant = ? AND kind = ? AND tag = ? AND "order" = ? AND name = ?;

-- name: expired
-- Some expired documents.
SELECT document, tenant, kind, name, "order", tags FROM document WHERE until <= ? ORDER BY until LIMIT ?;
