"""A fleet in this process: several engines over one PostgreSQL and one broker."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

from tests.kafka.site import Site
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import abandon
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Node
from tidings.domain.fleet import ROLES, Role
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka
from tidings.timeline.postgres.store import PostgresStore


class Fleet:
    """The nodes of a fleet."""

    def __init__(self, broker: Broker, postgres: Postgres, lanes: int, settings: dict[str, Any]) -> None:
        self.name: str = settings.pop("name", f"fleet-{uuid.uuid4().hex[:8]}")
        self.broker = broker
        self._postgres = postgres
        self._lanes = lanes
        self._kafka = Kafka(servers=broker.bootstrap, name=self.name, **settings)
        self._living: list[Engine] = []

    async def start(self, roles: tuple[Role, ...] = ROLES) -> Site:
        """Start a node."""
        config = Config(kafka=self._kafka, node=Node(roles=roles))
        clock = SystemClock()
        store = await PostgresStore.open(self._postgres.dsn, clock, schema=schema_of(self.name), lanes=self._lanes)
        engine = build_engine(store, config, clock)
        join_kafka(engine, config)
        await engine.start()
        self._living.append(engine)
        return Site(engine, self.broker, self.name)

    async def stop(self, site: Site) -> None:
        """Stop a node cleanly."""
        self._living.remove(site.engine)
        await site.engine.stop()

    async def kill(self, site: Site) -> None:
        """Kill a node: nothing is handed over, no lease released."""
        self._living.remove(site.engine)
        await abandon(site.engine)

    async def close(self) -> None:
        for engine in list(self._living):
            await engine.stop()


def schema_of(name: str) -> str:
    """The settings of a fleet."""
    return name.replace("-", "_")


@contextlib.asynccontextmanager
async def fleet_on(broker: Broker, postgres: Postgres, *, lanes: int = 4, **settings: Any) -> AsyncIterator[Fleet]:
    """A new fleet without nodes."""
    fleet = Fleet(broker, postgres, lanes, settings)
    try:
        yield fleet
    finally:
        await fleet.close()
