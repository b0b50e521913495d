"""Notifications over HTTP: people, what they are told, and what became of it."""
