"""The roster of one consumer group: who is in it, and which member holds which partition.

A partition that must move while its holder still owes a commit for what it fetched stays with the holder
until that is settled: by the commit, by its next fetch, by leaving, or by the end of one session. So the next
holder, who starts from what is committed, does not get the same records again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from tidings.bus.follow import Bell
from tidings.domain.errors import NotAMember


@dataclass(slots=True)
class Place:
    """Where a holder stands in a partition: first offset of this holding, committed offset, next to fetch."""

    start: int
    committed: int
    position: int


@dataclass(slots=True, eq=False)
class Member:
    """One consumer. `joined` and `changed` are generations: of its joining, and of its newest partitions."""

    name: str
    deadline: int
    joined: int
    changed: int
    partitions: tuple[int, ...] = ()
    places: dict[int, Place] = field(default_factory=dict)

    def owes(self, partition: int) -> bool:
        """Whether it fetched records of a partition that it has not committed."""
        place = self.places.get(partition)
        return place is not None and place.position > place.committed

    def is_at(self, partition: int, position: int) -> bool:
        """Whether a partition is still its own to fetch from, and it stands where it stood."""
        place = self.places.get(partition)
        return place is not None and place.position == position and partition in self.partitions


class Roster:
    """Pure coordination: every call is given the elapsed time, nothing here waits."""

    def __init__(self, partitions: int, session_us: int, generations: Iterator[int]) -> None:
        self._session_us = session_us
        self._generations = generations
        self._owners: dict[int, str] = {}  # whose a partition shall be
        self._holders: dict[int, str] = {}  # who may commit it now
        self._settle_by: dict[int, int] = {}
        self._partitions = range(partitions)
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.bells: set[Bell] = set()

    def join(self, name: str, now: int) -> Member:
        """Add a member. Under a name that is in already, the former one is out and its partitions stay."""
        self.generation = next(self._generations)
        member = Member(name, now + self._session_us, self.generation, self.generation)
        former = self.members.get(name)
        self.members[name] = member
        if former is not None:
            member.partitions = former.partitions
            former.places.clear()
            self.settle(member)
            self._ring()
        else:
            self._rebalance(now)
        return member

    def touch(self, name: str, now: int) -> None:
        """Note that a member lives, unless its session has ended."""
        member = self.members.get(name)
        if member is not None and member.deadline > now:
            member.deadline = now + self._session_us

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

    def dissolve(self, now: int) -> None:
        """Take everyone out."""
        self._remove(list(self.members.values()), now)

    def sweep(self, now: int) -> None:
        """Take out those whose session ended, and move what was not settled in time."""
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
        self.generation = next(self._generations)
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
        self._ring()

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
        self._ring()

    def _ring(self) -> None:
        for bell in self.bells:
            bell.ring()


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
