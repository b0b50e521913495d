"""Intake: commits commands that arrive together in one transaction, and answers after the commit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tidings.batcher import Batcher
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Changed, Listener
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports import IdempotencyKey, SourceBatch, Timeline
from tidings.ports.tables import BulkGroups, ChangeGroup, GroupResult, Tables

BATCH_COMMANDS_MAX = 1_000


class Intake:
    """Group commit, with as many concurrent transactions as the store benefits from (`Timeline.intakes_max`).

    `submit` commits commands durably, in order, and returns the outcome of each. `commit` does the same for
    groups of row changes, with their commands, and `commit_urgent` before those that wait.
    """

    def __init__(
        self, timeline: Timeline, tables: Tables, clock: Clock, listener: Listener, wake: Callable[[], None]
    ) -> None:
        self._timeline = timeline
        self._tables = tables
        self._clock = clock
        self._listener = listener
        self._wake = wake
        batcher: Batcher[Command, Outcome] = Batcher(
            self._commit,
            weight=len,
            weight_max=BATCH_COMMANDS_MAX,
            calls_max=timeline.intakes_max,
            concerns_all=lambda error: isinstance(error, NotOwner | StoreError),
        )
        self.submit = batcher.submit
        self.commit = self._groups(timeline, urgent=False).submit
        self.commit_urgent = self._groups(timeline, urgent=True).submit

    def _groups(self, timeline: Timeline, *, urgent: bool) -> Batcher[ChangeGroup, GroupResult]:
        return Batcher(
            partial(self._commit_groups, urgent=urgent),
            weight=_weight,
            weight_max=BATCH_COMMANDS_MAX,
            calls_max=timeline.intakes_max,
            concerns_all=lambda error: isinstance(error, NotOwner | StoreError),
        )

    async def submit_once(self, commands: Sequence[Command], key: IdempotencyKey) -> list[Outcome]:
        """The same in a transaction of their own; a repeat with the same key gets the outcomes of the first."""
        return await self._apply_alone(commands, key)

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

    def _commit(self, commands: Sequence[Command]) -> Awaitable[list[Outcome]]:
        """Commit the commands of several callers in one transaction, which the store begins at once."""
        now = self._clock.now()
        transaction = asyncio.ensure_future(self._timeline.apply(commands, now))
        # Listeners are called after the next transaction has begun, so that they do not delay it.
        later: Callable[..., object] = asyncio.get_running_loop().call_soon
        transaction.add_done_callback(partial(later, self._committed, now, commands))
        return transaction

    def _committed(self, now: int, commands: Sequence[Command], transaction: "asyncio.Future[list[Outcome]]") -> None:
        if not transaction.cancelled() and transaction.exception() is None:
            self._announce(now, commands, transaction.result())

    def _commit_groups(self, groups: Sequence[ChangeGroup], *, urgent: bool) -> Awaitable[list[GroupResult]]:
        """Commit the groups of several callers in one transaction, which the store begins at once."""
        now = self._clock.now()
        transaction = asyncio.ensure_future(self._tables.commit(groups, now, urgent=urgent))
        later: Callable[..., object] = asyncio.get_running_loop().call_soon
        transaction.add_done_callback(partial(later, self._groups_committed, now, groups))
        return transaction

    def _groups_committed(
        self, now: int, groups: Sequence[ChangeGroup], transaction: "asyncio.Future[list[GroupResult]]"
    ) -> None:
        if transaction.cancelled() or transaction.exception() is not None:
            return
        outcomes = [result.outcome for result in transaction.result() if result.outcome is not None]
        commands: Sequence[Command]
        if isinstance(groups, BulkGroups) and len(outcomes) == len(groups):
            commands = groups.commands
        else:
            done = zip(groups, transaction.result(), strict=True)
            commands = [
                group.command for group, result in done if group.command is not None and result.outcome is not None
            ]
        if commands:
            self._announce(now, commands, outcomes)

    def _announce(self, now: int, commands: Sequence[Command], outcomes: list[Outcome]) -> None:
        self._wake()
        self._listener(Changed(now, commands, outcomes))


def _weight(groups: Sequence[ChangeGroup]) -> int:
    """Groups that are written in bulk fill a transaction: together with others they would be written one by one."""
    return BATCH_COMMANDS_MAX if isinstance(groups, BulkGroups) else len(groups)
