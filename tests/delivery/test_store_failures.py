"""A store that fails at any call, before or after it did its work: every delivery is sent, and settled once."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.delivery.test_kills import failing_provider
from tests.delivery.world import QUICK, Recorder, ada, changed, started_world, states, words
from tidings.delivery.worker import sender, stage
from tidings.domain.errors import StoreError
from tidings.domain.facts import Ended
from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult, Row, RowKey
from tidings.testing import eventually

NAMES = [f"n-{number}" for number in range(120)]


class FailingTables:
    """Fails some calls: reads before they are made, commits before or after them."""

    def __init__(self, store: Store, seed: int, share: float) -> None:
        self._tables = store.tables
        self._random = random.Random(seed)
        self._share = share
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        self._maybe_fail()
        return await self._tables.get(keys, now)

    async def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        self._maybe_fail()
        results = await self._tables.commit(groups, now, urgent=urgent)
        self._maybe_fail()
        return results

    def _maybe_fail(self) -> None:
        if self._random.random() < self._share:
            self.failures += 1
            raise StoreError("away for a moment")


class FailingStore:
    def __init__(self, store: Store, tables: FailingTables) -> None:
        self._store = store
        self.tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_failures_of_the_store_lose_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "RETRY_S", 0.005)
    monkeypatch.setattr(sender, "RETRY_S", 0.005)
    async with started_world() as world:
        await world.put_user(ada())
        provider, tried = Recorder(deduplicates=False), Counter[str]()
        provider.answer = lambda message: failing_provider(message, tried)
        tables = FailingTables(world.store, seed, share=0.35)
        worker = world.worker({"all": provider}, changed(QUICK), store=FailingStore(world.store, tables))
        world.start(worker)
        await world.notify(*(words(name, "email", "sms") for name in NAMES))
        found = await world.settled(*(f"{name}/1" for name in NAMES), timeout_s=30)
        assert states(found) == {"sent": len(NAMES)}
        assert tables.failures > 5
        assert set(provider.took.values()) == {1}
        assert len(provider.calls) == sum(len(each.attempts) for each in found), "each call was claimed"

        def is_idle() -> bool:
            return not any(worker._consumer._in_progress.values())

        await eventually(is_idle)
        assert all(count >= 0 for count in worker._consumer._in_progress.values()), "nothing was settled twice"
        assert sum(isinstance(fact, Ended) for fact in world.facts) <= len(NAMES) + tables.failures
