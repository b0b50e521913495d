-- The tables of notifications, which replace the documents. `domain/notifications/tables.py` declares them for all stores,
-- and a test compares. Every table has:
--   entry    the number of the row in this file: new rows lie together, whatever their keys, and indexes stay small
--   tenant, and the key under the name that the declaration gives it
--   version  grows with each change, for compare-and-set
--   until    when the row expires, or NULL
--   body     the whole value as JSON in UTF-8: CAST(body AS TEXT)
-- and between them the columns that are searched for, or of use to an operator. Times are microseconds since 1970, in UTC.
-- Every index of the declaration has the tenant, its columns, its order column and the key, so that a search is one range.

-- One row: the last version that was given to a row. No version is given twice, not even after a row was deleted.
CREATE TABLE row_version (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
);
INSERT INTO row_version VALUES (1, 0);

-- Lists of notifications that are being written in several transactions: the versions of their rows, and where these
-- begin. The rows do not count until the list is finished and has no row here any more (`row_writes.py`).
CREATE TABLE unfinished (
    first_version INTEGER PRIMARY KEY,
    last_version INTEGER NOT NULL,
    first_entry INTEGER NOT NULL
);

-- One row: the last document that was moved into these tables (`document_migration.py`).
CREATE TABLE document_migration (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    document INTEGER NOT NULL
);
INSERT INTO document_migration VALUES (1, 0);

