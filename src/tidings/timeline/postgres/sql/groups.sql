-- Consumer groups.

-- name: roster
-- The members of a group, its committed offsets, and if it is new, the number of other groups of the tenant.
SELECT r.version, r.state, tidings.now(), CASE WHEN r.version IS NULL
    THEN (SELECT count(*) FROM tidings.roster o WHERE o.tenant = %s AND o.until > tidings.now()) ELSE 0 END,
    c.parts, c.offsets
FROM (SELECT 1) AS one
LEFT JOIN tidings.roster r ON r.tenant = %s AND r.topic = %s AND r.name = %s
CROSS JOIN LATERAL (
    SELECT array_agg(part::int) AS parts, array_agg(next) AS offsets FROM tidings.committed WHERE topic = %s AND name = %s
) c;

-- name: keep_roster
-- Store a change of a group.
SELECT tidings.keep_roster(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
