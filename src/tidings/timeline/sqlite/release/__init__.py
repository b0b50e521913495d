"""The release of due rows to the log or the outbox, and reading both."""
