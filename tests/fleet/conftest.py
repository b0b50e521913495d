"""The fixtures of these tests: servers that are theirs alone, for they are killed."""

from collections.abc import Iterator

import pytest

from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out, started_broker
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    try:
        started = Postgres.start()
    except Missing as missing:
        leave_out(missing)
    with started:
        yield started


@pytest.fixture
def broker() -> Iterator[Broker]:
    yield from started_broker()
