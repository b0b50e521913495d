"""Intake: commands that arrive together are committed together; the answer follows the commit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tidings.batcher import Batcher
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Changed, Listener
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.ports import IdempotencyKey, SourceBatch, Timeline

BATCH_COMMANDS_MAX = 1_000


class Intake:
    """Group commit, with as many transactions under way as the store gains from."""

    def __init__(self, timeline: Timeline, clock: Clock, tell: Listener, wake: Callable[[], None]) -> None:
        self._timeline = timeline
        self._clock = clock
        self._tell = tell
        self._wake = wake
        self._batcher: Batcher[Sequence[Command], list[Outcome]] = Batcher(
            self._commit,
            weight=len,
            weight_max=BATCH_COMMANDS_MAX,
            calls_max=lambda: timeline.intakes_max,
            concerns_all=lambda error: isinstance(error, NotOwner | StoreError),
        )

    async def submit(self, commands: Sequence[Command], receipt: IdempotencyKey | None = None) -> list[Outcome]:
        """Commit commands durably, in order, and answer each."""
        if receipt is not None:
            return await self._settle(commands, receipt)
        return await self._batcher.submit(commands)

    async def _settle(self, commands: Sequence[Command], receipt: IdempotencyKey) -> list[Outcome]:
        """Commands with a receipt are a transaction of their own."""
        now = self._clock.now()
        outcomes = noted(commands, await self._timeline.apply(commands, now, receipt))
        self._announce(now, commands, outcomes)
        return outcomes

    async def take(self, commands: Sequence[Command], taken: SourceBatch) -> list[Outcome]:
        """Commands of a source are a transaction of their own, together with how far it was read."""
        now = self._clock.now()
        outcomes = await self._timeline.apply(commands, now, None, taken)
        self._announce(now, commands, outcomes)
        return outcomes

    def _commit(self, group: Sequence[Sequence[Command]]) -> Awaitable[list[list[Outcome]]]:
        """Commit the commands of some callers in one transaction; the store begins at once."""
        commands = group[0] if len(group) == 1 else [command for commands in group for command in commands]
        now = self._clock.now()
        return self._committed(group, commands, now, self._timeline.apply(commands, now))

    async def _committed(
        self,
        group: Sequence[Sequence[Command]],
        commands: Sequence[Command],
        now: int,
        begun: Awaitable[list[Outcome]],
    ) -> list[list[Outcome]]:
        outcomes = noted(commands, await begun)
        # Listeners are told once the next transaction has begun.
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
        self._tell(Changed(now, commands, outcomes))


def noted(commands: Sequence[Command], outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes, with the notes of the schedules that were accepted."""
    for index, command in enumerate(commands):
        add = command.add if type(command) is Replace else command
        if type(add) is Add and add.note is not None and outcomes[index].outcome in {"scheduled", "replaced"}:
            outcomes[index] = msgspec.structs.replace(outcomes[index], note=add.note)
    return outcomes
