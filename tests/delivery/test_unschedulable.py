"""Retries that cannot be scheduled: their ids are used already, or the timeline refuses them."""

from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from tests.delivery.world import SECOND, TENANT, Recorder, World, ada, schedule, started_world, states, words
from tidings.delivery.rows import change, delivery_put
from tidings.delivery.templates.renderer import Renderer
from tidings.delivery.worker import job as jobs
from tidings.delivery.worker import pipeline
from tidings.delivery.worker.context import ContextLoader, DeliveryContext
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.facts import Poisoned
from tidings.domain.notifications.delivery import Delivery, Permanent, Temporary
from tidings.domain.notifications.notification import DEAD_TOPIC, GROUP, DeliveryJob
from tidings.domain.schedules.command import Add, Cancel, Command, Outcome
from tidings.domain.schedules.schedule import Message, Record, pack
from tidings.domain.schedules.when import Once
from tidings.ports.tables import ChangeGroup, GroupResult
from tidings.testing import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


def refused(channel: str) -> Recorder:
    provider = Recorder()
    is_mail = channel == "email"
    provider.answer = lambda message: Permanent("content_refused") if ("@" in str(message.to)) == is_mail else None
    return provider


@pytest.mark.parametrize("ahead_us", [-SECOND, 3_600 * SECOND], ids=["released", "pending"])
async def test_a_job_that_a_killed_worker_left_for_another_channel(world: World, ahead_us: int) -> None:
    """It had scheduled a retry and crashed before the delivery was written; then the next channel is used."""
    notification = words("n-1", "email", "sms")
    left = jobs.retry_schedule(
        TENANT, notification, DeliveryJob("n-1", delivery="n-1/1", attempt=2), world.clock.now() + ahead_us
    )
    await world.engine.submit([left])
    provider = refused("email")
    world.start(world.worker({"all": provider}))
    await world.notify(notification)
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.channel) == ("sent", "sms")
    assert sum(str(message.to).startswith("+") for message in provider.calls) == 1


