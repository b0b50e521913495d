"""Intake: what arrives together is committed together; the answer follows the commit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tidings.clock import Clock
from tidings.domain.command import Add, Command, Outcome, Replace
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Changed, Listener
from tidings.ports import Receipt, Taken, Timeline

BATCH_COMMANDS_MAX = 1_000


_Group = list[tuple[Sequence[Command], "asyncio.Future[list[Outcome]]"]]


class Intake:
    """Group commit: while as many transactions are under way as the store gains from, the next one gathers."""

    def __init__(self, timeline: Timeline, clock: Clock, tell: Listener, wake: Callable[[], None]) -> None:
        self._timeline = timeline
        self._clock = clock
        self._tell = tell
        self._wake = wake
        self._waiting: _Group = []
        self._committing: set[asyncio.Task[None]] = set()

    async def submit(self, commands: Sequence[Command], receipt: Receipt | None = None) -> list[Outcome]:
        """Commit commands durably, in order, and answer each."""
        if receipt is not None:
            return await self._settle(commands, receipt)
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, answer))
        if len(self._committing) < self._timeline.intakes_max:
            self._begin()
        return await answer

    async def _settle(self, commands: Sequence[Command], receipt: Receipt) -> list[Outcome]:
        """Commands with a receipt are a transaction of their own."""
        now = self._clock.now()
        outcomes = noted(commands, await self._timeline.apply(commands, now, receipt))
        self._announce(now, commands, outcomes)
        return outcomes

    async def take(self, commands: Sequence[Command], taken: Taken) -> list[Outcome]:
        """Commands of a source are a transaction of their own, together with how far it was read."""
        now = self._clock.now()
        outcomes = await self._timeline.apply(commands, now, None, taken)
        self._announce(now, commands, outcomes)
        return outcomes

    def _begin(self) -> None:
        """Commit what waits. The store begins at once, so that the next commands are prepared meanwhile."""
        group = self._take()
        commands = group[0][0] if len(group) == 1 else [command for commands, _ in group for command in commands]
        now = self._clock.now()
        begun = self._timeline.apply(commands, now)
        task = asyncio.get_running_loop().create_task(self._finish(group, commands, now, begun))
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)

    def _take(self) -> _Group:
        size = 0
        for index, (commands, _) in enumerate(self._waiting):
            size += len(commands)
            if size >= BATCH_COMMANDS_MAX:
                group, self._waiting = self._waiting[: index + 1], self._waiting[index + 1 :]
                return group
        group, self._waiting = self._waiting, []
        return group

    async def _finish(
        self, group: _Group, commands: Sequence[Command], now: int, begun: Awaitable[list[Outcome]]
    ) -> None:
        try:
            outcomes = noted(commands, await begun)
        except (NotOwner, StoreError) as error:
            self._go_on()
            _answer_all(group, error)
            return
        except Exception as error:  # noqa: BLE001 - one of them is at fault; nobody else is to suffer for it
            self._go_on()
            await self._apart(group, error)
            return
        self._go_on()
        start = 0
        for part, answer in group:
            end = start + len(part)
            if not answer.done():
                answer.set_result(outcomes[start:end])
            start = end
        self._announce(now, commands, outcomes)

    async def _apart(self, group: _Group, error: Exception) -> None:
        """Commit the members of a group that failed one by one."""
        if len(group) == 1:
            _answer_all(group, error)
            return
        for commands, answer in group:
            now = self._clock.now()
            await self._finish([(commands, answer)], commands, now, self._timeline.apply(commands, now))

    def _go_on(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._committing.discard(task)
        if self._waiting and len(self._committing) < self._timeline.intakes_max:
            self._begin()

    def _announce(self, now: int, commands: Sequence[Command], outcomes: list[Outcome]) -> None:
        self._wake()
        self._tell(Changed(now, commands, outcomes))


def noted(commands: Sequence[Command], outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes, of what was taken with what its sender should know."""
    for index, command in enumerate(commands):
        add = command.add if type(command) is Replace else command
        if type(add) is Add and add.note is not None and outcomes[index].outcome in {"scheduled", "replaced"}:
            outcomes[index] = msgspec.structs.replace(outcomes[index], note=add.note)
    return outcomes


def _answer_all(group: _Group, error: Exception) -> None:
    for _, answer in group:
        if not answer.done():
            answer.set_exception(error)
