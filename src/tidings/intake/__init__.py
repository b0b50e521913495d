"""Intake: from a request to a durable row."""
