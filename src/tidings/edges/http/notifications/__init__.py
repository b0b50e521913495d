"""The HTTP resources of notifications: users, templates, deliveries, inboxes, suppressions."""
