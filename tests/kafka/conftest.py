"""Fixtures: a real broker, and an engine connected to it."""

from collections.abc import Iterator

import pytest

from tests.kafka.served import served, tenant
from tests.kafka.site import Site, site
from tests.servers.fixtures import started_broker, topic
from tests.servers.kafka import Broker

__all__ = ["Site", "broker", "served", "site", "tenant", "topic"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker per file, because a node reads every request topic that it finds."""
    yield from started_broker()
