"""Consumer groups over the log: members share a topic's partitions, and where a group stands is durable.

Who is in a group is kept by the store if several processes lead it, else in memory: then after a restart all join
again and go on from what is committed. Each call is one or two steps, decided here on what is kept at that moment.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec

from tidings.bus.group_assignment import GroupAssignment, Member, MemoryMembership, PartitionHolding
from tidings.bus.log_reader import LogReader, Signal, read_page
from tidings.clock import Clock
from tidings.domain.errors import Invalid, NotAMember
from tidings.domain.names import check_storable
from tidings.domain.schedules.schedule import Record, Topic
from tidings.ports import Group, GroupMembership, GroupState, GroupUpdate, Log

SESSION_US = 4_000_000
MEMBERS_PER_GROUP_MAX = 100
GROUPS_PER_TENANT_MAX = 1_000
NAME_CHARS_MAX = 249
TIMER_SLACK_US = 1_000  # event loops round to whole milliseconds

T = TypeVar("T")


class Membership(msgspec.Struct, frozen=True, gc=False):
    """A member's place in its group. It must call again within `session_ms`."""

    member: str
    generation: int
    partitions: tuple[int, ...]
    session_ms: int


class Turn:
    """One step of a group: its roster without those whose session ended, what is committed, and what shall be."""

    def __init__(self, roster: GroupAssignment, kept: GroupState) -> None:
        self.roster = roster
        self.committed = kept.committed
        self.now = kept.now
        self.others = kept.groups
        self.offsets: dict[int, int] = {}

    def place(self, member: Member, partition: int) -> PartitionHolding:
        """Where a member stands in a partition; a new holder begins at what is committed."""
        committed = self.committed.get(partition, 0)
        return member.places.get(partition) or PartitionHolding(committed, committed, committed)

    def until_next_event(self) -> int | None:
        event = self.roster.next_event()
        return None if event is None else max(0, event - self.now)


