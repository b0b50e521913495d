-- Documents: found by name or by tag, and changed by one function in one round trip.

-- name: get
-- Documents by their keys that are there at a moment.
SELECT uuid_send(key), body, version, tags, "order", until FROM tidings.document
WHERE key = ANY (%s) AND (until IS NULL OR until > %s);

-- name: find
-- Those behind a place on a shelf, in their order: each is looked up as it is come to.
SELECT t.name, d.body, d.version, d.tags, t."order", d.until FROM tidings.tagged t CROSS JOIN LATERAL (
    SELECT * FROM tidings.document d WHERE d.key = t.key OFFSET 0
) d
WHERE t.shelf = %(shelf)s AND (t."order", t.name) > (%(order)s, %(name)s) AND (d.until IS NULL OR d.until > %(now)s)
ORDER BY t."order", t.name LIMIT %(limit)s;

-- name: find_newest
-- The same with the last one first.
SELECT t.name, d.body, d.version, d.tags, t."order", d.until FROM tidings.tagged t CROSS JOIN LATERAL (
    SELECT * FROM tidings.document d WHERE d.key = t.key OFFSET 0
) d
WHERE t.shelf = %(shelf)s AND (t."order", t.name) < (%(order)s, %(name)s) AND (d.until IS NULL OR d.until > %(now)s)
ORDER BY t."order" DESC, t.name DESC LIMIT %(limit)s;

-- name: change
-- Groups of changes; which of them were made.
SELECT tidings.change_documents(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: expire
-- Remove some that are no longer there.
SELECT tidings.expire_documents(%s, %s);