-- The people who can be notified.
CREATE TABLE app_user (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    name TEXT,                    -- their name
    email TEXT,                   -- their e-mail address
    phone TEXT,                   -- their telephone number
    webhook TEXT,                 -- the URL of their webhook
    zone TEXT,                    -- their time zone
    locale TEXT,                  -- their language
    email_key TEXT,               -- a digest of the normalised e-mail address, by which it is found
    phone_key TEXT,               -- a digest of the normalised telephone number, by which it is found
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX app_user_email ON app_user (tenant, email_key, id) WHERE email_key IS NOT NULL;
CREATE INDEX app_user_phone ON app_user (tenant, phone_key, id) WHERE phone_key IS NOT NULL;
CREATE INDEX app_user_until ON app_user (until) WHERE until IS NOT NULL;

-- Accepted notifications. When one is due is in its schedule, which has the same id.
CREATE TABLE notification (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    user_id TEXT,                 -- the user that it is for; NULL if it is for an address
    address_key TEXT,             -- a digest of the address that it is for, if it is for no user
    channels TEXT,                -- the channels that it may leave through, in order, separated by commas
    template TEXT,                -- its template; NULL if it has its own content
    template_version INTEGER,     -- the version of the template that it is bound to; NULL: the latest one
    category TEXT,                -- its category, for preferences and unsubscribing
    priority TEXT,                -- high, normal or low
    batch TEXT,                   -- the batch that it belongs to
    created INTEGER NOT NULL,     -- when it was accepted
    cancelled INTEGER,            -- when it was cancelled
    duplicate_of TEXT,            -- the notification whose dedupe key it repeats: it is not sent
    is_local INTEGER,             -- 1 if its time is local time in the user's time zone; NULL otherwise
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX notification_created ON notification (tenant, created, id);
CREATE INDEX notification_user ON notification (tenant, user_id, created, id) WHERE user_id IS NOT NULL;
CREATE INDEX notification_address ON notification (tenant, address_key, created, id) WHERE address_key IS NOT NULL;
CREATE INDEX notification_template ON notification (tenant, template, created, id) WHERE template IS NOT NULL;
CREATE INDEX notification_group ON notification (tenant, batch, created, id) WHERE batch IS NOT NULL;
CREATE INDEX notification_local ON notification (tenant, user_id, created, id) WHERE is_local IS NOT NULL;
CREATE INDEX notification_until ON notification (until) WHERE until IS NOT NULL;

-- One occurrence of a notification on its way to its recipient: its state, its attempts and its result.
CREATE TABLE delivery (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    notification TEXT,            -- the notification that it belongs to
    user_id TEXT,                 -- the user that it is for; NULL if it is for an address
    address_key TEXT,             -- a digest of the address that it is for, if it is for no user
    channel TEXT,                 -- the channel that it leaves through
    -- pending, processing, sent, delivered, bounced, complained, failed, cancelled, expired, skipped
    state TEXT,
    reason TEXT,                  -- why it is in this state
    trouble TEXT,                 -- the state again if it is failed, bounced, complained or expired; NULL otherwise
    due INTEGER NOT NULL,         -- when it was due
    next_try INTEGER,             -- when it is tried again
    turn INTEGER,                 -- how often it was put on the timeline
    attempts INTEGER,             -- how often a provider was called
    claim_worker TEXT,            -- the worker that has claimed it
    claim_until INTEGER,          -- when that claim ends
    provider TEXT,                -- the provider that accepted it
    provider_id TEXT,             -- the id that the provider gave it
    sent INTEGER,                 -- when the provider accepted it
    changed INTEGER,              -- when the row was last changed
    held_for TEXT,                -- the user for the end of whose quiet hours it waits
    body BLOB NOT NULL,
    UNIQUE (tenant, name)
);
CREATE INDEX delivery_due ON delivery (tenant, due, name);
CREATE INDEX delivery_notification ON delivery (tenant, notification, due, name);
CREATE INDEX delivery_user ON delivery (tenant, user_id, due, name) WHERE user_id IS NOT NULL;
CREATE INDEX delivery_address ON delivery (tenant, address_key, due, name) WHERE address_key IS NOT NULL;
CREATE INDEX delivery_trouble ON delivery (tenant, trouble, due, name) WHERE trouble IS NOT NULL;
CREATE INDEX delivery_held ON delivery (tenant, held_for, due, name) WHERE held_for IS NOT NULL;
CREATE INDEX delivery_until ON delivery (until) WHERE until IS NOT NULL;

-- Addresses that nothing may be sent to. The id is the channel, the digest of the address, and the category.
CREATE TABLE suppression (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    channel TEXT,                 -- the channel of the address
    address_key TEXT,             -- the channel and the digest of the normalised address
    address TEXT,                 -- the address; NULL once its owner was erased
    category TEXT,                -- the category that is not sent; NULL: nothing is
    user_id TEXT,                 -- the user whose address it is, if that is known
    reason TEXT,                  -- why
    since INTEGER NOT NULL,       -- since when
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX suppression_since ON suppression (tenant, since, id);
CREATE INDEX suppression_channel ON suppression (tenant, channel, since, id);
CREATE INDEX suppression_address ON suppression (tenant, address_key, since, id);
CREATE INDEX suppression_user ON suppression (tenant, user_id, since, id) WHERE user_id IS NOT NULL;
CREATE INDEX suppression_until ON suppression (until) WHERE until IS NOT NULL;

-- Dedupe keys in use, as digests of the key and the recipient.
CREATE TABLE dedupe_key (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    notification TEXT,            -- the notification that has the key
    user_id TEXT,                 -- the user that it is for
    created INTEGER NOT NULL,     -- when it was accepted
    body BLOB NOT NULL,
    UNIQUE (tenant, digest)
);
CREATE INDEX dedupe_key_user ON dedupe_key (tenant, user_id, created, digest) WHERE user_id IS NOT NULL;
CREATE INDEX dedupe_key_until ON dedupe_key (until) WHERE until IS NOT NULL;

-- Templates, each with the number of its latest version.
CREATE TABLE template (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    latest INTEGER,               -- its latest version
    changed INTEGER,              -- when that version was stored
    deleted INTEGER,              -- 1 if it was deleted
    body BLOB NOT NULL,
    UNIQUE (tenant, name)
);
CREATE INDEX template_until ON template (until) WHERE until IS NOT NULL;

-- The versions of templates, which never change. The id is the name, a slash and the number.
CREATE TABLE template_version (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    template TEXT,                -- the template
    number INTEGER,               -- the number of the version
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX template_version_until ON template_version (until) WHERE until IS NOT NULL;

-- The in-app messages of users. The id is the user, a slash and the id of the message.
CREATE TABLE inbox (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    user_id TEXT,                 -- the user
    unread_by TEXT,               -- the user again while it is unread; NULL otherwise
    title TEXT,                   -- the title
    created INTEGER NOT NULL,     -- when it arrived
    read INTEGER,                 -- when it was read
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX inbox_user ON inbox (tenant, user_id, created, id);
CREATE INDEX inbox_unread ON inbox (tenant, unread_by, created, id) WHERE unread_by IS NOT NULL;
CREATE INDEX inbox_until ON inbox (until) WHERE until IS NOT NULL;

-- The ids that providers gave to messages, and receipts that wait for their message; the tenant is empty.
CREATE TABLE provider_message (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    owner TEXT,                   -- the tenant that the message belongs to
    delivery TEXT,                -- its delivery
    user_key TEXT,                -- the tenant and the user
    created INTEGER NOT NULL,     -- when the provider accepted it, or its first receipt came
    kept_for TEXT,                -- the provider, and the tenant if it is known, while receipts wait for their message
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX provider_message_user ON provider_message (tenant, user_key, created, id) WHERE user_key IS NOT NULL;
CREATE INDEX provider_message_kept ON provider_message (tenant, kept_for, created, id) WHERE kept_for IS NOT NULL;
CREATE INDEX provider_message_until ON provider_message (until) WHERE until IS NOT NULL;

-- The token buckets of rate limits, of a provider (the tenant is empty) or of a tenant at a provider.
CREATE TABLE rate_limit (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    provider TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    parts INTEGER,                -- what is left, in millionths of a token
    at INTEGER,                   -- when that was computed
    body BLOB NOT NULL,
    UNIQUE (tenant, provider)
);
CREATE INDEX rate_limit_until ON rate_limit (until) WHERE until IS NOT NULL;

-- Circuit breakers that are not closed, of a provider or of one receiver of webhooks.
CREATE TABLE circuit_breaker (
    entry INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER,
    reason TEXT,                  -- why it was opened
    open_until INTEGER,           -- when it becomes half-open
    times INTEGER,                -- how often in a row it was opened
    worker TEXT,                  -- the worker that makes the trial call
    body BLOB NOT NULL,
    UNIQUE (tenant, name)
);
CREATE INDEX circuit_breaker_until ON circuit_breaker (until) WHERE until IS NOT NULL;

-- The addresses of users, one row each, for operators: a device is its platform, a colon and its token.
CREATE VIEW address (tenant, user_id, channel, address) AS
SELECT tenant, id, 'email', email FROM app_user WHERE email IS NOT NULL
UNION ALL SELECT tenant, id, 'sms', phone FROM app_user WHERE phone IS NOT NULL
UNION ALL SELECT tenant, id, 'webhook', webhook FROM app_user WHERE webhook IS NOT NULL
UNION ALL SELECT app_user.tenant, app_user.id, 'push', device.value ->> 'platform' || ':' || (device.value ->> 'token')
FROM app_user, json_each(CAST(body AS TEXT), '$.devices') AS device;
