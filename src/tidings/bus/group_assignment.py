"""The state of one consumer group: its members, and which member holds which partition.

A partition that must move while its holder has fetched records without committing them stays with the holder until it
commits, fetches again, leaves, or one session has passed. So the next holder, which starts at the committed offset,
does not get the same records again.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import NotAMember
from tidings.ports import Group, GroupState, GroupUpdate, Log


class PartitionHolding(msgspec.Struct):
    """A holder's position in a partition: first offset of this holding, committed offset, next offset to fetch."""

    start: int
    committed: int
    position: int


class Member(msgspec.Struct, eq=False):
    """One consumer. `joined` and `changed` are the generations in which it joined and last got other partitions."""

    name: str
    deadline: int
    joined: int
    changed: int
    partitions: tuple[int, ...] = ()
    holdings: dict[int, PartitionHolding] = msgspec.field(
        default_factory=dict, name="places"
    )  # `places` is the stored name

    def owes(self, partition: int) -> bool:
        """Whether it has fetched records of a partition and not committed them."""
        holding = self.holdings.get(partition)
        return holding is not None and holding.position > holding.committed


class _State(msgspec.Struct, array_like=True):
    """The whole state of a group, as it is stored."""

    generation: int
    members: list[Member]
    owners: dict[int, str]
    holders: dict[int, str]
    settle_by: dict[int, int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class GroupAssignment:
    """Assigns partitions to members. Pure: every call is given the time, and nothing here waits.

    A call extends the member's session. A session lasts up to `slack_us` longer than promised, so that not every call
    has to be written.
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
        self._owners = state.owners  # the member that a partition is assigned to
        self._holders = state.holders  # the member that may commit it now
        self._settle_by = state.settle_by
        self._partitions = range(partitions)
        self.generation = state.generation
        self.members = {member.name: member for member in state.members}
        self.moved = False

    def encode(self) -> bytes:
        """The state, to be stored for the next call."""
        members = list(self.members.values())
        return _encode(_State(self.generation, members, self._owners, self._holders, self._settle_by))

    @property
    def until(self) -> int:
        """When the last session ends if no member calls; 0 without members."""
        return max((member.deadline for member in self.members.values()), default=0)

    def join(self, name: str, now: int) -> Member:
        """Add a member. It replaces a former member of the same name and takes over its partitions."""
        self.generation = self._next_generation(self.generation)
        member = Member(name, now + self._session_us + self._slack_us, self.generation, self.generation)
        former = self.members.get(name)
        self.members[name] = member
        if former is not None:
            member.partitions = former.partitions
            former.holdings.clear()
            self.settle(member)
            self.moved = True
        else:
            self._rebalance(now)
        return member

    def touch(self, name: str, now: int) -> None:
        """Extend a member's session, unless it has ended."""
        member = self.members.get(name)
        if member is not None and now < member.deadline < now + self._session_us:
            member.deadline = now + self._session_us + self._slack_us

    def present(self, name: str, generation: int) -> Member:
        """The member of that name; raises `NotAMember` if there is none, or if it was never in that generation."""
        member = self.members.get(name)
        if member is None:
            raise NotAMember(f"{name} is not a member (any more): join again")
        if not member.joined <= generation <= self.generation:
            raise NotAMember(f"{name} is not in generation {generation}: join again")
        return member

    def leave(self, name: str, now: int) -> None:
        """Remove a member and free its partitions at once."""
        self._remove([self.members[name]], now)

    def sweep(self, now: int) -> None:
        """Remove members whose session has ended, and hand over partitions whose deadline has passed.

        Deadlines are capped at one session from now, because the clock may have been set back since they were set.
        """
        for member in self.members.values():
            member.deadline = min(member.deadline, now + self._session_us + self._slack_us)
        self._settle_by = {part: min(by, now + self._session_us) for part, by in self._settle_by.items()}
        self._remove([member for member in self.members.values() if member.deadline <= now], now)
        for partition in [partition for partition, by in self._settle_by.items() if by <= now]:
            self._hand_over(partition)

    def next_event(self) -> int | None:
        """When the next sweep has something to do, if no member calls before."""
        deadlines = (member.deadline for member in self.members.values())
        return min(chain(deadlines, self._settle_by.values()), default=None)

    def settle(self, member: Member) -> None:
        """Hand over the partitions that a member still holds but is no longer assigned."""
        for partition in [partition for partition in self._settle_by if self._holders[partition] == member.name]:
            self._hand_over(partition)

    def committed(self, member: Member, offsets: dict[int, int]) -> None:
        """Record a commit, and hand over partitions that waited for it."""
        for partition, offset in offsets.items():
            if partition in member.holdings:
                member.holdings[partition].committed = offset
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
            member.holdings.clear()
        self.generation = self._next_generation(self.generation)
        self._rebalance(now)

    def _rebalance(self, now: int) -> None:
        """Assign the partitions again, and hand over at once those that can be."""
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
        """Hand a partition over to the member it is assigned to, which starts at the committed offset."""
        former = self.members.get(self._holders.pop(partition, ""))
        if former is not None:
            former.holdings.pop(partition, None)
        if partition in self._owners:
            self._holders[partition] = self._owners[partition]
        self._settle_by.pop(partition, None)
        self.moved = True


def share(partitions: Sequence[int], members: Sequence[str], owners: dict[int, str]) -> dict[int, str]:
    """Assign each partition to one member: counts differ by at most one, and as few as possible change hands."""
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


class _Group:
    """The state of one group. It is kept while it has members or calls in progress (`users`)."""

    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.until = 0
        self.committed: dict[int, int] | None = None
        self.lock = asyncio.Lock()
        self.users = 0


class MemoryMembership:
    """Updates of one group never overlap. Groups without members are forgotten."""

    poll_us = NO_LOOK_US  # no other process changes groups

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._groups: dict[Group, _Group] = {}
        self._moved: Callable[[Group], None] = _no_listener

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Set the callback for groups whose members were all removed."""
        self._moved = call

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
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

    async def _load(self, group: Group, state: _Group) -> GroupState:
        if state.kept is None:
            return GroupState(None, {}, self._clock.elapsed(), self._others(group[0]))
        if state.committed is None:
            state.committed = dict(await self._log.committed(*group))
        return GroupState(state.kept, state.committed, self._clock.elapsed())

    async def _keep(self, group: Group, state: _Group, step: GroupUpdate) -> None:
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
