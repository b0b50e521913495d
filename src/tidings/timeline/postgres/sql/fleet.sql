-- The fleet: its clock, its nodes, its lanes.

-- name: now
-- The clock of the fleet.
SELECT tidings.now();

-- name: nodes
-- Who lives, and who lived a moment ago.
SELECT node, since, until, until > tidings.now(), report FROM tidings.node ORDER BY since, node;

-- name: lanes
-- Who owns each lane while its lease runs, since when, and what is due first on it.
SELECT l.lane, l.node, l.since, (
    SELECT min(h.due) FROM tidings.heads(ARRAY[l.lane, -1 - l.lane]::smallint[], ARRAY[0, 0]::bigint[]) h
)
FROM (SELECT lane, CASE WHEN until > tidings.now() THEN node END AS node, since FROM tidings.lane) l ORDER BY l.lane;

-- name: readers
-- Who lives and takes in from Kafka.
SELECT node FROM tidings.node WHERE until > tidings.now() AND 'intake' = ANY (roles) ORDER BY node;
