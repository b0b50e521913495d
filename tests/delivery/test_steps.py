"""Errors and delays between the steps of a worker: nothing is sent twice, or on a decision that is out of date."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.delivery.stalled_store import StalledStore
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, words
from tests.providers.messages import FCM_TOKEN
from tidings.clock import SystemClock
from tidings.delivery.limits.circuit_breaker import CircuitBreakers
from tidings.delivery.people.inbox import Inbox
from tidings.delivery.people.suppressions import Suppressions
from tidings.delivery.worker.reservation import Call, Reservation
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Temporary
from tidings.domain.notifications.user import Quiet
from tidings.providers.in_app import InAppProvider
from tidings.providers.in_app import Settings as InAppSettings
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

PATIENT = changed(QUICK, send_s=30.0, policy=msgspec.structs.replace(QUICK.policy, claim_us=45 * SECOND))


class ShiftedClock(SystemClock):
    """The system's clock, some time ahead."""

    shift_us = 0

    def now(self) -> int:
        return super().now() + self.shift_us

    def elapsed(self) -> int:
        return super().elapsed() + self.shift_us


@asynccontextmanager
async def shifted_world() -> AsyncIterator[tuple[World, ShiftedClock]]:
    clock = ShiftedClock()
    world = World(MemoryStore(), clock)
    await world.engine.start()
    try:
        yield world, clock
    finally:
        await world.close()


@pytest.mark.parametrize("cause", ["quiet_hours", "suppressed"])
async def test_what_waited_long_for_its_claim_is_decided_again(cause: str) -> None:
    """A message waits behind a claim that takes ten minutes, and must not be sent meanwhile."""
    async with shifted_world() as (world, clock):
        minute = clock.now() // 60_000_000 % 1_440
        quiet = Quiet((minute + 5) % 1_440, (minute + 120) % 1_440) if cause == "quiet_hours" else None
        await world.put_user(ada(quiet=quiet, zone="UTC"))
        mail, stalled = Recorder("email"), StalledStore(world.store)
        worker = world.worker({"mail": mail}, PATIENT, store=stalled)
        world.start(worker)
        await world.notify(words("n-1"))
        await stalled.reached.wait()
        await world.notify(words("n-2"))
        await eventually(lambda: len(worker._others._sender._claims._waiting) == 1)
        clock.shift_us = 600 * SECOND
        if cause == "suppressed":
            await Suppressions(world.store.tables, clock).add(TENANT, "email", "ada@example.com", reason="by hand")
        stalled.goes_on.set()

        async def reasons() -> set[str]:
            found = [await world.delivery(name) for name in ("n-1/1", "n-2/1")]
            return {each.reason for each in found if each is not None}

        async def are_decided() -> bool:
            return await reasons() == {cause}

        await eventually(are_decided)
        assert mail.calls == []


async def test_a_bug_with_one_message_does_not_send_the_others_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Reservation._choose

    def fail_for_one(self: Reservation, call: Call, options: Sequence[Any] = ()) -> None:
        if call.send.context.notification.id == "bad":
            raise KeyError("a bug")
        choose(self, call, options)

    monkeypatch.setattr(Reservation, "_choose", fail_for_one)
    await world.put_user(ada())
    mail, names = Recorder("email", deduplicates=False), [f"n-{number}" for number in range(20)]
    await world.notify(*map(words, [*names, "bad"]))
    worker = world.worker({"mail": mail}, PATIENT)
    world.start(worker)
    found = await world.settled(*(f"{name}/1" for name in [*names, "bad"]))
    assert Counter(call.id for call in mail.calls) == {f"{name}/1": 1 for name in names}
    assert (found[-1].state, found[-1].reason) == ("failed", "worker_error: KeyError")
    await eventually(lambda: not any(worker._consumer._in_progress.values()))


async def test_a_push_that_one_device_has_got_is_sent_although_a_bug_stops_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Reservation._choose

    def fail_at_the_second_turn(self: Reservation, call: Call, options: Sequence[Any] = ()) -> None:
        if call.send.to.attempts:
            raise KeyError("a bug")
        choose(self, call, options)

    monkeypatch.setattr(Reservation, "_choose", fail_at_the_second_turn)
    await world.put_user(ada(devices=tuple(Device("fcm", f"{FCM_TOKEN[:-1]}{number}") for number in range(2))))
    provider = Recorder("push")
    provider.answer = lambda message: Temporary("provider_error") if message.id.endswith("2") else None
    world.start(world.worker({"push": provider}))
    await world.notify(words("n-1", "push"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, [part.outcome for part in delivery.parts]) == ("sent", ["accepted", ""])
    assert await world.dead() == []


async def test_an_accepted_trial_is_settled_before_its_breaker_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped meanwhile must not forget what the provider answered."""
    mail, failures = Recorder("email", deduplicates=False), [Temporary("provider_error")]
    mail.answer = lambda _: failures.pop() if failures else None
    is_closing = asyncio.Event()

    async def hang(*_: object) -> None:
        is_closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CircuitBreakers, "_close", hang)
    await world.put_user(ada())
    breaker = msgspec.structs.replace(QUICK.breaker, failures_max=1)
    worker = world.worker({"mail": mail}, changed(PATIENT, breaker=breaker))
    world.start(worker)
    await world.notify(words("n-1"))
    await asyncio.wait_for(is_closing.wait(), 10)
    [delivery] = await world.settled("n-1/1")
    assert delivery.state == "sent"
    await world.stop(worker)
    assert mail.accepted == {"n-1/1": 1}


async def test_an_inbox_entry_that_is_committed_late_is_followed() -> None:
    """Its commit takes five seconds, and others that are later are there before it."""
    async with shifted_world() as (world, clock):
        await world.put_user(ada())
        stalled = StalledStore(world.store, names=("n-1/1",))
        world.start(world.worker({"in_app": InAppProvider(InAppSettings())}, store=stalled))
        inbox, seen = Inbox(world.store.tables, clock), list[str]()

        async def follow() -> None:
            async for entries in inbox.follow(TENANT, "ada", inbox.cursor()):
                seen.extend(entry.id for entry in entries)

        following = asyncio.create_task(follow())
        await world.notify(words("n-1", "in_app"))
        await stalled.reached.wait()
        await world.notify(words("n-2", "in_app", priority="high"))
        await eventually(lambda: seen == ["n-2/1"])
        clock.shift_us = 5 * SECOND
        await world.notify(words("n-3", "in_app", priority="high"))
        await eventually(lambda: seen == ["n-2/1", "n-3/1"])
        stalled.goes_on.set()
        await eventually(lambda: seen == ["n-2/1", "n-3/1", "n-1/1"])
        following.cancel()


async def test_an_inbox_entry_does_not_appear_after_its_expiry() -> None:
    """It waits for its commit behind another one for ten minutes."""
    async with shifted_world() as (world, clock):
        await world.put_user(ada())
        stalled = StalledStore(world.store)
        worker = world.worker({"in_app": InAppProvider(InAppSettings())}, store=stalled)
        world.start(worker)
        await world.notify(words("n-1", "in_app"))
        await stalled.reached.wait()
        await world.notify(words("n-2", "in_app", expires_after_us=60 * SECOND))
        await eventually(lambda: len(worker._others._settlements._settles._waiting) == 1)
        clock.shift_us = 600 * SECOND
        stalled.goes_on.set()
        first, second = await world.settled("n-1/1", "n-2/1")
        assert (first.state, second.state) == ("sent", "expired")
