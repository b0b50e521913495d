"""Makes the stores of the fixtures with version 0.1: with everything in them that 0.1 can store.

It runs under the code of 0.1 (commit b59d178), in a work tree of that commit with its own `.venv`:

    cp -r tests/upgrades OLD/tests/
    cd OLD
    .venv/bin/python -m tests.upgrades.make_store FOLDER

It writes, for each store, its content (`0.1.db.xz`, `0.1.sql.xz`) and the answers that 0.1 gave to every read and to
every repeated request (`0.1.db.json.xz`, `0.1.sql.json.xz`). It needs Kafka and PostgreSQL, as the tests do, and takes
about two minutes. The nodes run on a clock that starts at `START`. `SOON` is one and a half hours later, `FAR` years.

To add something, extend `schedules.py`, `kafka_requests.py` or `notifications.py`, and `answers.py` if it is read by
another path; run this again, and commit the four files together. A later version gets fixtures of its own.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tests.upgrades import kafka_requests, notifications, schedules
from tests.upgrades.answers import read_all
from tests.upgrades.databases import Database, PostgresDatabase, SqliteFile, write_fixture
from tests.upgrades.node import Client, ShiftedClock, running
from tests.upgrades.requests import Requests
from tests.upgrades.settings import write_settings

START = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z
LATE_US = 600_000_000
WITHOUT_WORKER = ("api", "dispatch")
ALL_ROLES = ("api", "intake", "dispatch", "deliver")


class Maker:
    """Makes one store: each step is a node, which the next one replaces."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._clock = ShiftedClock(START)
        self._requests = Requests()
        self._key: str | None = None
        self._facts: dict[str, Any] = {}

    async def make(self, broker: Broker) -> dict[str, Any]:
        """Fill the store; returns what the fixture says of it."""
        async with self._node(WITHOUT_WORKER) as client:
            await schedules.make(client, self._requests)
        self._clock.skip(LATE_US)  # now some of them are late
        async with self._node(ALL_ROLES, kafka_requests.settings(broker)) as client:
            await kafka_requests.make(client, self._requests, broker, self._database.crash)
        async with self._node(ALL_ROLES) as client:
            await notifications.make(client, self._requests, self._database, self._folder, self._facts, self._clock)
            self._key = client.key
        async with self._node(WITHOUT_WORKER) as client:
            await notifications.make_unread(client, self._requests)
            await schedules.check(client)
            repeats = await self._requests.repeat(client)
            answers = await read_all(client)
            now = self._clock.now()
        return {
            "now": now,
            "key": self._key,
            "facts": self._facts,
            "requests": self._requests.sent,
            "repeats": repeats,
            "answers": answers,
        }

    @asynccontextmanager
    async def _node(self, roles: tuple[str, ...], more: str = "") -> AsyncIterator[Client]:
        self._database.shift(self._clock.shift_us)
        settings = write_settings(self._folder, self._database.address, roles=roles, more=more)
        async with running(settings, self._clock, self._key) as client:
            yield client


async def main(target: Path, names: Sequence[str]) -> None:
    """Make the stores, both unless they are named, and write their fixtures."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(Postgres.start())
        for database in (SqliteFile(folder), PostgresDatabase(postgres)):
            if names and database.name not in names:
                continue
            work = folder / database.name
            work.mkdir()
            with Broker.start() as broker:
                found = await Maker(database, work).make(broker)
            write_fixture(target, database.name, database.dump())
            write_fixture(target, f"{database.name}.json", msgspec.json.encode(found))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
