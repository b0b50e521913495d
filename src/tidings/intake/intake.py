"""Intake: commits commands that arrive together in one transaction, and answers after the commit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tidings.batcher import Batcher
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Changed, Listener
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports import IdempotencyKey, SourceBatch, Timeline

BATCH_COMMANDS_MAX = 1_000


class Intake:
    """Group commit, with as many concurrent transactions as the store benefits from (`Timeline.intakes_max`)."""

    def __init__(self, timeline: Timeline, clock: Clock, listener: Listener, wake: Callable[[], None]) -> None:
        self._timeline = timeline
        self._clock = clock
        self._listener = listener
        self._wake = wake
        self._batcher: Batcher[Sequence[Command], list[Outcome]] = Batcher(
            self._commit,
            weight=len,
            weight_max=BATCH_COMMANDS_MAX,
            calls_max=lambda: timeline.intakes_max,
            concerns_all=lambda error: isinstance(error, NotOwner | StoreError),
        )

    async def submit(self, commands: Sequence[Command], key: IdempotencyKey | None = None) -> list[Outcome]:
        """Commit commands durably, in order, and return the outcome of each."""
        if key is not None:
            return await self._apply_alone(commands, key)
        return await self._batcher.submit(commands)

    async def take(self, commands: Sequence[Command], batch: SourceBatch) -> list[Outcome]:
        """Commit the commands of a source (Kafka) together with its new position, in a transaction of their own."""
        return await self._apply_alone(commands, None, batch)

    async def _apply_alone(
        self, commands: Sequence[Command], key: IdempotencyKey | None, batch: SourceBatch | None = None
    ) -> list[Outcome]:
        now = self._clock.now()
        outcomes = await self._timeline.apply(commands, now, key, batch)
        self._announce(now, commands, outcomes)
        return outcomes

    def _commit(self, group: Sequence[Sequence[Command]]) -> Awaitable[list[list[Outcome]]]:
        """Commit the commands of several callers in one transaction, which the store begins at once."""
        commands = group[0] if len(group) == 1 else [command for commands in group for command in commands]
        now = self._clock.now()
        return self._committed(group, commands, now, self._timeline.apply(commands, now))

    async def _committed(
        self,
        group: Sequence[Sequence[Command]],
        commands: Sequence[Command],
        now: int,
        transaction: Awaitable[list[Outcome]],
    ) -> list[list[Outcome]]:
        outcomes = await transaction
        # Listeners are called after the next transaction has begun, so that they do not delay it.
        asyncio.get_running_loop().call_soon(self._announce, now, commands, outcomes)
        if len(group) == 1:
            return [outcomes]
        answers, start = [], 0
        for part in group:
            answers.append(outcomes[start : start + len(part)])
            start += len(part)
        return answers

    def _announce(self, now: int, commands: Sequence[Command], outcomes: list[Outcome]) -> None:
        self._wake()
        self._listener(Changed(now, commands, outcomes))
