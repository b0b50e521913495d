"""Group membership in memory, for stores that one process at a time owns: members join again after a restart."""

import asyncio
from collections.abc import Callable

from tidings.clock import Clock
from tidings.ports import Group, Kept, Log, Step

NO_LOOK_US = 3_600_000_000


class _Group:
    """The state of one group. It is kept while it has members or calls in progress (`users`)."""

    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.until = 0
        self.committed: dict[int, int] | None = None
        self.lock = asyncio.Lock()
        self.users = 0


class LocalRosters:
    """Updates of one group never overlap. Groups without members are forgotten."""

    look_us = NO_LOOK_US  # no other process changes groups

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._groups: dict[Group, _Group] = {}
        self._moved: Callable[[Group], None] = _no_listener

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Set the callback for groups whose members were all removed."""
        self._moved = call

    async def change(self, group: Group, decide: Callable[[Kept], Step | None]) -> None:
        """Apply one update under the group's lock."""
        state = self._groups.setdefault(group, _Group())
        state.users += 1
        try:
            async with state.lock:
                step = decide(await self._load(group, state))
                if step is not None:
                    await self._keep(group, state, step)
        finally:
            state.users -= 1
            self._forget_empty(group, state)

    def disband(self) -> None:
        """Remove all members, when this process no longer owns the store."""
        groups, self._groups = list(self._groups), {}
        for group in groups:
            self._moved(group)

    async def _load(self, group: Group, state: _Group) -> Kept:
        if state.kept is None:
            return Kept(None, {}, self._clock.elapsed(), self._others(group[0]))
        if state.committed is None:
            state.committed = dict(await self._log.committed(*group))
        return Kept(state.kept, state.committed, self._clock.elapsed())

    async def _keep(self, group: Group, state: _Group, step: Step) -> None:
        if step.offsets:
            await self._log.commit(*group, step.offsets)
            state.committed = (state.committed or {}) | step.offsets
        state.kept, state.until = step.roster, step.until

    def _others(self, tenant: str) -> int:
        """How many groups of a tenant have members, after expired ones are removed."""
        for group, state in list(self._groups.items()):
            self._forget_empty(group, state)
        return sum(group[0] == tenant and state.kept is not None for group, state in self._groups.items())

    def _forget_empty(self, group: Group, state: _Group) -> None:
        is_empty = not state.users and state.until <= self._clock.elapsed()
        if is_empty and self._groups.get(group) is state:
            del self._groups[group]


def _no_listener(_: Group) -> None:
    """The default until `on_moved` sets a callback."""
