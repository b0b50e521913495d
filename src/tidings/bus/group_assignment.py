"""The roster of one consumer group: who is in it, and which member holds which partition.

A partition that must move while its holder still owes a commit for what it fetched stays with the holder
until that is settled: by the commit, by its next fetch, by leaving, or by the end of one session. So the next
holder, who starts from what is committed, does not get the same records again.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import NotAMember
from tidings.ports import Group, GroupState, GroupUpdate, Log


class PartitionHolding(msgspec.Struct):
    """Where a holder stands in a partition: first offset of this holding, committed offset, next to fetch."""

    start: int
    committed: int
    position: int


class Member(msgspec.Struct, eq=False):
    """One consumer. `joined` and `changed` are generations: of its joining, and of its newest partitions."""

    name: str
    deadline: int
    joined: int
    changed: int
    partitions: tuple[int, ...] = ()
    places: dict[int, PartitionHolding] = {}

    def owes(self, partition: int) -> bool:
        """Whether it fetched records of a partition that it has not committed."""
        place = self.places.get(partition)
        return place is not None and place.position > place.committed


class _State(msgspec.Struct, array_like=True):
    """All of a roster, as it is kept."""

    generation: int
    members: list[Member]
    owners: dict[int, str]
    holders: dict[int, str]
    settle_by: dict[int, int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class GroupAssignment:
    """Pure coordination: every call is given the time, nothing here waits.

    A member that calls has a session from then on, and up to `slack_us` more, so that not every call changes something.
    """

    def __init__(
        self,
        partitions: int,
        session_us: int,
        next_generation: Callable[[int], int],
        slack_us: int = 0,
        kept: bytes | None = None,
    ) -> None:
        state = _State(0, [], {}, {}, {}) if kept is None else _decode(kept)
        self._session_us = session_us
        self._slack_us = slack_us
        self._next_generation = next_generation
        self._owners = state.owners  # whose a partition shall be
        self._holders = state.holders  # who may commit it now
        self._settle_by = state.settle_by
        self._partitions = range(partitions)
        self.generation = state.generation
        self.members = {member.name: member for member in state.members}
        self.moved = False

    def encode(self) -> bytes:
        """All of it, for the next call."""
        members = list(self.members.values())
        return _encode(_State(self.generation, members, self._owners, self._holders, self._settle_by))

    @property
    def until(self) -> int:
        """When everyone is out, if nobody calls; 0 if nobody is in."""
        return max((member.deadline for member in self.members.values()), default=0)

    def join(self, name: str, now: int) -> Member:
        """Add a member. Under a name that is in already, the former one is out and its partitions stay."""
        self.generation = self._next_generation(self.generation)
        member = Member(name, now + self._session_us + self._slack_us, self.generation, self.generation)
        former = self.members.get(name)
        self.members[name] = member
        if former is not None:
            member.partitions = former.partitions
            former.places.clear()
            self.settle(member)
            self.moved = True
        else:
            self._rebalance(now)
        return member

    def touch(self, name: str, now: int) -> None:
        """Note that a member lives, unless its session has ended."""
        member = self.members.get(name)
        if member is not None and now < member.deadline < now + self._session_us:
            member.deadline = now + self._session_us + self._slack_us

    def present(self, name: str, generation: int) -> Member:
        """The member of that name; raises `NotAMember` if it is out, or was never in such a generation."""
        member = self.members.get(name)
        if member is None:
            raise NotAMember(f"{name} is not a member (any more): join again")
        if not member.joined <= generation <= self.generation:
            raise NotAMember(f"{name} is not in generation {generation}: join again")
        return member

    def leave(self, name: str, now: int) -> None:
        """Take a member out; what it held is free at once."""
        self._remove([self.members[name]], now)

    def sweep(self, now: int) -> None:
        """Take out those whose session ended, and move what was not settled in time.

        Nobody has more than one session, though the clock may have been set back since it was given.
        """
        for member in self.members.values():
            member.deadline = min(member.deadline, now + self._session_us + self._slack_us)
        self._settle_by = {part: min(by, now + self._session_us) for part, by in self._settle_by.items()}
        self._remove([member for member in self.members.values() if member.deadline <= now], now)
        for partition in [partition for partition, by in self._settle_by.items() if by <= now]:
            self._hand_over(partition)

    def next_event(self) -> int | None:
        """When the next sweep has something to do, if nobody calls before."""
        deadlines = (member.deadline for member in self.members.values())
        return min(chain(deadlines, self._settle_by.values()), default=None)

    def settle(self, member: Member) -> None:
        """Hand over whatever a member holds and shall not keep."""
        for partition in [partition for partition in self._settle_by if self._holders[partition] == member.name]:
            self._hand_over(partition)

    def committed(self, member: Member, offsets: dict[int, int]) -> None:
        """Note a commit; a partition that waited for it moves on."""
        for partition, offset in offsets.items():
            if partition in member.places:
                member.places[partition].committed = offset
                if partition in self._settle_by and not member.owes(partition):
                    self._hand_over(partition)

    def holds(self, member: Member, partition: int) -> bool:
        """Whether a member may commit a partition."""
        return self._holders.get(partition) == member.name

    def readable(self, member: Member) -> list[int]:
        """The partitions that a member may fetch from."""
        return [partition for partition in member.partitions if self.holds(member, partition)]

    def _remove(self, members: list[Member], now: int) -> None:
        if not members:
            return
        for member in members:
            del self.members[member.name]
            member.places.clear()
        self.generation = self._next_generation(self.generation)
        self._rebalance(now)

    def _rebalance(self, now: int) -> None:
        """Share the partitions out again, and move at once whatever can."""
        self._owners = share(self._partitions, list(self.members), self._owners)
        for member in self.members.values():
            partitions = tuple(p for p in self._partitions if self._owners[p] == member.name)
            if partitions != member.partitions:
                member.partitions, member.changed = partitions, self.generation
        for partition in self._partitions:
            self._move(partition, now)
        self.moved = True

    def _move(self, partition: int, now: int) -> None:
        owner, holder = self._owners.get(partition), self._holders.get(partition)
        if holder == owner:
            self._settle_by.pop(partition, None)
        elif holder in self.members and self.members[holder].owes(partition):
            self._settle_by.setdefault(partition, now + self._session_us)
        else:
            self._hand_over(partition)

    def _hand_over(self, partition: int) -> None:
        """Give a partition to its owner, who starts from what is committed."""
        former = self.members.get(self._holders.pop(partition, ""))
        if former is not None:
            former.places.pop(partition, None)
        if partition in self._owners:
            self._holders[partition] = self._owners[partition]
        self._settle_by.pop(partition, None)
        self.moved = True


def share(partitions: Sequence[int], members: Sequence[str], owners: dict[int, str]) -> dict[int, str]:
    """Each partition to one member: counts differ by one at most, and as few as possible change hands."""
    if not members:
        return {}
    kept: dict[str, list[int]] = {name: [] for name in members}
    for partition in partitions:
        if partition in owners and owners[partition] in kept:
            kept[owners[partition]].append(partition)
    least, more = divmod(len(partitions), len(members))
    by_most = sorted(members, key=lambda name: -len(kept[name]))
    quotas = {name: least + (rank < more) for rank, name in enumerate(by_most)}
    shared = {p: name for name in members for p in kept[name][: quotas[name]]}
    free = iter([p for p in partitions if p not in shared])
    for name in members:
        shared.update((next(free), name) for _ in range(quotas[name] - len(kept[name][: quotas[name]])))
    return shared


NO_LOOK_US = 3_600_000_000


class _Roster:
    """That of one group. `users` counts the calls under way, so that it is not forgotten under them."""

    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.until = 0
        self.committed: dict[int, int] | None = None
        self.lock = asyncio.Lock()
        self.users = 0


class MemoryMembership:
    """Steps of one group never overlap. A group is known here only while somebody is in it."""

    poll_us = NO_LOOK_US  # nothing happens elsewhere

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._rosters: dict[Group, _Roster] = {}
        self._moved: Callable[[Group], None] = _nobody

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Have this called when everyone was put out."""
        self._moved = call

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
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

    async def _load(self, group: Group, roster: _Roster) -> GroupState:
        if roster.kept is None:
            return GroupState(None, {}, self._clock.elapsed(), self._others(group[0]))
        if roster.committed is None:
            roster.committed = dict(await self._log.committed(*group))
        return GroupState(roster.kept, roster.committed, self._clock.elapsed())

    async def _keep(self, group: Group, roster: _Roster, step: GroupUpdate) -> None:
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
