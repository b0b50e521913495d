-- Consumer groups.

-- name: roster
-- Who is in a group, how far it has come, and if it is new how many others its tenant has.
SELECT r.version, r.state, tidings.now(), CASE WHEN r.version IS NULL
    THEN (SELECT count(*) FROM tidings.roster o WHERE o.tenant = %s AND o.until > tidings.now()) ELSE 0 END,
    c.parts, c.offsets
FROM (SELECT 1) AS one
LEFT JOIN tidings.roster r ON r.tenant = %s AND r.topic = %s AND r.name = %s
CROSS JOIN LATERAL (
    SELECT array_agg(part::int) AS parts, array_agg(next) AS offsets FROM tidings.committed WHERE topic = %s AND name = %s
) c;

-- name: keep_roster
-- Keep what became of a group.
SELECT tidings.keep_roster(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
