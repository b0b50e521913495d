-- Lists: pending rows in order of (due, arrival), finished ones backwards. Conditions that are not used are NULL.

-- name: near
-- Pending rows of one stream that are due soon.
SELECT arrival, 0, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM near
WHERE stream = :stream AND (due, arrival) > (:due, :arrival) AND due < :until AND n >= 0
  AND (:topic IS NULL OR partition / 16 IN (:topic, :kafka_topic))
  AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
  AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) WHERE key = :label AND value = :label_value))
ORDER BY due, arrival LIMIT :limit;

-- name: far
-- Pending single rows of one day that are due later.
SELECT place & 2199023255551, place, stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message
FROM far
WHERE place >= :first AND place < :end
  AND stream IN (SELECT stream FROM stream WHERE tenant = :tenant)
  AND (due > :due OR (due = :due AND place & 2199023255551 > :arrival)) AND due < :until AND n >= 0
  AND (:topic IS NULL OR partition / 16 IN (:topic, :kafka_topic))
  AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
  AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) WHERE key = :label AND value = :label_value))
ORDER BY due, place & 2199023255551 LIMIT :limit;

-- name: paused
-- Paused schedules.
SELECT arrival FROM standing
WHERE state = 'paused' AND stream IN (SELECT stream FROM stream WHERE tenant = :tenant)
  AND (due, arrival) > (:due, :arrival) AND due < :until
  AND (:topic IS NULL OR partition / 16 IN (:topic, :kafka_topic))
  AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
  AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) WHERE key = :label AND value = :label_value))
ORDER BY due, arrival LIMIT :limit;

-- name: finished
-- Finished schedules that are still remembered.
SELECT arrival, due, stream, due, partition, generation, n, accepted, content, id, labels, state, reason, at, position
FROM finished
WHERE (due, arrival) < (:before, :before_arrival) AND due >= :from AND at > :remembered AND last_due IS NULL
  AND stream IN (SELECT stream FROM stream WHERE tenant = :tenant)
  AND (:state IS NULL OR state = :state)
  AND (:flying IS NULL OR :flying = ifnull(
      position < 274877906944 AND (position >= :arrived OR position IN (SELECT offset FROM held)), 0
  ))
  AND (:topic IS NULL OR partition / 16 IN (:topic, :kafka_topic))
  AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
  AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) WHERE key = :label AND value = :label_value))
ORDER BY due DESC, arrival DESC LIMIT :limit;

-- name: finished_last
-- The same for those whose last occurrence was not their first.
SELECT arrival, due, stream, last_due, partition, generation, n, accepted, content, id, labels, state, reason, at, position
FROM finished
WHERE (last_due, arrival) < (:before, :before_arrival) AND last_due >= :from AND at > :remembered AND last_due IS NOT NULL
  AND stream IN (SELECT stream FROM stream WHERE tenant = :tenant)
  AND (:state IS NULL OR state = :state)
  AND (:flying IS NULL OR :flying = ifnull(
      position < 274877906944 AND (position >= :arrived OR position IN (SELECT offset FROM held)), 0
  ))
  AND (:topic IS NULL OR partition / 16 IN (:topic, :kafka_topic))
  AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
  AND (:label IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) WHERE key = :label AND value = :label_value))
ORDER BY last_due DESC, arrival DESC LIMIT :limit;

-- name: forecast_near
-- Pending rows by step of time, for one tenant.
SELECT due / :width, count(*) FROM near
WHERE stream IN (SELECT stream FROM stream WHERE tenant = :tenant) AND due >= :start AND due < :end AND n >= 0
GROUP BY 1;

-- name: forecast_far
-- The same of single rows that are due later.
SELECT due / :width, count(*) FROM far
WHERE stream IN (SELECT stream FROM stream WHERE tenant = :tenant) AND due >= :start AND due < :end AND n >= 0
GROUP BY 1;

-- name: history
-- The history of a schedule.
SELECT at, event, occurrence, due, reason, count FROM history
WHERE hash = ? AND tenant = ? AND id = ? ORDER BY entry;