async def test_a_job_whose_id_is_already_used(world: World) -> None:
    later = world.clock.now() + 3_600 * SECOND
    taken = Add(TENANT, "n-1/1~2", "greetings", Once(later), pack(Message(None, b"hi")), b"o" * 16, later)
    cancelled = jobs.retry_schedule(TENANT, words("n-1"), DeliveryJob("n-1", delivery="n-1/1", attempt=3), later)
    await world.engine.submit([taken, cancelled, Cancel(TENANT, "n-1/1~3", with_deliveries=True)])
    provider = Recorder()
    provider.answer = lambda _: Temporary("provider_error") if len(provider.calls) == 1 else None
    world.start(world.worker({"mail": provider}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.turn, len(provider.calls)) == ("sent", 4, 2)


class Full:
    """An engine that refuses schedules for some topics."""

    def __init__(self, world: World, *topics: str) -> None:
        self._world = world
        self._topics = topics

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        [add] = commands
        if isinstance(add, Add) and add.topic in self._topics:
            return [Outcome(add.id or "", "rejected", reason="topic: there are 10000 already, use one of them")]
        return await self._world.engine.submit(commands)

    async def commit(self, groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        results = []
        for group in groups:
            if isinstance(group.command, Add) and group.command.topic in self._topics:
                [outcome] = await self.submit([group.command])
                results.append(GroupResult(0, outcome))
            else:
                results += await self._world.engine.commit([group])
        return results


async def test_a_delivery_whose_retry_cannot_be_scheduled_fails_with_the_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    full = Full(world, "notify.sms", DEAD_TOPIC)
    world.start(world.worker({"all": refused("email")}, submit=full.submit, commit=full.commit))
    await world.notify(words("n-1", "email", "sms"), words("n-2"))
    found = await world.settled("n-1/1", "n-2/1")
    assert states(found) == {"failed": 2}
    assert found[0].reason == "not_scheduled: topic: there are 10000 already, use one of them"
    assert found[1].reason == "content_refused"
    assert "its next attempt cannot be scheduled: topic" in caplog.text
    assert "cannot be scheduled on notify.dead" in caplog.text
    assert await world.dead() == []


async def test_one_of_all_channels_cannot_be_scheduled(world: World) -> None:
    full = Full(world, "notify.sms")
    world.start(world.worker({"all": Recorder()}, submit=full.submit))
    await world.notify(words("n-1", "email", "sms", spread="all"))
    mail, phone = await world.settled("n-1/1/email", "n-1/1/sms")
    assert (mail.state, phone.state) == ("sent", "failed")
    assert phone.reason.startswith("not_scheduled")
    assert len(await eventually(world.dead)) == 1


async def test_a_poison_message_that_cannot_become_a_dead_letter_does_not_block_the_worker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.start(world.worker({"all": Recorder()}, submit=Full(world, DEAD_TOPIC).submit))
    poison = schedule(words("bad"), world.clock.now(), DeliveryJob())
    await world.engine.submit([poison])
    await eventually(lambda: f"~poison of tenant {TENANT} cannot be scheduled on notify.dead" in caplog.text)
    committed = await eventually(lambda: world.store.committed(TENANT, "notify.email", "tidings.deliver"))
    assert sum(committed.values()) == 1


class Mistaken:
    """A function that always raises an internal error, whether it is awaited or not."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, *_: object) -> None:
        self.asked += 1
        raise AttributeError("a mistake")


@pytest.mark.slow
async def test_an_internal_error_while_the_store_is_unavailable_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempts are left when the store fails: the record must not count as settled before it is given up."""
    mistaken, real, away = Mistaken(), ContextLoader.load, 3
    monkeypatch.setattr(Renderer, "content", mistaken)
    monkeypatch.setattr(pipeline, "PAUSE_S", 0.01)

    async def load(
        self: ContextLoader, wanted: Sequence[tuple[str, Record, DeliveryJob]]
    ) -> list[DeliveryContext | Invalid | None]:
        nonlocal away
        if mistaken.asked == pipeline.TRIES_MAX and away:
            away -= 1
            raise StoreError("away for a moment")
        return await real(self, wanted)

    monkeypatch.setattr(ContextLoader, "load", load)
    world.start(world.worker({"mail": Recorder()}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason, away) == ("failed", "worker_error: AttributeError", 0)


async def test_a_job_that_can_neither_be_run_nor_given_up_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "PAUSE_S", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(ContextLoader, "load", Mistaken())
        first = world.worker({"mail": Recorder()})
        world.start(first)
        await world.notify(words("n-1"))
        await eventually(lambda: "as failed did not work either" in caplog.text)
        await world.stop(first)
    assert sum((await world.store.committed(TENANT, "notify.email", "tidings.deliver")).values()) == 0
    world.start(world.worker({"mail": Recorder()}))
    assert states(await world.settled("n-1/1")) == {"sent": 1}


async def test_a_record_that_can_never_be_settled_becomes_a_dead_letter(
    world_on_each_store: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here its delivery's row cannot be read. Without an end it would hold up its partition after 20,000 others."""
    monkeypatch.setattr(pipeline, "PAUSE_S", 0.01)
    monkeypatch.setattr(pipeline, "UNSETTLED_PAUSE_US", 1_000)
    world = world_on_each_store
    await world.put_user(ada())
    broken = msgspec.structs.replace(delivery_put(TENANT, Delivery("n-1/1", "n-1", 1), 0), body=b"torn")
    await change(world.store.tables, [[broken]], world.clock.now())
    world.start(world.worker({"mail": Recorder("email")}))
    await world.notify(words("n-1"), words("n-2"))
    await world.settled("n-2/1")
    assert await eventually(lambda: any(isinstance(fact, Poisoned) for fact in world.facts), 20)
    [fact] = [fact for fact in world.facts if isinstance(fact, Poisoned)]
    assert "cannot be settled: DecodeError" in fact.reason

    async def all_committed() -> bool:
        ends = await world.store.topic(TENANT, fact.topic)
        committed = await world.store.committed(TENANT, fact.topic, GROUP)
        return ends is not None and all(committed.get(part, 0) == end for part, end in enumerate(ends.next))

    assert await eventually(all_committed), "the position passes it"
    assert await eventually(world.dead)
    [letter] = await world.dead()
    assert letter.id == f"{fact.topic}/{fact.partition}/{fact.offset}~poison"