class ConsumerGroups:
    """The coordinator of every group. Membership changes and commits of one group never overlap."""

    def __init__(self, log: Log, clock: Clock, following: LogReader, session_us: int = SESSION_US) -> None:
        self._log = log
        self._clock = clock
        self._following = following
        self._session_us = session_us
        self._local = MemoryMembership(log, clock)
        self._rosters: GroupMembership = log.group_membership or self._local
        self._slack_us = 0 if log.group_membership is None else session_us // 4
        self._generation = 0
        self._bells: dict[Group, set[Signal]] = {}
        self._callers: dict[Group, Counter[tuple[str, int]]] = {}  # who calls now, and since when
        self._commits: set[asyncio.Task[None]] = set()
        self._rosters.on_moved(self._ring)

    async def join(self, tenant: str, topic: str, group: str, member: str | None = None) -> Membership:
        """Become a member; under a name of one's own, whoever had it before is out."""
        name = secrets.token_hex(8) if member is None else member
        for field, text in (("topic", topic), ("group", group), ("member", name)):
            if not 0 < len(text) <= NAME_CHARS_MAX:
                raise Invalid(field, f"give a name of 1 to {NAME_CHARS_MAX} characters")
        return await self._step((tenant, topic, group), partial(self._join, name))

    async def heartbeat(self, tenant: str, topic: str, group: str, member: str, generation: int) -> Membership:
        """Stay a member, and learn the present generation and partitions."""
        place = tenant, topic, group
        with self._calling(place, member):
            return await self._step(
                place, lambda turn: self._membership(turn.roster, turn.roster.present(member, generation))
            )

    async def fetch(
        self, tenant: str, topic: str, group: str, member: str, generation: int, limit: int, wait_us: int
    ) -> list[Record]:
        """The next records of one's partitions, waiting for one if there is none.

        Counts as a heartbeat, and says that work on lost partitions is over. A wait ends at half a session,
        so that the dead are noticed, and at once when one's partitions change: a heartbeat tells to what.
        Whoever lost an answer on its way joins again under its name: what is not committed comes again.
        """
        if limit < 1:
            raise Invalid("limit", "ask for at least 1 record")
        place = tenant, topic, group
        async with self._following.listening(tenant, topic, min(wait_us, self._session_us // 2)) as bell:
            with self._heard(place, bell):
                return await self._fetch(place, member, generation, limit, bell)

    async def commit(
        self, tenant: str, topic: str, group: str, member: str, generation: int, offsets: dict[int, int]
    ) -> None:
        """Keep durably, by partition, the next offset that the group has not done; all of them or none."""
        # A store finishes what it began: a caller that goes away must not let a rebalance in before that.
        commit = asyncio.create_task(self._commit((tenant, topic, group), member, generation, offsets))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        await asyncio.shield(commit)

    async def leave(self, tenant: str, topic: str, group: str, member: str, generation: int) -> None:
        """Hand one's partitions over at once."""

        def leave(turn: Turn) -> None:
            turn.roster.present(member, generation)
            turn.roster.leave(member, turn.now)

        place = tenant, topic, group
        with self._calling(place, member):
            await self._step(place, leave)

    def disband(self) -> None:
        """Put every member out, for a process that no longer owns the store; not where others lead groups too."""
        self._local.disband()

    # One step of a group

    async def _step(self, group: Group, act: Callable[[Turn], T]) -> T:
        """Do something with a group as it is now, and keep what it became."""
        for field, text in zip(("tenant", "topic", "group"), group, strict=True):
            check_storable(text, field)
        done: list[tuple[T, bool]] = []

        def decide(kept: GroupState) -> GroupUpdate | None:
            roster = GroupAssignment(
                self._log.partitions, self._session_us, self._next_generation, self._slack_us, kept.roster
            )
            elapsed = self._clock.elapsed()
            for name, since in self._callers.get(group, ()):
                roster.touch(name, kept.now - (elapsed - since))
            roster.sweep(kept.now)
            turn = Turn(roster, kept)
            done[:] = [(act(turn), roster.moved)]
            became = roster.encode()
            if (became == kept.roster and not turn.offsets) or (kept.roster is None and not roster.members):
                return None
            return GroupUpdate(became, roster.until, turn.offsets, roster.moved)

        await self._rosters.change(group, decide)
        ((answer, moved),) = done
        if moved:
            self._ring(group)
        return answer

    def _next_generation(self, former: int) -> int:
        """None comes again, neither in this process nor after a restart."""
        self._generation = max(self._generation + 1, former + 1, self._clock.now() // 1000)
        return self._generation

    def _join(self, name: str, turn: Turn) -> Membership:
        roster = turn.roster
        if turn.others >= GROUPS_PER_TENANT_MAX:
            raise Invalid("group", f"there are {GROUPS_PER_TENANT_MAX} groups with members: leave one first")
        if name not in roster.members and len(roster.members) >= MEMBERS_PER_GROUP_MAX:
            raise Invalid("group", f"is full: it has {MEMBERS_PER_GROUP_MAX} members")
        return self._membership(roster, roster.join(name, turn.now))

    def _membership(self, roster: GroupAssignment, member: Member) -> Membership:
        return Membership(member.name, roster.generation, member.partitions, self._session_us // 1000)

    # Fetching

    async def _fetch(self, group: Group, name: str, generation: int, limit: int, bell: Signal) -> list[Record]:
        waited = False
        while True:
            bell.quiet()
            with self._calling(group, None if waited else name):
                found = await self._step(group, partial(self._begin, name, generation, waited))
                if found is None:
                    return []
                starts, event = found
                records = await self._read(group, name, generation, starts, limit)
            if records or bell.over:
                return records
            wait_us = self._session_us if event is None else event + TIMER_SLACK_US
            await bell.wait(min(wait_us, self._rosters.poll_us))
            if self._following.closed:
                return []
            waited = True

    def _begin(self, name: str, generation: int, waited: bool, turn: Turn) -> tuple[dict[int, int], int | None] | None:
        """Where to read from, and how long until something happens by itself; None if partitions moved meanwhile."""
        member = turn.roster.present(name, generation)
        if member.changed > generation:
            if waited:
                return None
            raise NotAMember("the group's partitions were shared out again: send a heartbeat first")
        if not waited:
            turn.roster.settle(member)
        readable = turn.roster.readable(member)
        starts = {partition: turn.place(member, partition).position for partition in readable}
        return starts, turn.until_next_event()

    async def _read(self, group: Group, name: str, generation: int, starts: dict[int, int], limit: int) -> list[Record]:
        """Read, and take what is still this member's to take; others were not kept waiting for it."""
        topic = await self._log.topic(group[0], group[1]) if starts else None
        if topic is None:
            return []
        batch = await read_page(self._log, group[0], topic, starts, limit, self._following.page_bytes_max)
        if not batch.records:
            return []
        ends = {record.partition: batch.positions[record.partition] for record in batch.records}
        taken = await self._step(group, partial(self._take, name, generation, starts, ends))
        return [record for record in batch.records if record.partition in taken]

    def _take(self, name: str, generation: int, starts: dict[int, int], ends: dict[int, int], turn: Turn) -> set[int]:
        """Move on in those partitions that are still its own, and in which it stands where it stood."""
        member = turn.roster.members.get(name)
        if member is None or member.joined > generation:
            return set()
        taken = set()
        for partition in ends.keys() & set(turn.roster.readable(member)):
            place = turn.place(member, partition)
            if place.position == starts[partition]:
                place.position = ends[partition]
                member.places[partition] = place
                taken.add(partition)
        return taken

    # Committing

    async def _commit(self, group: Group, name: str, generation: int, offsets: dict[int, int]) -> None:
        with self._calling(group, name):
            topic = await self._log.topic(group[0], group[1]) if offsets else None
            await self._step(group, partial(self._done, name, generation, offsets, topic))

    def _done(self, name: str, generation: int, offsets: dict[int, int], topic: Topic | None, turn: Turn) -> None:
        member = turn.roster.present(name, generation)
        if not all(turn.roster.holds(member, partition) for partition in offsets):
            raise NotAMember(f"{name} does not hold all of these partitions (any more): send a heartbeat")
        for partition, offset in offsets.items():
            end = topic.next[partition] if topic is not None else 0
            if not 0 <= offset <= end:
                raise Invalid("offsets", f"partition {partition} ends at {end}: commit 0 to {end}")
            if offset < turn.place(member, partition).start:
                raise NotAMember(f"another member has committed more of partition {partition}: fetch again")
        turn.offsets = offsets
        turn.roster.committed(member, offsets)

    # Who calls and who waits

    @contextmanager
    def _calling(self, group: Group, name: str | None) -> Iterator[None]:
        """A member lives from the moment of its call, however long it has to wait for its turn."""
        if name is None:
            yield
            return
        call = name, self._clock.elapsed()
        callers = self._callers.setdefault(group, Counter())
        callers[call] += 1
        try:
            yield
        finally:
            callers[call] -= 1
            if not callers[call]:
                del callers[call]
            if not callers and self._callers.get(group) is callers:
                del self._callers[group]

    @contextmanager
    def _heard(self, group: Group, bell: Signal) -> Iterator[None]:
        bells = self._bells.setdefault(group, set())
        bells.add(bell)
        try:
            yield
        finally:
            bells.discard(bell)
            if not bells and self._bells.get(group) is bells:
                del self._bells[group]

    def _ring(self, group: Group) -> None:
        for bell in self._bells.get(group, ()):
            bell.ring()
