"""Workers that crash at every named point: nothing is lost, nothing stays in progress, nothing is sent twice.

A crash is simulated: at the point the task of the worker is cancelled, and it no longer reaches store or provider.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, started_world, states, words
from tidings import crash
from tidings.domain.notifications.delivery import Delivery, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult, Row, RowKey
from tidings.testing import eventually

MESSAGES = 12


class Access:
    """The access of a worker to store and engine, until it crashes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_cut_off = False
        self.store = _Store(self, world.store)

    def check(self) -> None:
        if self.is_cut_off:
            raise asyncio.CancelledError

    async def submit(self, commands: Sequence[Command]) -> Sequence[Outcome]:
        self.check()
        return await self._world.engine.submit(commands)


class _Tables:
    def __init__(self, access: Access, store: Store) -> None:
        self._access, self._tables = access, store.tables

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        self._access.check()
        return await self._tables.get(keys, now)

    async def find(self, *arguments: Any, **options: Any) -> Any:
        self._access.check()
        return await self._tables.find(*arguments, **options)

    async def exist(self, *arguments: Any) -> Any:
        self._access.check()
        return await self._tables.exist(*arguments)

    async def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        self._access.check()
        return await self._tables.commit(groups, now, urgent=urgent)


class _Store:
    def __init__(self, access: Access, store: Store) -> None:
        self._access, self._store = access, store
        self.tables = _Tables(access, store)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            self._access.check()
        return getattr(self._store, name)


def at(point: str, visit: int, end: Callable[[], None]) -> Callable[[str], None]:
    """The crash points: at the given visit of one, the worker crashes."""
    visits: Counter[str] = Counter()

    def pass_by(name: str) -> None:
        visits[name] += 1
        if name == point and visits[name] == visit:
            end()
            raise asyncio.CancelledError

    return pass_by


