"""The fixtures of these tests: a real broker, and an engine beside it."""

from collections.abc import Iterator

import pytest

from tests.kafka.served import served, tenant
from tests.kafka.site import Site, site
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out, topic
from tests.servers.kafka import Broker

__all__ = ["Site", "broker", "served", "site", "tenant", "topic"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One for each file: a node serves every request topic that it finds, those of other tests too."""
    try:
        started = Broker.start()
    except Missing as missing:
        leave_out(missing)
    with started:
        yield started
