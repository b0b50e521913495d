"""Observability: logs and metrics, made from facts."""
