"""Rosters in memory, for a store that one process at a time owns: after a restart all members join again."""

import asyncio
from collections.abc import Callable

from tidings.clock import Clock
from tidings.ports import Group, Kept, Log, Step

NO_LOOK_US = 3_600_000_000


class _Roster:
    """That of one group. `users` counts the calls under way, so that it is not forgotten under them."""

    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.until = 0
        self.committed: dict[int, int] | None = None
        self.lock = asyncio.Lock()
        self.users = 0


class LocalRosters:
    """Steps of one group never overlap. A group is known here only while somebody is in it."""

    look_us = NO_LOOK_US  # nothing happens elsewhere

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._rosters: dict[Group, _Roster] = {}
        self._moved: Callable[[Group], None] = _nobody

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Have this called when everyone was put out."""
        self._moved = call

    async def change(self, group: Group, decide: Callable[[Kept], Step | None]) -> None:
        """One step, alone in its group."""
        roster = self._rosters.setdefault(group, _Roster())
        roster.users += 1
        try:
            async with roster.lock:
                step = decide(await self._load(group, roster))
                if step is not None:
                    await self._keep(group, roster, step)
        finally:
            roster.users -= 1
            self._forget_empty(group, roster)

    def disband(self) -> None:
        """Put everyone out: for a process that no longer owns the store."""
        groups, self._rosters = list(self._rosters), {}
        for group in groups:
            self._moved(group)

    async def _load(self, group: Group, roster: _Roster) -> Kept:
        if roster.kept is None:
            return Kept(None, {}, self._clock.elapsed(), self._others(group[0]))
        if roster.committed is None:
            roster.committed = dict(await self._log.committed(*group))
        return Kept(roster.kept, roster.committed, self._clock.elapsed())

    async def _keep(self, group: Group, roster: _Roster, step: Step) -> None:
        if step.offsets:
            await self._log.commit(*group, step.offsets)
            roster.committed = (roster.committed or {}) | step.offsets
        roster.kept, roster.until = step.roster, step.until

    def _others(self, tenant: str) -> int:
        """How many groups of a tenant have members."""
        for group, roster in list(self._rosters.items()):
            self._forget_empty(group, roster)
        return sum(group[0] == tenant and roster.kept is not None for group, roster in self._rosters.items())

    def _forget_empty(self, group: Group, roster: _Roster) -> None:
        is_empty = not roster.users and roster.until <= self._clock.elapsed()
        if is_empty and self._rosters.get(group) is roster:
            del self._rosters[group]


def _nobody(_: Group) -> None:
    """Nobody waits."""
