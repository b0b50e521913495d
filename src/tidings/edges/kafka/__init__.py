"""Kafka as an edge: requests on topics become schedules."""
