-- Documents: found by name or by tag, and changed by one function in one round trip.

-- name: get
-- Documents by their keys, without expired ones.
SELECT uuid_send(key), body, version, tags, "order", until FROM tidings.document
WHERE key = ANY (%s) AND (until IS NULL OR until > %s);

-- name: find
-- Documents of a tag after a place, in order; each is looked up separately.
SELECT t.name, d.body, d.version, d.tags, t."order", d.until FROM tidings.tagged t CROSS JOIN LATERAL (
    SELECT * FROM tidings.document d WHERE d.key = t.key OFFSET 0
) d
WHERE t.shelf = %(shelf)s AND (t."order", t.name) > (%(order)s, %(name)s) AND (d.until IS NULL OR d.until > %(now)s)
ORDER BY t."order", t.name LIMIT %(limit)s;

-- name: find_newest
-- The same in reverse order.
SELECT t.name, d.body, d.version, d.tags, t."order", d.until FROM tidings.tagged t CROSS JOIN LATERAL (
    SELECT * FROM tidings.document d WHERE d.key = t.key OFFSET 0
) d
WHERE t.shelf = %(shelf)s AND (t."order", t.name) < (%(order)s, %(name)s) AND (d.until IS NULL OR d.until > %(now)s)
ORDER BY t."order" DESC, t.name DESC LIMIT %(limit)s;

-- name: change
-- Apply groups of changes; returns a version for each applied group, else 0.
SELECT tidings.change_documents(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: expire
-- Delete some expired documents.
SELECT tidings.expire_documents(%s, %s);
