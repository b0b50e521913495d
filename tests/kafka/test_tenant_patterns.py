"""Two stores on one cluster: with restricted tenants each request is accepted once, without them twice."""

import time
import uuid
from pathlib import Path

import pytest

from tests.kafka.site import Header, Site, headers_of, opened, read_all
from tests.servers.kafka import Broker

pytestmark = pytest.mark.slow

SOON: list[Header] = [("intervals-schedule", b"PT0.1S")]


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


async def test_each_tenant_is_served_by_the_store_that_names_it(broker: Broker, tmp_path: Path) -> None:
    east, west, both = unique("east"), unique("west"), unique("both")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with (
        opened(broker, first, tenants=("east-*", "both-*")) as one,
        opened(broker, second, tenants=("west-*", "both-*")) as other,
    ):
        for tenant in (east, west, both):
            one.send(f"assignments.{tenant}", tenant.encode(), None, SOON)
        assert len(await one.read(f"executions.{both}", 2)) == 2
        assert len(await one.read(f"executions.{east}", 1)) == 1
        assert len(await other.read(f"executions.{west}", 1)) == 1
        assert sources(await one.engine.store.positions()) == {f"assignments.{east}", f"assignments.{both}"}
        assert sources(await other.engine.store.positions()) == {f"assignments.{west}", f"assignments.{both}"}
    assert [len(read_all(broker, f"executions.{tenant}")) for tenant in (east, west, both)] == [1, 1, 2]


def sources(positions: dict[tuple[str, int], int]) -> set[str]:
    return {source.partition("@")[0] for source, _ in positions}


async def test_a_disabled_wire_is_read_once_it_is_enabled(broker: Broker, tmp_path: Path) -> None:
    tenant = unique("later")
    async with opened(broker, tmp_path, wires=("native",), tenants=("later-*",)) as site:
        site.send(f"assignments.{tenant}", b"kept", None, SOON)
        site.send(f"tidings.requests.{tenant}", b"taken", None, [("tidings-to", f"{tenant}-out")])
        (record,) = await site.read(f"{tenant}-out", 1)
        assert record.value() == b"taken"
        assert f"executions.{tenant}" not in broker.topics()
    async with opened(broker, tmp_path, tenants=("later-*",)) as site:
        (record,) = await site.read(f"executions.{tenant}", 1)
        assert record.value() == b"kept"


async def test_etf1_topics_have_their_tenants(broker: Broker, tmp_path: Path) -> None:
    videos, tenant = unique("videos"), unique("shop")
    out = f"{tenant}-out"
    allowed = {tenant: (f"{tenant}-*",)}
    async with opened(broker, tmp_path, wires=("etf1",), schedules={videos: tenant}, destinations=allowed) as site:
        epoch = ("scheduler-epoch", str(int(time.time())).encode())
        site.send(videos, b"hello", b"one", [epoch, ("scheduler-target-topic", out)])
        site.send(videos, b"elsewhere", b"two", [epoch, ("scheduler-target-topic", "elsewhere")])
        (record,) = await site.read(out, 1)
        assert record.value() == b"hello"
        (rejection,) = await site.read(f"rejections.{tenant}", 1)
        reason = dict(headers_of(rejection))["tidings-reject-reason"]
        said = f"elsewhere is not among the topics that {tenant} may write to: {tenant}-*"
        assert reason == f"scheduler-target-topic: {said}".encode()
        assert (await site.engine.find(tenant, "one")) is not None


async def test_destination_patterns_do_not_restrict_executions(broker: Broker, tmp_path: Path) -> None:
    tenant = unique("mute")
    async with opened(broker, tmp_path, tenants=(tenant,), destinations={tenant: ()}) as site:
        await refused(site, tenant)
        site.send(f"assignments.{tenant}", b"hello", None, SOON)
        (record,) = await site.read(f"executions.{tenant}", 1)
        assert record.value() == b"hello"


async def refused(site: Site, tenant: str) -> None:
    site.send(f"tidings.requests.{tenant}", b"no", None, [("tidings-to", "anywhere")])
    await site.read(f"tidings.rejections.{tenant}", 1)
