"""Releasing what is due: into the log, or into the outbox for Kafka."""
