"""Kafka as a bus: the outbox is forwarded to it, each record once."""
