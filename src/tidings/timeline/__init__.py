"""The stores: memory (the reference implementation, for tests), SQLite and PostgreSQL."""
