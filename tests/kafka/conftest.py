"""The fixtures of these tests: a real broker, and an engine beside it."""

from collections.abc import Iterator

import pytest

from tests.kafka.served import served, tenant
from tests.kafka.site import Site, site
from tests.servers.fixtures import started_broker, topic
from tests.servers.kafka import Broker

__all__ = ["Site", "broker", "served", "site", "tenant", "topic"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One for each file: a node serves every request topic that it finds, those of other tests too."""
    yield from started_broker()
