-- The tables of notifications, which replace the documents. Every row has the columns `tenant` and its key; `version`, which
-- grows with each change; `until`, from when on it is expired; `body`, the whole value as JSON; and between them what is
-- searched for, or of use to an operator. Times are microseconds since 1970, in UTC. `domain/notifications/tables.py`
-- declares them for all stores, and a test compares.

-- Texts are compared byte by byte, as in the other stores. Pages keep some room, so that most updates stay in their page
-- and touch no index (HOT): the columns that change most are in none.

-- A row is looked up by tenant and key in its primary key. No other index can serve for that, whatever the planner thinks of
-- a table while it is empty, and that could read all rows of a tenant for each key: they begin with another column, or with
-- the tenant in the collation "POSIX" (which sorts as "C" does).

-- Versions of rows: none comes twice, also of a row that was deleted and created again. No cache: versions that sessions
-- had reserved would not grow with each change of a row.
CREATE SEQUENCE tidings.row_version CACHE 1;

-- The people who can be notified.
CREATE TABLE tidings.app_user (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    name text COLLATE "C",       -- Their name.
    email text COLLATE "C",      -- Their e-mail address.
    phone text COLLATE "C",      -- Their telephone number.
    webhook text COLLATE "C",    -- The URL of their webhook.
    zone text COLLATE "C",       -- Their time zone.
    locale text COLLATE "C",     -- Their language.
    email_key text COLLATE "C",  -- A digest of the normalised e-mail address, by which it is found.
    phone_key text COLLATE "C",  -- A digest of the normalised telephone number, by which it is found.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX app_user_until ON tidings.app_user (until) WHERE until IS NOT NULL;
CREATE INDEX app_user_email ON tidings.app_user (email_key, tenant, id) WHERE email_key IS NOT NULL;
CREATE INDEX app_user_phone ON tidings.app_user (phone_key, tenant, id) WHERE phone_key IS NOT NULL;

-- Accepted notifications. When one is due is in its schedule, which has the same id.
CREATE TABLE tidings.notification (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    user_id text COLLATE "C",    -- The user that it is for; NULL if it is for an address.
    address_key text COLLATE "C", -- A digest of the address that it is for, if it is for no user.
    channels text COLLATE "C",   -- The channels that it may leave through, in order, separated by commas.
    template text COLLATE "C",   -- Its template; NULL if it has its own content.
    template_version bigint,     -- The version of the template that it is bound to; NULL: the latest one.
    category text COLLATE "C",   -- Its category, for preferences and unsubscribing.
    priority text COLLATE "C",   -- high, normal or low.
    batch text COLLATE "C",      -- The batch that it belongs to.
    created bigint,              -- When it was accepted.
    cancelled bigint,            -- When it was cancelled.
    duplicate_of text COLLATE "C", -- The notification whose dedupe key it repeats: it is not sent.
    is_local bigint,             -- 1 if its time is local time in the user's time zone; NULL otherwise.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX notification_until ON tidings.notification (until) WHERE until IS NOT NULL;
CREATE INDEX notification_created ON tidings.notification (tenant COLLATE "POSIX", created, id);
CREATE INDEX notification_local ON tidings.notification (user_id, tenant, created, id) WHERE is_local IS NOT NULL;
CREATE INDEX notification_user ON tidings.notification (user_id, tenant, created, id) WHERE user_id IS NOT NULL;
CREATE INDEX notification_address ON tidings.notification (address_key, tenant, created, id) WHERE address_key IS NOT NULL;
CREATE INDEX notification_template ON tidings.notification (template, tenant, created, id) WHERE template IS NOT NULL;
CREATE INDEX notification_group ON tidings.notification (batch, tenant, created, id) WHERE batch IS NOT NULL;

-- One occurrence of a notification on its way to its recipient: its state, its attempts and its result.
CREATE TABLE tidings.delivery (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    notification text COLLATE "C", -- The notification that it belongs to.
    user_id text COLLATE "C",    -- The user that it is for; NULL if it is for an address.
    address_key text COLLATE "C", -- A digest of the address that it is for, if it is for no user.
    channel text COLLATE "C",    -- The channel that it leaves through.
    state text COLLATE "C",      -- pending, processing, sent, delivered, bounced, complained, failed, cancelled,
                                 -- expired or skipped.
    reason text COLLATE "C",     -- Why it is in this state.
    trouble text COLLATE "C",    -- The state again if it is failed, bounced, complained or expired; NULL otherwise.
    due bigint,                  -- When it was due.
    next_try bigint,             -- When it is tried again.
    turn bigint,                 -- How often it was put on the timeline.
    attempts bigint,             -- How often a provider was called.
    claim_worker text COLLATE "C", -- The worker that has claimed it.
    claim_until bigint,          -- When that claim ends.
    provider text COLLATE "C",   -- The provider that accepted it.
    provider_id text COLLATE "C", -- The id that the provider gave it.
    sent bigint,                 -- When the provider accepted it.
    changed bigint,              -- When the row was last changed.
    held_for text COLLATE "C",   -- The user for the end of whose quiet hours it waits.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX delivery_until ON tidings.delivery (until) WHERE until IS NOT NULL;
CREATE INDEX delivery_due ON tidings.delivery (tenant COLLATE "POSIX", due, name);
CREATE INDEX delivery_notification ON tidings.delivery (notification, tenant, due, name);
CREATE INDEX delivery_user ON tidings.delivery (user_id, tenant, due, name) WHERE user_id IS NOT NULL;
CREATE INDEX delivery_address ON tidings.delivery (address_key, tenant, due, name) WHERE address_key IS NOT NULL;
CREATE INDEX delivery_held ON tidings.delivery (held_for, tenant, due, name) WHERE held_for IS NOT NULL;
CREATE INDEX delivery_trouble ON tidings.delivery (trouble, tenant, due, name) WHERE trouble IS NOT NULL;

-- Addresses that nothing may be sent to. The id is the channel, the digest of the address, and the category.
CREATE TABLE tidings.suppression (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    channel text COLLATE "C",    -- The channel of the address.
    address_key text COLLATE "C", -- The channel and the digest of the normalised address.
    address text COLLATE "C",    -- The address; NULL once its owner was erased.
    category text COLLATE "C",   -- The category that is not sent; NULL: nothing is.
    user_id text COLLATE "C",    -- The user whose address it is, if that is known.
    reason text COLLATE "C",     -- Why.
    since bigint,                -- Since when.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX suppression_until ON tidings.suppression (until) WHERE until IS NOT NULL;
CREATE INDEX suppression_since ON tidings.suppression (tenant COLLATE "POSIX", since, id);
CREATE INDEX suppression_channel ON tidings.suppression (channel, tenant, since, id);
CREATE INDEX suppression_address ON tidings.suppression (address_key, tenant, since, id);
CREATE INDEX suppression_user ON tidings.suppression (user_id, tenant, since, id) WHERE user_id IS NOT NULL;

-- Dedupe keys in use, as digests of the key and the recipient.
CREATE TABLE tidings.dedupe_key (
    tenant text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    notification text COLLATE "C", -- The notification that has the key.
    user_id text COLLATE "C",    -- The user that it is for.
    created bigint,              -- When it was accepted.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, digest)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dedupe_key_until ON tidings.dedupe_key (until) WHERE until IS NOT NULL;
CREATE INDEX dedupe_key_user ON tidings.dedupe_key (user_id, tenant, created, digest) WHERE user_id IS NOT NULL;

-- Templates, each with the number of its latest version.
CREATE TABLE tidings.template (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    latest bigint,               -- Its latest version.
    changed bigint,              -- When that version was stored.
    deleted bigint,              -- 1 if it was deleted.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX template_until ON tidings.template (until) WHERE until IS NOT NULL;

-- The versions of templates, which never change. The id is the name, a slash and the number.
CREATE TABLE tidings.template_version (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    template text COLLATE "C",   -- The template.
    number bigint,               -- The number of the version.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX template_version_until ON tidings.template_version (until) WHERE until IS NOT NULL;

-- The in-app messages of users. The id is the user, a slash and the id of the message.
CREATE TABLE tidings.inbox (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    user_id text COLLATE "C",    -- The user.
    unread_by text COLLATE "C",  -- The user again while it is unread; NULL otherwise.
    title text COLLATE "C",      -- The title.
    created bigint,              -- When it arrived.
    read bigint,                 -- When it was read.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX inbox_until ON tidings.inbox (until) WHERE until IS NOT NULL;
CREATE INDEX inbox_user ON tidings.inbox (user_id, tenant, created, id);
CREATE INDEX inbox_unread ON tidings.inbox (unread_by, tenant, created, id) WHERE unread_by IS NOT NULL;

-- The ids that providers gave to messages, and receipts that wait for their message; the tenant is empty.
CREATE TABLE tidings.provider_message (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    owner text COLLATE "C",      -- The tenant that the message belongs to.
    delivery text COLLATE "C",   -- Its delivery.
    user_key text COLLATE "C",   -- The tenant and the user.
    created bigint,              -- When the provider accepted it, or its first receipt came.
    kept_for text COLLATE "C",   -- The provider, and the tenant if it is known, while receipts wait for their message.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX provider_message_until ON tidings.provider_message (until) WHERE until IS NOT NULL;
CREATE INDEX provider_message_user ON tidings.provider_message (user_key, tenant, created, id) WHERE user_key IS NOT NULL;
CREATE INDEX provider_message_kept ON tidings.provider_message (kept_for, tenant, created, id) WHERE kept_for IS NOT NULL;

-- The token buckets of rate limits, of a provider (the tenant is empty) or of a tenant at a provider.
CREATE TABLE tidings.rate_limit (
    tenant text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    parts bigint,                -- What is left, in millionths of a token.
    at bigint,                   -- When that was computed.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, provider)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX rate_limit_until ON tidings.rate_limit (until) WHERE until IS NOT NULL;

-- Circuit breakers that are not closed, of a provider or of one receiver of webhooks.
CREATE TABLE tidings.circuit_breaker (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    until bigint,
    reason text COLLATE "C",     -- Why it was opened.
    open_until bigint,           -- When it becomes half-open.
    times bigint,                -- How often in a row it was opened.
    worker text COLLATE "C",     -- The worker that makes the trial call.
    body bytea NOT NULL,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX circuit_breaker_until ON tidings.circuit_breaker (until) WHERE until IS NOT NULL;

-- For operators: the addresses of users, one in each row. The devices of a user are in the body.
CREATE VIEW tidings.address AS
SELECT tenant, id AS user_id, channel, address FROM tidings.app_user
CROSS JOIN LATERAL (VALUES ('email', email), ('sms', phone), ('webhook', webhook)) AS a(channel, address)
WHERE address IS NOT NULL;

-- How far the documents of version 0.1 were copied into these tables: all up to this key. The first node of this version
-- copies them, in slices, before it serves anything.
CREATE TABLE tidings.document_migration (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    after uuid NOT NULL,
    is_complete boolean NOT NULL
);
INSERT INTO tidings.document_migration (after, is_complete) VALUES ('00000000-0000-0000-0000-000000000000', false);
