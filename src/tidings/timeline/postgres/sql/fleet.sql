-- The fleet: its clock, its nodes, its lanes.

-- name: now
-- The clock of the fleet.
SELECT tidings.now();

-- name: nodes
-- The nodes that are alive, or were so recently.
SELECT node, since, until, tidings.runs(until, lease, tidings.now()), report FROM tidings.node ORDER BY since, node;

-- name: lanes
-- The owner of each lane if it is alive, since when, and the first due time.
SELECT l.lane, l.node, l.since, (
    SELECT min(h.due) FROM tidings.heads(ARRAY[l.lane, -1 - l.lane]::smallint[], ARRAY[0, 0]::bigint[]) h
)
FROM (
    SELECT o.lane, n.node, o.since FROM tidings.lane o
    LEFT JOIN tidings.node n ON n.node = o.node AND tidings.runs(n.until, n.lease, tidings.now())
) l ORDER BY l.lane;

-- name: readers
-- The nodes that are alive, with their reports: roles and channels decide who reads which partitions.
SELECT node, report FROM tidings.node WHERE tidings.runs(until, lease, tidings.now()) ORDER BY node;
