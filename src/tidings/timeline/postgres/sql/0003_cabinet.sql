-- The cabinet: small documents, found by name or by tag.

-- Versions of documents: none comes twice, also of one that was removed and put again.
CREATE SEQUENCE tidings.document_version CACHE 1;

-- `key` is a digest of tenant, kind and name, which are UTF-8: any text, and in the order of its bytes. What changes most
-- (body, version) is in no index, so that most updates stay in their page.
CREATE TABLE tidings.document (
    key uuid PRIMARY KEY,
    version bigint NOT NULL,
    "order" bigint NOT NULL,
    until bigint,                     -- from then on it is as if it were not there
    shelves uuid[] NOT NULL,          -- a digest for each tag: where `tagged` has it
    tenant bytea NOT NULL,
    kind bytea NOT NULL,
    name bytea NOT NULL,
    tags bytea NOT NULL,              -- empty, or a list of texts
    body bytea NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX document_until ON tidings.document (until) WHERE until IS NOT NULL;

-- Under each tag the documents that have it, in their order. A shelf is a digest of tenant, kind and tag.
CREATE TABLE tidings.tagged (
    shelf uuid NOT NULL,
    "order" bigint NOT NULL,
    name bytea NOT NULL,
    key uuid NOT NULL,
    PRIMARY KEY (shelf, "order", name)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
