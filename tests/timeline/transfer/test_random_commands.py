"""Random commands while stores move to others again and again: every later answer is the same as without."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as some
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.contract.compared_stores import ID_RETENTION_US, IDEMPOTENCY_RETENTION_US, ComparedStores
from tests.contract.state_machine import QUICK, TENANTS, TOPICS, CommandMachine
from tests.contract.stores import opened
from tidings.clock import SystemClock
from tidings.timeline.transfer.run import Transfer, TransferResult

KINDS = ("sqlite", "postgres", "postgres-4")
OPTIONS: Any = {
    "id_retention_us": ID_RETENTION_US,
    "idempotency_retention_us": IDEMPOTENCY_RETENTION_US,
    "retention_us": 10**17,
}


class MovingStores(ComparedStores):
    """Twins of which all but the first, the store in memory, may move to another store."""

    def transfer(self, index: int, kind: str) -> TransferResult:
        """Move one of them to a new store, which replaces it."""
        self.names[index] = kind
        return self._run(self._transfer(index, kind))

    async def _transfer(self, index: int, kind: str) -> TransferResult:
        source: Any = self.stores[index]
        await source.resign()
        target: Any = await self._stack.enter_async_context(opened(kind, Path(self._folder.name), **OPTIONS))
        begin, end = source.transfer_endpoint(), target.transfer_endpoint()
        done = await Transfer(begin, end, to=kind, clock=SystemClock(), on_progress=lambda *_: None).run()
        assert await target.acquire(0, 3_000_000)
        self.stores[index] = target
        return done

    async def _log(self, index: int, tenant: str, topic: str) -> dict[str, list[tuple[object, ...]]]:
        """The log is not moved: releases and histories show what was released."""
        del index, tenant, topic
        return {}


class CommandsWithTransfers(CommandMachine):
    """The same commands, with transfers between them."""

    compared: MovingStores
    make = MovingStores

    @rule(index=some.sampled_from([1, 2]), kind=some.sampled_from(KINDS))
    def transfer(self, index: int, kind: str) -> None:
        done = self.compared.transfer(index, kind)
        note(f"  -> {done.progress}")
        assert not done.progress.conflicts
        self.compared.compare(self.now, TENANTS, TOPICS)


@pytest.mark.long
@pytest.mark.slow
def test_random_commands_with_transfers() -> None:
    run_state_machine_as_test(CommandsWithTransfers, settings=settings(QUICK, max_examples=12, stateful_step_count=30))
