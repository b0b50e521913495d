"""Workers that end at every named point: nothing is lost, nothing stays under way, nobody is told twice.

An end is simulated: at the point the worker's task is cut off, and from then on it reaches neither store nor provider.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, living, states, words
from tidings import crash
from tidings.domain.notifications.delivery import Delivery, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports import Change, Document, Key, Store
from tidings.testing import eventually

MESSAGES = 12


class Life:
    """A worker's way to everything outside of it, until it ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_over = False
        self.store = _Store(self, world.store)

    def check(self) -> None:
        if self.is_over:
            raise asyncio.CancelledError

    async def submit(self, commands: Sequence[Command]) -> Sequence[Outcome]:
        self.check()
        return await self._world.engine.submit(commands)


class _Cabinet:
    def __init__(self, life: Life, store: Store) -> None:
        self._life, self._cabinet = life, store.documents

    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        self._life.check()
        return await self._cabinet.get(keys, now)

    async def find(self, *arguments: Any, **options: Any) -> Any:
        self._life.check()
        return await self._cabinet.find(*arguments, **options)

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        self._life.check()
        return await self._cabinet.change(groups, now)


class _Store:
    def __init__(self, life: Life, store: Store) -> None:
        self._life, self._store = life, store
        self.documents = _Cabinet(life, store)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            self._life.check()
        return getattr(self._store, name)


def at(point: str, visit: int, end: Callable[[], None]) -> Callable[[str], None]:
    """What the crash points do: at the given visit of one, the worker ends."""
    visits: Counter[str] = Counter()

    def pass_by(name: str) -> None:
        visits[name] += 1
        if name == point and visits[name] == visit:
            end()
            raise asyncio.CancelledError

    return pass_by


def troubled(message: Rendered, tried: Counter[str]) -> Verdict | None:
    """Some need a second try, some another channel."""
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
async def test_an_end_at_any_point_loses_nothing(point: str, visit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n-{k}" for k in range(MESSAGES)]
    async with living() as world:
        await world.put_user(ada())
        provider, tried = Recorder(), Counter[str]()
        provider.answer = lambda message: troubled(message, tried)
        life = Life(world)
        worker = world.worker({"all": provider}, store=life.store, submit=life.submit)
        ended = asyncio.Event()

        def end() -> None:
            life.is_over = True
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
        _nobody_is_told_twice(provider, found)
        await _nothing_is_left(world)


@pytest.mark.slow
async def test_without_such_ids_only_a_kill_after_the_acceptance_sends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    twice: dict[str, int] = {}
    for point in ("deliver.claiming", "deliver.claimed", "deliver.sent", "deliver.settled"):
        async with living() as world:
            await world.put_user(ada())
            provider = Recorder(deduplicates=False)
            life = Life(world)
            worker = world.worker({"all": provider}, store=life.store, submit=life.submit)
            ended = asyncio.Event()

            def end(life: Life = life, ended: asyncio.Event = ended) -> None:
                life.is_over = True
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


async def test_a_claim_is_waited_for_and_then_taken_over() -> None:
    async with living() as world:
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


async def test_a_clean_stop_writes_down_what_is_under_way() -> None:
    async with living() as world:
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
async def test_workers_on_one_store_never_send_the_same(workers: int) -> None:
    names = [f"n-{k}" for k in range(200)]
    async with living() as world:
        await world.put_user(ada())
        provider, tried = Recorder(deduplicates=False), Counter[str]()
        provider.answer = lambda message: troubled(message, tried)
        patient = changed(QUICK, terms=msgspec.structs.replace(QUICK.terms, claim_us=10 * SECOND))
        for _ in range(workers):
            world.start(world.worker({"all": provider}, patient))
        await world.notify(*(words(name, "email", "sms") for name in names))
        found = await world.settled(*(f"{name}/1" for name in names), timeout_s=20)
        assert states(found) == {"sent": 200}
        assert set(provider.took.values()) == {1}
        assert len(provider.calls) == sum(len(each.attempts) for each in found), "each call was claimed"
        await _nothing_is_left(world)


@pytest.mark.slow
async def test_killed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker after the other ends somewhere, while a provider is in trouble; then one lives."""
    names = [f"n-{k}" for k in range(60)]
    async with living() as world:
        await world.put_user(ada())
        provider, tried = Recorder(), Counter[str]()
        provider.answer = lambda message: troubled(message, tried)
        await world.notify(*(words(name, "email", "sms") for name in names))
        for turn in range(14):
            point = crash.DELIVERY_POINTS[turn % len(crash.DELIVERY_POINTS)]
            life, ended = Life(world), asyncio.Event()

            def end(life: Life = life, ended: asyncio.Event = ended) -> None:
                life.is_over = True
                ended.set()

            monkeypatch.setattr(crash, "point", at(point, 1 + turn % 5, end))
            worker = world.worker({"all": provider}, store=life.store, submit=life.submit)
            world.start(worker)
            with contextlib.suppress(TimeoutError):  # nothing came by there any more
                await asyncio.wait_for(ended.wait(), 1)
            life.is_over = True
            await world.kill(worker)
        monkeypatch.setattr(crash, "point", lambda _: None)
        world.start(world.worker({"all": provider}))
        found = await world.settled(*(f"{name}/1" for name in names), timeout_s=20)
        assert states(found) == {"sent": 60}
        _nobody_is_told_twice(provider, found)
        await _nothing_is_left(world)


def _nobody_is_told_twice(provider: Recorder, found: Sequence[Delivery]) -> None:
    """One id for each, whatever way it went; and of one id no more than one, and one for each call that was cut off."""
    assert set(provider.accepted) == {delivery.name for delivery in found}
    for delivery in found:
        cut_off = sum(attempt.ended is None for attempt in delivery.attempts)
        assert 1 <= provider.accepted[delivery.name] <= 1 + cut_off, delivery


@pytest.mark.slow
async def test_a_call_ends_with_its_claim_though_the_store_was_slow_to_write_it() -> None:
    """Else two would be at it: the next one comes when the claim ends."""
    async with living() as world:
        await world.put_user(ada())
        provider, life = Recorder(), Life(world)
        provider.gate = asyncio.Event()
        plain = life.store.documents.change

        async def change(groups: Sequence[Sequence[Change]], now: int) -> list[int]:
            written = asyncio.Event()
            asyncio.get_running_loop().call_later(0.8, written.set)
            await written.wait()
            return await plain(groups, now)

        life.store.documents.change = change  # type: ignore[method-assign]
        claim_us = 1_200_000
        settings = changed(QUICK, send_s=1.0, terms=msgspec.structs.replace(QUICK.terms, claim_us=claim_us))
        world.start(world.worker({"all": provider}, settings, store=life.store))
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
    """Every record is settled, and nothing waits on the timeline that would send again."""

    async def is_quiet() -> bool:
        for tenant, topic in await world.store.topics_by_prefix("notify."):
            committed = await world.store.committed(tenant, topic.name, "tidings.deliver")
            if topic.name != "notify.dead" and sum(committed.values()) != sum(topic.next):
                return False
        return (await world.store.count(world.clock.now())).pending == 0

    await eventually(is_quiet)
