"""Fixtures for tests that need a server."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NoReturn, TypeVar

import pytest

from tests.servers.downloads import Missing
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres

Server = TypeVar("Server")


def leave_out(missing: Missing) -> NoReturn:
    """Skip the test and say what to install; in CI, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(missing), pytrace=False)
    pytest.skip(str(missing))


def _started(start: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """A server for the duration of a fixture."""
    try:
        starting = start()
    except Missing as missing:
        leave_out(missing)
    with starting as started:
        yield started


def started_broker() -> Iterator[Broker]:
    """A broker for the duration of a fixture."""
    yield from _started(Broker.start)


def started_postgres() -> Iterator[Postgres]:
    """A PostgreSQL for the duration of a fixture."""
    yield from _started(Postgres.start)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One broker for all tests that leave it as they found it; use unique topics, groups and transactional ids."""
    yield from started_broker()


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic of one partition."""
    name = f"topic-{uuid.uuid4()}"
    broker.create_topic(name)
    return name


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests that leave it as they found it; each store in a schema of its own."""
    yield from started_postgres()
