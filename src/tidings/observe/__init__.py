"""Observation: logs and metrics, which listen to facts."""
