-- From the documents of version 0.1 to the tables of notifications, a range of documents at a time. Documents are encoded
-- without their default values, hence the COALESCEs.

-- name: documents_exist
-- Whether the file has documents, and the tables for them: 2 if so.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('document', 'document_migration');

-- name: moved
-- The last document that was moved.
SELECT document FROM document_migration;

-- name: slice_end
-- The last of the next documents, NULL if there are none.
SELECT max(document) FROM (SELECT document FROM document WHERE document > ? ORDER BY document LIMIT ?);

-- name: kinds
-- The kinds of documents in a slice: one search instead of one for each kind that there can be.
SELECT DISTINCT kind FROM document WHERE document > ? AND document <= ?;

-- name: advance
-- Record how far it came. Versions continue after those of the documents.
UPDATE document_migration SET document = ?;
UPDATE row_version SET version = max(version, (SELECT version FROM cabinet));

-- name: user
-- Users. The tags have the digests of their addresses. That of an e-mail address is what it is today if the address is
-- plain: in ASCII, without a domain in Punycode.
INSERT OR IGNORE INTO app_user
    (tenant, id, version, until, name, email, phone, webhook, zone, locale, email_key, phone_key, body)
SELECT tenant, name, version, until, doc ->> 'name', email, phone, doc ->> 'webhook', coalesce(doc ->> 'zone', 'UTC'),
    doc ->> 'locale',
    CASE
        WHEN email IS NULL THEN NULL
        WHEN at_email > 0 AND length(email) = octet_length(email) AND instr(lower(email), 'xn--') = 0
        THEN CAST(substr(tags, at_email + 3, 38) AS TEXT)
        ELSE address_digest('email', email)
    END,
    CASE
        WHEN phone IS NULL THEN NULL
        WHEN at_phone > 0 THEN CAST(substr(tags, at_phone + 3, 36) AS TEXT)
        ELSE address_digest('sms', phone)
    END,
    body
FROM (
    SELECT tenant, name, version, until, tags, body, doc, doc ->> 'email' AS email, doc ->> 'phone' AS phone,
        instr(tags, CAST('at:email/' AS BLOB)) AS at_email, instr(tags, CAST('at:sms/' AS BLOB)) AS at_phone
    FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'user')
);

-- name: notification
-- Notifications. A device is `platform:token`, which has the digest of the device.
INSERT OR IGNORE INTO notification
    (tenant, id, version, until, user_id, address_key, channels, template, template_version, category, priority, batch,
    created, cancelled, duplicate_of, body)
SELECT tenant, name, version, until, doc ->> 'user',
    CASE
        WHEN doc ->> 'to' IS NOT NULL THEN address_digest(
            doc ->> '$.channels[0]', coalesce((doc ->> '$.to.platform') || ':' || (doc ->> '$.to.token'), doc ->> 'to')
        )
    END,
    (SELECT group_concat(value, ',' ORDER BY key) FROM json_each(doc, '$.channels')),
    doc ->> 'template', doc ->> 'version', coalesce(doc ->> 'category', 'transactional'),
    coalesce(doc ->> 'priority', 'normal'), doc ->> 'batch', coalesce(doc ->> 'created', 0), doc ->> 'cancelled',
    doc ->> 'first', body
FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'notification');

-- name: delivery
-- Deliveries.
INSERT OR IGNORE INTO delivery
    (tenant, name, version, until, notification, user_id, address_key, channel, state, reason, trouble, due, next_try,
    turn, attempts, claim_worker, claim_until, provider, provider_id, sent, changed, held_for, body)
SELECT tenant, name, version, until, doc ->> 'notification', doc ->> 'user',
    CASE
        WHEN doc ->> 'user' IS NULL AND doc ->> 'address' IS NOT NULL AND doc ->> 'channel' IS NOT NULL
        THEN address_digest(doc ->> 'channel', doc ->> 'address')
    END,
    doc ->> 'channel', state, doc ->> 'reason',
    CASE WHEN state IN ('failed', 'bounced', 'complained', 'expired') THEN state END,
    doc ->> 'due', doc ->> 'next_try', coalesce(doc ->> 'turn', 1), coalesce(json_array_length(doc, '$.attempts'), 0),
    doc ->> '$.claim.worker', doc ->> '$.claim.until', doc ->> 'provider', doc ->> 'provider_id', doc ->> 'sent',
    coalesce(doc ->> 'changed', 0), CASE WHEN state = 'pending' AND doc ->> 'reason' = 'quiet_hours' THEN doc ->> 'user' END,
    body
