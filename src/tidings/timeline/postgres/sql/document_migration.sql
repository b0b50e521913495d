-- The migration of the documents of version 0.1 to tables.

-- name: has_documents
-- Whether there are documents to be moved.
SELECT 1 WHERE to_regclass('tidings.document') IS NOT NULL;

-- name: take
-- How far it has come, locked so that one node at a time copies a slice; no row while another node does.
SELECT after, is_complete FROM tidings.document_migration FOR UPDATE SKIP LOCKED;

-- name: after
-- How far it has come.
SELECT after FROM tidings.document_migration;

-- name: close
-- Reject changes of documents from now on, also those of nodes of version 0.1 that still run. Versions of rows continue
-- after those of documents.
CREATE OR REPLACE TRIGGER has_tables BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON tidings.document
FOR EACH STATEMENT EXECUTE FUNCTION tidings.refuse_documents();
SELECT setval('tidings.row_version', greatest(r.last_value, d.last_value)) FROM tidings.row_version r, tidings.document_version d;

-- name: page
-- The next documents.
SELECT key, tenant, kind, name, body, version, tags, "order", until FROM tidings.document
WHERE key > %s ORDER BY key LIMIT %s;

-- name: advance
-- Documents up to a key are copied.
UPDATE tidings.document_migration SET after = %s, is_complete = %s;

-- name: drop
-- Drop the documents and the functions of version 0.1.
DROP TABLE tidings.document, tidings.tagged, tidings.document_migration;
DROP SEQUENCE tidings.document_version;
DROP FUNCTION IF EXISTS tidings.change_documents, tidings.expire_documents;
