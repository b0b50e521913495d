"""What could hold a delivery where it is: turns whose names are taken, and a timeline that takes nothing more."""

from collections.abc import AsyncIterator, Sequence

import pytest

from tests.delivery.world import SECOND, TENANT, Recorder, World, ada, living, schedule, states, words
from tidings.delivery import errands
from tidings.delivery import worker as worker_module
from tidings.delivery.deciding import Case
from tidings.delivery.looking import Looking
from tidings.delivery.wording import Wording
from tidings.domain.errors import StoreError
from tidings.domain.notifications.delivery import Permanent, Temporary
from tidings.domain.notifications.notification import DEAD_TOPIC, DeliveryJob
from tidings.domain.schedules.command import Add, Cancel, Command, Outcome
from tidings.domain.schedules.schedule import Message, Record, pack
from tidings.domain.schedules.when import Once
from tidings.testing import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        await world.put_user(ada())
        yield world


def refused(channel: str) -> Recorder:
    provider = Recorder()
    is_mail = channel == "email"
    provider.answer = lambda message: Permanent("content_refused") if ("@" in str(message.to)) == is_mail else None
    return provider


@pytest.mark.parametrize("ahead_us", [-SECOND, 3_600 * SECOND], ids=["released", "pending"])
async def test_a_turn_that_a_killed_worker_left_for_another_channel(world: World, ahead_us: int) -> None:
    """It had added the turn of a retry, and ended before it was written; then the next channel is to be asked."""
    notification = words("n-1", "email", "sms")
    left = errands.turn(
        TENANT, notification, DeliveryJob("n-1", delivery="n-1/1", attempt=2), world.clock.now() + ahead_us
    )
    await world.engine.submit([left])
    provider = refused("email")
    world.start(world.worker({"all": provider}))
    await world.notify(notification)
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.channel) == ("sent", "sms")
    assert sum(str(message.to).startswith("+") for message in provider.calls) == 1


async def test_a_turn_whose_name_somebody_has_taken(world: World) -> None:
    later = world.clock.now() + 3_600 * SECOND
    taken = Add(TENANT, "n-1/1~2", "greetings", Once(later), pack(Message(None, b"hi")), b"o" * 16, later)
    cancelled = errands.turn(TENANT, words("n-1"), DeliveryJob("n-1", delivery="n-1/1", attempt=3), later)
    await world.engine.submit([taken, cancelled, Cancel(TENANT, "n-1/1~3", with_deliveries=True)])
    provider = Recorder()
    provider.answer = lambda _: Temporary("provider_error") if len(provider.calls) == 1 else None
    world.start(world.worker({"mail": provider}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.turn, len(provider.calls)) == ("sent", 4, 2)


class Full:
    """An engine that opens no more of some topics."""

    def __init__(self, world: World, *topics: str) -> None:
        self._world = world
        self._topics = topics

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        [add] = commands
        if isinstance(add, Add) and add.topic in self._topics:
            return [Outcome(add.id or "", "rejected", reason="topic: there are 10000 already, use one of them")]
        return await self._world.engine.submit(commands)


async def test_where_the_timeline_takes_nothing_more_it_ends_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    full = Full(world, "notify.sms", DEAD_TOPIC)
    world.start(world.worker({"all": refused("email")}, submit=full.submit))
    await world.notify(words("n-1", "email", "sms"), words("n-2"))
    found = await world.settled("n-1/1", "n-2/1")
    assert states(found) == {"failed": 2}
    assert found[0].reason == "not_scheduled: topic: there are 10000 already, use one of them"
    assert found[1].reason == "content_refused"
    assert "its next attempt cannot be scheduled: topic" in caplog.text
    assert "cannot be scheduled on notify.dead" in caplog.text
    assert await world.dead() == []


async def test_of_all_channels_one_that_the_timeline_does_not_take(world: World) -> None:
    full = Full(world, "notify.sms")
    world.start(world.worker({"all": Recorder()}, submit=full.submit))
    await world.notify(words("n-1", "email", "sms", spread="all"))
    mail, phone = await world.settled("n-1/1/email", "n-1/1/sms")
    assert (mail.state, phone.state) == ("sent", "failed")
    assert phone.reason.startswith("not_scheduled")
    assert len(await eventually(world.dead)) == 1


async def test_poison_that_cannot_be_put_aside_does_not_wedge(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.start(world.worker({"all": Recorder()}, submit=Full(world, DEAD_TOPIC).submit))
    poison = schedule(words("bad"), world.clock.now(), DeliveryJob())
    await world.engine.submit([poison])
    await eventually(lambda: f"~poison of tenant {TENANT} cannot be scheduled on notify.dead" in caplog.text)
    committed = await eventually(lambda: world.store.committed(TENANT, "notify.email", "tidings.deliver"))
    assert sum(committed.values()) == 1


class Mistaken:
    """The words of a message, with a mistake of ours in them."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, *_: object) -> None:
        self.asked += 1
        raise AttributeError("a mistake")


@pytest.mark.slow
async def test_a_mistake_of_ours_while_the_store_is_away_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tries are over when the store goes away: the record must not count as settled before it is given up."""
    mistaken, real, away = Mistaken(), Looking.look, 3
    monkeypatch.setattr(Wording, "content", mistaken)
    monkeypatch.setattr(worker_module, "PAUSE_S", 0.01)

    async def look(self: Looking, tenant: str, record: Record, errand: DeliveryJob) -> Case | None:
        nonlocal away
        if mistaken.asked == worker_module.TRIES_MAX and away:
            away -= 1
            raise StoreError("away for a moment")
        return await real(self, tenant, record, errand)

    monkeypatch.setattr(Looking, "look", look)
    world.start(world.worker({"mail": Recorder()}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason, away) == ("failed", "worker_error: AttributeError", 0)


async def test_what_can_neither_be_run_nor_given_up_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "PAUSE_S", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(Looking, "look", Mistaken())
        first = world.worker({"mail": Recorder()})
        world.start(first)
        await world.notify(words("n-1"))
        await eventually(lambda: "marking it as failed did not work either" in caplog.text and not first._running)
        await world.stop(first)
    assert sum((await world.store.committed(TENANT, "notify.email", "tidings.deliver")).values()) == 0
    world.start(world.worker({"mail": Recorder()}))
    assert states(await world.settled("n-1/1")) == {"sent": 1}
