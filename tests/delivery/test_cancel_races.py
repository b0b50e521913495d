"""Thousands of cancels at the moment of sending: after the answer `cancelled` no provider is called."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.contract.stores import Served
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, started_world, words
from tidings.clock import SystemClock
from tidings.delivery.notifications.cancellation import Cancellation
from tidings.domain.notifications.delivery import Temporary, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

CANCELS = 2_600  # on each store
TOGETHER = 20  # notifications due at once
PATIENT = changed(QUICK, policy=msgspec.structs.replace(QUICK.policy, claim_us=60 * SECOND), send_s=5.0)


@pytest.fixture(params=["sqlite", "postgres"])
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[World]]:
    """One node on a file, or two on a database."""
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "sqlite":
            yield [await stack.enter_async_context(started_world(await SqliteStore.open(tmp_path / "t.db")))]
            return
        name = f"cancel_races_{random.randrange(1 << 30)}"
        stores = [await PostgresStore.open(Served.dsn(), SystemClock(), lanes=4, schema=name) for _ in range(2)]
        yield [await stack.enter_async_context(started_world(store)) for store in stores]


class Races:
    """Cancels each notification at about the time when it is sent, through any node."""

    def __init__(self, nodes: list[World]) -> None:
        self.outcomes: dict[str, str] = {}
        self.wrong: list[str] = []
        self.provider = Recorder()
        self.provider.answer = self._answer
        self._nodes = nodes
        self._cancellations = [Cancellation(each.store.tables, each.engine, each.clock) for each in nodes]
        self._answered: dict[str, int] = {}  # how many calls there had been when `cancelled` was answered
        self._chance = random.Random(0)
        self._span_s = 0.02
        self._calls: Counter[str] = Counter()

    def _answer(self, message: Rendered) -> Verdict | None:
        """Every third message fails at first, and waits for another attempt."""
        number = int(message.id.partition("/")[0].removeprefix("n-"))
        self._calls[message.id] += 1
        return Temporary("provider_error") if number % 3 == 0 and self._calls[message.id] == 1 else None

    async def run(self) -> None:
        """Some notifications after the others, each cancelled at about the time when it is sent on this machine."""
        for first in range(0, CANCELS, TOGETHER):
            names = [f"n-{number}" for number in range(first, first + TOGETHER)]
            await self._nodes[0].notify(*map(words, names))
            await asyncio.gather(*map(self._cancel, names))
            cancelled = sum(self.outcomes[name] == "cancelled" for name in names)
            self._span_s *= 1.2 if 2 * cancelled > TOGETHER else 1 / 1.2

    async def _cancel(self, name: str) -> None:
        moment = asyncio.get_running_loop().create_future()
        moment.get_loop().call_later(self._chance.uniform(0, self._span_s), moment.set_result, None)
        await moment
        outcome = await self._chance.choice(self._cancellations).cancel(TENANT, name)
        self.outcomes[name] = outcome.outcome
        if outcome.outcome == "cancelled":
            self._answered[name] = len(self.provider.calls)

    def judge(self) -> None:
        """Compare the calls of the provider with the answers."""
        for place, call in enumerate(self.provider.calls):
            name = call.id.partition("/")[0]
            if place >= self._answered.get(name, len(self.provider.calls)):
                self.wrong.append(f"{name} was sent after its cancel was answered")
            if name in self._answered and self.provider.accepted[call.id]:
                self.wrong.append(f"{name} was cancelled although the provider had accepted it")


@pytest.mark.slow
async def test_nothing_is_sent_after_a_cancel_was_answered(
    nodes: list[World], capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes[0].put_user(ada())
    races = Races(nodes)
    for node in nodes:
        node.start(node.worker({"all": races.provider}, PATIENT))
    await races.run()
    left = [name for name, outcome in races.outcomes.items() if outcome != "cancelled"]
    await eventually(lambda: all(races.provider.accepted[f"{name}/1"] for name in left), 60)
    races.judge()
    counts = Counter(races.outcomes.values())
    with capsys.disabled():
        print(f"\n{dict(counts)}, {len(races.provider.calls)} calls")
    assert races.wrong == []
    assert counts.total() == CANCELS
    assert set(counts) <= {"cancelled", "in_flight", "already_released"}
    assert min(counts["cancelled"], counts.total() - counts["cancelled"]) > CANCELS // 20, "there was hardly a race"
    assert set(races.provider.accepted.values()) == {1}
