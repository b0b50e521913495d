"""A random life in which stores are carried into others, over and over: nobody can tell, by what follows."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as some
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.contract.life import QUICK, TENANTS, TOPICS, Life
from tests.contract.stores import opened
from tests.contract.walking import ID_RETENTION_US, RECEIPT_RETENTION_US, Twins
from tidings.clock import SystemClock
from tidings.timeline.copying import Copied, Passage

KINDS = ("sqlite", "postgres", "postgres-4")
OPTIONS: Any = {
    "id_retention_us": ID_RETENTION_US,
    "receipt_retention_us": RECEIPT_RETENTION_US,
    "retention_us": 10**17,
}


class Travellers(Twins):
    """Twins of which all but the first, which is the memory, may be carried into another store."""

    def carry(self, index: int, kind: str) -> Copied:
        """Carry one of them into a new store, which takes its place."""
        self.names[index] = kind
        return self._run(self._carry(index, kind))

    async def _carry(self, index: int, kind: str) -> Copied:
        source: Any = self.stores[index]
        await source.resign()
        target: Any = await self._stack.enter_async_context(opened(kind, Path(self._folder.name), **OPTIONS))
        done = await Passage(source.carrier(), target.carrier(), kind, SystemClock(), lambda *_: None).run()
        assert await target.acquire(0, 3_000_000)
        self.stores[index] = target
        return done

    async def _log(self, index: int, tenant: str, topic: str) -> dict[str, list[tuple[object, ...]]]:
        """The log stays behind: what left is told by the releases and the histories."""
        del index, tenant, topic
        return {}


class Journey(Life):
    """The same life, with journeys in it."""

    twins: Travellers
    make = Travellers

    @rule(index=some.sampled_from([1, 2]), kind=some.sampled_from(KINDS))
    def carry(self, index: int, kind: str) -> None:
        done = self.twins.carry(index, kind)
        note(f"  -> {done.progress}")
        assert not done.progress.conflicts
        self.twins.compare(self.now, TENANTS, TOPICS)


@pytest.mark.long
@pytest.mark.slow
def test_a_life_with_journeys() -> None:
    run_state_machine_as_test(Journey, settings=settings(QUICK, max_examples=12, stateful_step_count=30))
