-- What the readers of a node wait for.

-- name: follow
-- The topics that this node's readers wait for, from now on.
INSERT INTO tidings.follower (node, topics, until) VALUES (%s, %s, tidings.now() + %s)
ON CONFLICT (node) DO UPDATE SET topics = excluded.topics, until = excluded.until;

-- name: unfollow
-- Nobody waits here any more; nor do those who have not said so for long.
DELETE FROM tidings.follower WHERE node = %s OR until < tidings.now() - 60000000;

-- name: ends
-- How much was ever put onto some topics.
SELECT topic, sum(next)::bigint FROM tidings.partition WHERE topic = ANY (%s) GROUP BY topic;