FROM (
    SELECT *, coalesce(doc ->> 'state', 'pending') AS state
    FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'delivery')
);

-- name: dedupe
-- Dedupe keys. The only tag names the user.
INSERT OR IGNORE INTO dedupe_key (tenant, digest, version, until, notification, user_id, created, body)
SELECT tenant, name, version, until, CAST(body AS TEXT) ->> 'notification',
    CASE WHEN length(tags) > 0 THEN CAST(substr(tags, instr(tags, CAST('user:' AS BLOB)) + 5) AS TEXT) END, "order", body
FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'dedupe';

-- name: template
-- Templates.
INSERT OR IGNORE INTO template (tenant, name, version, until, latest, changed, deleted, body)
SELECT tenant, name, version, until, doc ->> 'version', doc ->> 'changed', coalesce(doc ->> 'deleted', 0), body
FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'template');

-- name: template_version
-- Versions of templates.
INSERT OR IGNORE INTO template_version (tenant, id, version, until, template, number, body)
SELECT tenant, name, version, until, doc ->> 'name', coalesce(doc ->> 'version', 1), body
FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'template_version');

-- name: inbox
-- In-app messages.
INSERT OR IGNORE INTO inbox (tenant, id, version, until, user_id, unread_by, title, created, read, body)
SELECT tenant, name, version, until, doc ->> 'user', CASE WHEN doc ->> 'read' IS NULL THEN doc ->> 'user' END,
    doc ->> 'title', "order", doc ->> 'read', body
FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'inbox');

-- name: sent
-- The ids that providers gave. The only tag names the tenant and the user.
INSERT OR IGNORE INTO provider_message (tenant, id, version, until, owner, delivery, user_key, created, body)
SELECT tenant, name, version, until, CAST(body AS TEXT) ->> 'tenant', CAST(body AS TEXT) ->> 'delivery',
    CASE WHEN length(tags) > 0 THEN CAST(substr(tags, instr(tags, CAST('user:' AS BLOB)) + 5) AS TEXT) END, "order", body
FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'sent';

-- name: throttle
-- Token buckets.
INSERT OR IGNORE INTO rate_limit (tenant, provider, version, until, parts, at, body)
SELECT tenant, name, version, until, CAST(body AS TEXT) ->> 0, CAST(body AS TEXT) ->> 1, body
FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'throttle';

-- name: breaker
-- Circuit breakers.
INSERT OR IGNORE INTO circuit_breaker (tenant, name, version, until, reason, open_until, times, worker, body)
SELECT tenant, name, version, until, doc ->> 'reason', doc ->> 'until', coalesce(doc ->> 'times', 1), doc ->> 'worker', body
FROM (SELECT *, CAST(body AS TEXT) AS doc FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'breaker');

-- name: suppressed
-- Suppressions, which are moved one by one.
SELECT tenant, name, version, until, body FROM document WHERE document > ?1 AND document <= ?2 AND kind = 'suppressed';

-- name: put_suppression
-- One that has today's key already: it replaces one that was moved there.
INSERT INTO suppression
    (tenant, id, version, until, channel, address_key, address, category, user_id, reason, since, body)
VALUES (:tenant, :id, :version, :until, :channel, :address_key, :address, :category, :user, :reason, :since, :body)
ON CONFLICT DO UPDATE SET
    version = excluded.version, until = excluded.until, address = excluded.address, user_id = excluded.user_id,
    reason = excluded.reason, since = excluded.since, body = excluded.body;

-- name: put_rekeyed_suppression
-- One that had an older key.
INSERT OR IGNORE INTO suppression
    (tenant, id, version, until, channel, address_key, address, category, user_id, reason, since, body)
VALUES (:tenant, :id, :version, :until, :channel, :address_key, :address, :category, :user, :reason, :since, :body);

-- name: drop
-- Delete the documents.
DROP TABLE document;
DROP TABLE tagged;
DROP TABLE cabinet;
DROP TABLE document_migration;
