"""Fixtures: servers of their own, because they are killed."""

from collections.abc import Iterator

import pytest

from tests.servers.fixtures import started_broker, started_postgres
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    yield from started_postgres()


@pytest.fixture
def broker() -> Iterator[Broker]:
    yield from started_broker()
