"""While Kafka is down, due schedules stay on the timeline, can be changed, and keep their lateness policies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kafka.site import Site, opened
from tests.servers.kafka import Broker
from tidings.domain.schedules.command import Cancel
from tidings.domain.schedules.schedule import Request
from tidings.testing import eventually
from tidings.timeline.store_rules import OutboxCapacity

pytestmark = pytest.mark.slow

KNOWN_S_MAX = 40.0


@pytest.fixture
async def site(broker: Broker, tmp_path: Path) -> AsyncIterator[Site]:
    async with opened(broker, tmp_path) as made:
        await made.engine.schedule("acme", Request(made.name, b"before"))
        await made.read(made.name, 1)
        yield made


async def state(site: Site, name: str) -> tuple[str, str | None]:
    found = await site.engine.find("acme", name)
    assert found is not None
    return found.state, found.reason


@pytest.mark.parametrize("way", ["killed", "paused"])
async def test_schedules_due_during_an_outage(site: Site, way: str) -> None:
    broker, topic = site.broker, site.name
    if way == "killed":
        broker.kill()
    else:
        broker.pause()
        await site.engine.schedule("acme", Request(topic, b"tells that it is away", id="first"))
    await eventually(site.engine.problems, timeout_s=KNOWN_S_MAX)
    for name, more in (("expires", {"expires_after": "PT1S"}), ("late", {"late_max": "PT1S"}), ("stays", {})):
        await site.engine.schedule("acme", Request(topic, name.encode(), id=name, **more))  # type: ignore[arg-type]
    await site.engine.schedule("acme", Request(topic, b"cancelled", id="cancelled"))
    over = site.engine.clock.now() + 1_500_000
    await site.engine.schedule("acme", Request(f"{topic}-log", b"log", id="log", bus="log"))
    await eventually(lambda: is_released(site, "log"), timeout_s=10)
    (outcome,) = await site.engine.submit([Cancel("acme", "cancelled")])
    assert outcome.outcome == "cancelled"
    await eventually(lambda: site.engine.clock.now() > over, timeout_s=10)
    if way == "killed":
        await asyncio.to_thread(broker.restart)
    else:
        broker.resume()
    values = [b"before", b"stays"] if way == "killed" else [b"before", b"tells that it is away", b"stays"]
    records = await site.read(topic, len(values))
    assert [record.value() for record in records] == values
    assert await state(site, "expires") == ("missed", "expired")
    assert await state(site, "late") == ("missed", "late_max")


async def is_released(site: Site, name: str) -> bool:
    return (await state(site, name))[0] == "released"


async def test_records_that_expire_in_the_outbox_are_not_published(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """They enter it as if the outage was not noticed yet. There they can neither be cancelled nor change."""
    broker, topic = site.broker, site.name
    monkeypatch.setattr(OutboxCapacity, "shut", lambda *_: False)
    broker.kill()
    for name, after in (("expires", "PT1S"), ("stays", "PT1H")):
        await site.engine.schedule("acme", Request(topic, name.encode(), id=name, expires_after=after))
    over = site.engine.clock.now() + 2_000_000
    await eventually(site.engine.problems, timeout_s=KNOWN_S_MAX)
    await eventually(lambda: site.engine.clock.now() > over, timeout_s=10)
    assert {await state(site, name) for name in ("expires", "stays")} == {("in_flight", None)}
    await asyncio.to_thread(broker.restart)
    records = await site.read(topic, 2)
    assert [record.value() for record in records] == [b"before", b"stays"]
    await eventually(lambda: is_released(site, "stays"), timeout_s=10)
    assert await state(site, "expires") == ("missed", "expired")
    for name in ("expires", "stays"):
        events = await site.engine.history("acme", name)
        assert events[-1].at >= over, "the moment at which it left, or was dropped"
