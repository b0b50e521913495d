"""Users, their addresses, preferences, suppressions and inboxes, and their erasure."""