def failing_provider(message: Rendered, tried: Counter[str]) -> Verdict | None:
    """Some messages need a second attempt, some another channel."""
    tried[message.id] += 1
    number = int(message.id.partition("/")[0].removeprefix("n-"))
    if number % 3 == 1 and tried[message.id] == 1:
        return Temporary("provider_error")
    if number % 3 == 2 and "@" in str(message.to):
        return Permanent("address_refused")
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "visit"),
    [(point, visit) for point in crash.DELIVERY_POINTS for visit in (1, 2 if point == "deliver.committed" else 7)],
)
async def test_a_crash_at_any_point_loses_nothing(point: str, visit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n-{k}" for k in range(MESSAGES)]
    async with started_world() as world:
        await world.put_user(ada())
        provider, tried = Recorder(), Counter[str]()
        provider.answer = lambda message: failing_provider(message, tried)
        access = Access(world)
        worker = world.worker({"all": provider}, store=access.store, submit=access.submit)
        ended = asyncio.Event()

        def end() -> None:
            access.is_cut_off = True
            ended.set()

        monkeypatch.setattr(crash, "point", at(point, visit, end))
        world.start(worker)
        await world.notify(*(words(name, "email", "sms") for name in names))
        await asyncio.wait_for(ended.wait(), 5)
        await world.kill(worker)
        monkeypatch.setattr(crash, "point", lambda _: None)
        world.start(world.worker({"all": provider}))
        found = await world.settled(*(f"{name}/1" for name in names))
        assert states(found) == {"sent": MESSAGES}
        _check_nothing_is_sent_twice(provider, found)
        await _nothing_is_left(world)


@pytest.mark.slow
async def test_without_deduplication_only_a_crash_after_acceptance_sends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    twice: dict[str, int] = {}
    for point in ("deliver.claiming", "deliver.claimed", "deliver.sent", "deliver.settled"):
        async with started_world() as world:
            await world.put_user(ada())
            provider = Recorder(deduplicates=False)
            access = Access(world)
            worker = world.worker({"all": provider}, store=access.store, submit=access.submit)
            ended = asyncio.Event()

            def end(access: Access = access, ended: asyncio.Event = ended) -> None:
                access.is_cut_off = True
                ended.set()

            monkeypatch.setattr(crash, "point", at(point, 1, end))
            world.start(worker)
            await world.notify(words("n-1"))
            await asyncio.wait_for(ended.wait(), 5)
            await world.kill(worker)
            monkeypatch.setattr(crash, "point", lambda _: None)
            world.start(world.worker({"all": provider}))
            await world.settled("n-1/1")
            twice[point] = provider.took["n-1/1"] - 1
    assert twice == {"deliver.claiming": 0, "deliver.claimed": 0, "deliver.sent": 1, "deliver.settled": 0}


async def test_a_claim_of_a_crashed_worker_is_taken_over_after_it_expires() -> None:
    async with started_world() as world:
        await world.put_user(ada())
        provider = Recorder()
        provider.gate = asyncio.Event()
        first = world.worker({"all": provider})
        world.start(first)
        await world.notify(words("n-1"))
        await asyncio.wait_for(_called(provider, 1), 5)
        before = await world.delivery("n-1/1")
        assert before is not None
        assert before.state == "processing"
        assert before.claim is not None
        assert before.claim.worker == first.name
        await world.kill(first)
        provider.gate.set()
        second = world.worker({"all": provider})
        world.start(second)
        [delivery] = await world.settled("n-1/1")
        assert [attempt.ended is None for attempt in delivery.attempts] == [True, False]
        assert delivery.attempts[1].begun >= before.claim.until, "a claim is never broken"
        assert [message.id for message in provider.calls] == ["n-1/1", "n-1/1"]


async def test_a_clean_stop_records_deliveries_in_progress() -> None:
    async with started_world() as world:
        await world.put_user(ada())
        provider = Recorder()
        provider.gate = asyncio.Event()
        worker = world.worker({"all": provider})
        world.start(worker)
        await world.notify(words("n-1"))
        await asyncio.wait_for(_called(provider, 1), 5)
        asyncio.get_running_loop().call_later(0.05, provider.gate.set)
        await world.stop(worker)
        delivery = await world.delivery("n-1/1")
        assert delivery is not None
        assert delivery.state == "sent"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
async def test_workers_on_one_store_never_send_the_same_delivery(workers: int) -> None:
    names = [f"n-{k}" for k in range(200)]
    async with started_world() as world:
        await world.put_user(ada())
        provider, tried = Recorder(deduplicates=False), Counter[str]()
        provider.answer = lambda message: failing_provider(message, tried)
        patient = changed(QUICK, policy=msgspec.structs.replace(QUICK.policy, claim_us=10 * SECOND))
        for _ in range(workers):
            world.start(world.worker({"all": provider}, patient))
        await world.notify(*(words(name, "email", "sms") for name in names))
        found = await world.settled(*(f"{name}/1" for name in names), timeout_s=20)
        assert states(found) == {"sent": 200}
        assert set(provider.took.values()) == {1}
        assert len(provider.calls) == sum(len(each.attempts) for each in found), "each call was claimed"
        await _nothing_is_left(world)


@pytest.mark.slow
async def test_repeated_crashes_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker after the other crashes somewhere while a provider fails; then one keeps running."""
    names = [f"n-{k}" for k in range(60)]
    async with started_world() as world:
        await world.put_user(ada())
        provider, tried = Recorder(), Counter[str]()
        provider.answer = lambda message: failing_provider(message, tried)
        await world.notify(*(words(name, "email", "sms") for name in names))
        for turn in range(14):
            point = crash.DELIVERY_POINTS[turn % len(crash.DELIVERY_POINTS)]
            access, ended = Access(world), asyncio.Event()

            def end(access: Access = access, ended: asyncio.Event = ended) -> None:
                access.is_cut_off = True
                ended.set()

            monkeypatch.setattr(crash, "point", at(point, 1 + turn % 5, end))
            worker = world.worker({"all": provider}, store=access.store, submit=access.submit)
            world.start(worker)
            with contextlib.suppress(TimeoutError):  # that point was not reached any more
                await asyncio.wait_for(ended.wait(), 1)
            access.is_cut_off = True
            await world.kill(worker)
        monkeypatch.setattr(crash, "point", lambda _: None)
        world.start(world.worker({"all": provider}))
        found = await world.settled(*(f"{name}/1" for name in names), timeout_s=20)
        assert states(found) == {"sent": 60}
        _check_nothing_is_sent_twice(provider, found)
        await _nothing_is_left(world)


def _check_nothing_is_sent_twice(provider: Recorder, found: Sequence[Delivery]) -> None:
    """One message id for each delivery; each id is accepted once, and once more for each interrupted call."""
    assert set(provider.accepted) == {delivery.name for delivery in found}
    for delivery in found:
        cut_off = sum(attempt.ended is None for attempt in delivery.attempts)
        assert 1 <= provider.accepted[delivery.name] <= 1 + cut_off, delivery


@pytest.mark.slow
async def test_a_provider_call_ends_with_its_claim_even_if_the_store_was_slow() -> None:
    """Otherwise two workers would send it: another one takes over when the claim expires."""
    async with started_world() as world:
        await world.put_user(ada())
        provider, access = Recorder(), Access(world)
        provider.gate = asyncio.Event()
        plain = access.store.tables.commit

        async def commit(groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
            written = asyncio.Event()
            asyncio.get_running_loop().call_later(0.8, written.set)
            await written.wait()
            return await plain(groups, now, urgent=urgent)

        access.store.tables.commit = commit  # type: ignore[method-assign]
        claim_us = 1_200_000
        settings = changed(QUICK, send_s=1.0, policy=msgspec.structs.replace(QUICK.policy, claim_us=claim_us))
        world.start(world.worker({"all": provider}, settings, store=access.store))
        await world.notify(words("n-1"))

        async def tried() -> Delivery | None:
            found = await world.delivery("n-1/1")
            return found if found is not None and found.attempts and found.attempts[0].ended else None

        delivery = await eventually(tried)
        assert delivery is not None
        [attempt] = delivery.attempts
        assert attempt.ended is not None
        assert attempt.outcome == "timeout"
        assert attempt.ended - attempt.begun < claim_us + 400_000


async def _called(provider: Recorder, times: int) -> None:
    await eventually(lambda: len(provider.calls) >= times)


async def _nothing_is_left(world: World) -> None:
    """Every record is settled, and no retry waits on the timeline."""

    async def is_quiet() -> bool:
        for tenant, topic in await world.store.topics_by_prefix("notify."):
            committed = await world.store.committed(tenant, topic.name, "tidings.deliver")
            if topic.name != "notify.dead" and sum(committed.values()) != sum(topic.next):
                return False
        return (await world.store.count(world.clock.now())).pending == 0

    await eventually(is_quiet)
