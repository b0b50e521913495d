"""Consumer groups of the built-in log: members share the partitions of a topic, and committed offsets are durable.

Membership is kept in the store where several processes serve groups, otherwise in memory: after a restart all members
join again and continue from the committed offsets. Each call is one or two updates of the group's state, decided here.
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
    """A member's assignment. The member must call again within `session_ms`."""

    member: str
    generation: int
    partitions: tuple[int, ...]
    session_ms: int


class _Update:
    """One update of a group: its assignment without expired members, its committed offsets, and those to commit."""

    def __init__(self, assignment: GroupAssignment, kept: GroupState) -> None:
        self.assignment = assignment
        self.committed = kept.committed
        self.now = kept.now
        self.others = kept.groups
        self.offsets: dict[int, int] = {}

    def holding(self, member: Member, partition: int) -> PartitionHolding:
        """A member's position in a partition; a new holder starts at the committed offset."""
        committed = self.committed.get(partition, 0)
        return member.holdings.get(partition) or PartitionHolding(committed, committed, committed)

    def until_next_event(self) -> int | None:
        """Microseconds until a session or a hand-over deadline ends."""
        event = self.assignment.next_event()
        return None if event is None else max(0, event - self.now)


class ConsumerGroups:
    """The coordinator of all groups. Membership changes and commits of one group never overlap."""

    def __init__(self, log: Log, clock: Clock, following: LogReader, session_us: int = SESSION_US) -> None:
        self._log = log
        self._clock = clock
        self._following = following
        self._session_us = session_us
        self._local = MemoryMembership(log, clock)
        self._rosters: GroupMembership = log.group_membership or self._local
        self._slack_us = 0 if log.group_membership is None else session_us // 4
        self._generation = 0
        self._signals: dict[Group, set[Signal]] = {}
        self._callers: dict[Group, Counter[tuple[str, int]]] = {}  # members with a call in progress, and its start
        self._commits: set[asyncio.Task[None]] = set()
        self._rosters.on_moved(self._wake)

    async def join(self, tenant: str, topic: str, group: str, member: str | None = None) -> Membership:
        """Add a member. A given name replaces the former member of that name."""
        name = secrets.token_hex(8) if member is None else member
        for field, text in (("topic", topic), ("group", group), ("member", name)):
            if not 0 < len(text) <= NAME_CHARS_MAX:
                raise Invalid(field, f"give a name of 1 to {NAME_CHARS_MAX} characters")
        return await self._update((tenant, topic, group), partial(self._join, name))

    async def heartbeat(self, tenant: str, topic: str, group: str, member: str, generation: int) -> Membership:
        """Extend a member's session; returns its present generation and partitions."""
        key = tenant, topic, group
        with self._calling(key, member):
            return await self._update(
                key, lambda update: self._membership(update.assignment, update.assignment.present(member, generation))
            )

    async def fetch(
        self, tenant: str, topic: str, group: str, member: str, generation: int, limit: int, wait_us: int
    ) -> list[Record]:
        """The next records of a member's partitions, waiting for the first if there is none.

        A fetch is also a heartbeat, and hands over partitions that the member has lost. A wait ends after half a
        session, so that dead members are noticed, and as soon as the member's partitions change: a heartbeat then
        returns the new ones. A member that lost a response joins again under its name and gets uncommitted records
        again.
        """
        if limit < 1:
            raise Invalid("limit", "ask for at least 1 record")
        key = tenant, topic, group
        async with self._following.subscribe(tenant, topic, min(wait_us, self._session_us // 2)) as signal:
            with self._woken_by(key, signal):
                return await self._fetch(key, member, generation, limit, signal)

    async def commit(
        self, tenant: str, topic: str, group: str, member: str, generation: int, offsets: dict[int, int]
    ) -> None:
        """Commit the group's next offset of each partition durably; all of them or none."""
        # The store finishes a commit whose caller disconnects: no rebalance may come in before that.
        commit = asyncio.create_task(self._commit((tenant, topic, group), member, generation, offsets))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        await asyncio.shield(commit)

    async def leave(self, tenant: str, topic: str, group: str, member: str, generation: int) -> None:
        """Remove a member and hand its partitions over at once."""

        def leave(update: _Update) -> None:
            update.assignment.present(member, generation)
            update.assignment.leave(member, update.now)

        key = tenant, topic, group
        with self._calling(key, member):
            await self._update(key, leave)

    def disband(self) -> None:
        """Remove all members, when this process loses the store. No effect where the store keeps them."""
        self._local.disband()

    # One update of a group

    async def _update(self, group: Group, act: Callable[[_Update], T]) -> T:
        """Load a group's state, let `act` change it, and store the result."""
        for field, text in zip(("tenant", "topic", "group"), group, strict=True):
            check_storable(text, field)
        done: list[tuple[T, bool]] = []

        def decide(kept: GroupState) -> GroupUpdate | None:
            assignment = GroupAssignment(
                self._log.partitions, self._session_us, self._next_generation, self._slack_us, kept.roster
            )
            elapsed = self._clock.elapsed()
            for name, since in self._callers.get(group, ()):
                assignment.touch(name, kept.now - (elapsed - since))
            assignment.sweep(kept.now)
            update = _Update(assignment, kept)
            done[:] = [(act(update), assignment.moved)]
            after = assignment.encode()
            if (after == kept.roster and not update.offsets) or (kept.roster is None and not assignment.members):
                return None
            return GroupUpdate(after, assignment.until, update.offsets, assignment.moved)

        await self._rosters.change(group, decide)
        ((answer, moved),) = done
        if moved:
            self._wake(group)
        return answer

    def _next_generation(self, former: int) -> int:
        """A generation number that was never used before, not even before a restart."""
        self._generation = max(self._generation + 1, former + 1, self._clock.now() // 1000)
        return self._generation

    def _join(self, name: str, update: _Update) -> Membership:
        assignment = update.assignment
        if update.others >= GROUPS_PER_TENANT_MAX:
            raise Invalid(
                "group", f"this tenant has {GROUPS_PER_TENANT_MAX} groups with members, the maximum: leave one first"
            )
        if name not in assignment.members and len(assignment.members) >= MEMBERS_PER_GROUP_MAX:
            raise Invalid("group", f"is full: it has {MEMBERS_PER_GROUP_MAX} members")
        return self._membership(assignment, assignment.join(name, update.now))

    def _membership(self, assignment: GroupAssignment, member: Member) -> Membership:
        return Membership(member.name, assignment.generation, member.partitions, self._session_us // 1000)

    # Fetch

    async def _fetch(self, group: Group, name: str, generation: int, limit: int, signal: Signal) -> list[Record]:
        waited = False
        while True:
            signal.clear()
            with self._calling(group, None if waited else name):
                found = await self._update(group, partial(self._begin, name, generation, waited))
                if found is None:
                    return []
                starts, event = found
                records = await self._read(group, name, generation, starts, limit)
            if records or signal.over:
                return records
            wait_us = self._session_us if event is None else event + TIMER_SLACK_US
            await signal.wait(min(wait_us, self._rosters.poll_us))
            if self._following.closed:
                return []
            waited = True

    def _begin(
        self, name: str, generation: int, waited: bool, update: _Update
    ) -> tuple[dict[int, int], int | None] | None:
        """Where to read from, and how long until the next deadline; None if partitions moved during the wait."""
        member = update.assignment.present(name, generation)
        if member.changed > generation:
            if waited:
                return None
            raise NotAMember("the group was rebalanced: send a heartbeat to get the new partitions")
        if not waited:
            update.assignment.settle(member)
        readable = update.assignment.readable(member)
        starts = {partition: update.holding(member, partition).position for partition in readable}
        return starts, update.until_next_event()

    async def _read(self, group: Group, name: str, generation: int, starts: dict[int, int], limit: int) -> list[Record]:
        """Read outside the group's lock, then keep the records of partitions that the member still holds."""
        topic = await self._log.topic(group[0], group[1]) if starts else None
        if topic is None:
            return []
        batch = await read_page(self._log, group[0], topic, starts, limit, self._following.page_bytes_max)
        if not batch.records:
            return []
        ends = {record.partition: batch.positions[record.partition] for record in batch.records}
        advanced = await self._update(group, partial(self._advance, name, generation, starts, ends))
        return [record for record in batch.records if record.partition in advanced]

    def _advance(
        self, name: str, generation: int, starts: dict[int, int], ends: dict[int, int], update: _Update
    ) -> set[int]:
        """Advance a member in the partitions that it still holds and where its position has not changed."""
        member = update.assignment.members.get(name)
        if member is None or member.joined > generation:
            return set()
        advanced = set()
        for partition in ends.keys() & set(update.assignment.readable(member)):
            holding = update.holding(member, partition)
            if holding.position == starts[partition]:
                holding.position = ends[partition]
                member.holdings[partition] = holding
                advanced.add(partition)
        return advanced

    # Commit

    async def _commit(self, group: Group, name: str, generation: int, offsets: dict[int, int]) -> None:
        with self._calling(group, name):
            topic = await self._log.topic(group[0], group[1]) if offsets else None
            await self._update(group, partial(self._commit_offsets, name, generation, offsets, topic))

    def _commit_offsets(
        self, name: str, generation: int, offsets: dict[int, int], topic: Topic | None, update: _Update
    ) -> None:
        member = update.assignment.present(name, generation)
        if not all(update.assignment.holds(member, partition) for partition in offsets):
            raise NotAMember(f"{name} does not hold all of these partitions (any more): send a heartbeat")
        for partition, offset in offsets.items():
            end = topic.next[partition] if topic is not None else 0
            if not 0 <= offset <= end:
                raise Invalid("offsets", f"partition {partition} ends at {end}: commit 0 to {end}")
            if offset < update.holding(member, partition).start:
                raise NotAMember(f"another member has committed more of partition {partition}: fetch again")
        update.offsets = offsets
        update.assignment.committed(member, offsets)

    # Calls in progress, and waits

    @contextmanager
    def _calling(self, group: Group, name: str | None) -> Iterator[None]:
        """Count a session from the start of the call, however long the call waits for the group's lock."""
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
    def _woken_by(self, group: Group, signal: Signal) -> Iterator[None]:
        """Set the signal when partitions of the group change hands."""
        signals = self._signals.setdefault(group, set())
        signals.add(signal)
        try:
            yield
        finally:
            signals.discard(signal)
            if not signals and self._signals.get(group) is signals:
                del self._signals[group]

    def _wake(self, group: Group) -> None:
        for signal in self._signals.get(group, ()):
            signal.set()
