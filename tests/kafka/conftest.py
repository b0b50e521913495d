"""The fixtures of these tests: a real broker, and an engine beside it."""

from tests.kafka.served import served, tenant
from tests.kafka.site import Site, site
from tests.servers.fixtures import broker, topic

__all__ = ["Site", "broker", "served", "site", "tenant", "topic"]
