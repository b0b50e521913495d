"""A store that released to Kafka is moved: its successor continues, and every record is sent exactly once."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.kafka.fleet import fleet_on, schema_of
from tests.kafka.site import Site, opened
from tests.servers.fixtures import postgres
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tidings.bus.kafka.producers import ProgressMismatch
from tidings.config.checks import StoreUrl
from tidings.domain.schedules.schedule import Request
from tidings.node.stores import copy_store, take_back
from tidings.testing import eventually

__all__ = ["postgres"]

pytestmark = pytest.mark.slow

MESSAGES = 200  # enough for every lane of the target


async def schedule(site: Site, topic: str, count: int, at: str | None = None) -> list[str]:
    """This many schedules, each with its own value."""
    values = [f"{at} {number} {topic}" for number in range(count)]
    requests = [Request(topic, value.encode(), id=value, at=at) for value in values]
    await site.engine.submit([site.engine.admit("acme", request) for request in requests])
    return values


async def copy(file: Path, postgres: Postgres, name: str) -> None:
    target = StoreUrl(postgres.dsn, schema_of(name))
    await asyncio.to_thread(copy_store, StoreUrl(f"sqlite:{file}"), target, False, lambda *_: None)


async def ends_estranged(site: Site, text: str) -> None:
    with pytest.raises(ProgressMismatch, match=text):
        await asyncio.wait_for(site.engine.wait(), 30)


async def test_nodes_on_the_new_store_continue_where_the_file_ended(
    broker: Broker, postgres: Postgres, tmp_path: Path
) -> None:
    async with opened(broker, tmp_path) as site:
        name, topic = site.name, f"{site.name}-out"
        sent = await schedule(site, topic, MESSAGES)
        await site.read(topic, len(sent))
        sent += await schedule(site, topic, MESSAGES, at="+5s")
        sent += await schedule(site, topic, 5, at="+0.5s")
        await site.read(topic, MESSAGES + 5)
    await copy(tmp_path / "site.db", postgres, name)
    async with fleet_on(broker, postgres, name=name, stats="off", facts="off") as fleet:
        nodes = [await fleet.start(), await fleet.start()]
        sent += await schedule(nodes[1], topic, MESSAGES, at="+2s")
        records = await nodes[0].read(topic, len(sent))
        await eventually(lambda: not any(node.engine.problems() for node in nodes), timeout_s=20)
        await fleet.stop(nodes[0])  # the next owner of its lanes finds markers of this store
        sent += await schedule(nodes[1], topic, MESSAGES, at="+1s")
        records = await nodes[1].read(topic, len(sent))
        assert Counter((record.value() or b"").decode() for record in records) == Counter(sent)
    await asyncio.to_thread(take_back, StoreUrl(f"sqlite:{tmp_path / 'site.db'}"))
    async with opened(broker, tmp_path, name=name) as site:
        await ends_estranged(site, "belongs to another store")


async def test_a_store_restored_before_it_was_copied_is_refused(
    broker: Broker, postgres: Postgres, tmp_path: Path
) -> None:
    async with opened(broker, tmp_path) as site:
        name, topic = site.name, f"{site.name}-out"
        await schedule(site, topic, 3)
        await site.read(topic, 3)
    shutil.copytree(tmp_path, tmp_path / "backup", ignore=shutil.ignore_patterns("backup"))
    async with opened(broker, tmp_path, name=name) as site:
        await schedule(site, topic, 5, at="+0.1s")
        await site.read(topic, 8)
    await copy(tmp_path / "backup" / "site.db", postgres, name)
    async with fleet_on(broker, postgres, name=name, stats="off", facts="off") as fleet:
        await ends_estranged(await fleet.start(), "put back to an older state before it was copied")
