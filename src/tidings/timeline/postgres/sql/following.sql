-- Topic subscriptions: what the readers of a node wait for.

-- name: follow
-- Set the topics that readers of this node wait for.
INSERT INTO tidings.follower (node, topics, until) VALUES (%s, %s, tidings.now() + %s)
ON CONFLICT (node) DO UPDATE SET topics = excluded.topics, until = excluded.until;

-- name: unfollow
-- Delete the subscriptions of this node, and expired ones of others.
DELETE FROM tidings.follower WHERE node = %s OR until < tidings.now() - 60000000;

-- name: ends
-- The total number of records ever appended to some topics.
SELECT topic, sum(next)::bigint FROM tidings.partition WHERE topic = ANY (%s) GROUP BY topic;
