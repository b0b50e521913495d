"""Notifications: users and their addresses, messages, deliveries, and the limits of providers."""
