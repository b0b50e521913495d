"""Consumer groups over the log: members share a topic's partitions, and where a group stands is durable.

Who is in a group is known in memory only: after a restart all join again and go on from what is committed.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec

from tidings.bus.follow import Bell, Following, read_page
from tidings.bus.roster import Member, Place, Roster
from tidings.clock import Clock
from tidings.domain.errors import Invalid, NotAMember
from tidings.domain.schedule import Record
from tidings.ports import Log

SESSION_US = 4_000_000
MEMBERS_PER_GROUP_MAX = 100
GROUPS_PER_TENANT_MAX = 1_000
NAME_CHARS_MAX = 249
TIMER_SLACK_US = 1_000  # event loops round to whole milliseconds


class Membership(msgspec.Struct, frozen=True, gc=False):
    """A member's place in its group. It must call again within `session_ms`."""

    member: str
    generation: int
    partitions: tuple[int, ...]
    session_ms: int


class _Group:
    """One group of one topic. `users` counts the calls under way, so that it is not forgotten under them."""

    def __init__(self, key: tuple[str, str, str], roster: Roster) -> None:
        self.key = key
        self.roster = roster
        self.lock = asyncio.Lock()
        self.users = 0


class Groups:
    """The coordinator of every group. Membership changes and commits of one group never overlap."""

    def __init__(self, log: Log, clock: Clock, following: Following, session_us: int = SESSION_US) -> None:
        self._log = log
        self._clock = clock
        self._following = following
        self._session_us = session_us
        self._generations = count(clock.now() // 1000)  # so that none comes again after a restart
        self._groups: dict[tuple[str, str, str], _Group] = {}
        self._commits: set[asyncio.Task[None]] = set()

    async def join(self, tenant: str, topic: str, group: str, member: str | None = None) -> Membership:
        """Become a member; under a name of one's own, whoever had it before is out."""
        name = secrets.token_hex(8) if member is None else member
        for field, text in (("topic", topic), ("group", group), ("member", name)):
            if not 0 < len(text) <= NAME_CHARS_MAX:
                raise Invalid(field, f"give a name of 1 to {NAME_CHARS_MAX} characters")
        async with self._entered(self._group((tenant, topic, group))) as roster:
            if name not in roster.members and len(roster.members) >= MEMBERS_PER_GROUP_MAX:
                raise Invalid("group", f"is full: it has {MEMBERS_PER_GROUP_MAX} members")
            return self._membership(roster, roster.join(name, self._clock.elapsed()))

    async def heartbeat(self, tenant: str, topic: str, group: str, member: str, generation: int) -> Membership:
        """Stay a member, and learn the present generation and partitions."""
        async with self._entered(self._arrive((tenant, topic, group), member)) as roster:
            return self._membership(roster, roster.present(member, generation))

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
        found = self._arrive((tenant, topic, group), member)
        async with self._following.listening(tenant, topic, min(wait_us, self._session_us // 2)) as bell:
            found.roster.bells.add(bell)
            try:
                return await self._fetch(found, member, generation, limit, bell)
            finally:
                found.roster.bells.discard(bell)

    async def commit(
        self, tenant: str, topic: str, group: str, member: str, generation: int, offsets: dict[int, int]
    ) -> None:
        """Keep durably, by partition, the next offset that the group has not done; all of them or none."""
        found = self._arrive((tenant, topic, group), member)
        # A store finishes what it began: a caller that goes away must not let a rebalance in before that.
        commit = asyncio.create_task(self._commit(found, member, generation, offsets))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        await asyncio.shield(commit)

    async def leave(self, tenant: str, topic: str, group: str, member: str, generation: int) -> None:
        """Hand one's partitions over at once."""
        async with self._entered(self._arrive((tenant, topic, group), member)) as roster:
            roster.present(member, generation)
            roster.leave(member, self._clock.elapsed())

    def disband(self) -> None:
        """Put every member out: for a process that no longer owns the store."""
        for group in list(self._groups.values()):
            group.roster.dissolve(self._clock.elapsed())
            self._forget_empty(group)

    # One call's way through a group

    def _arrive(self, key: tuple[str, str, str], member: str) -> _Group:
        """The group that a member calls; noted before it waits for its turn, which may take its time."""
        group = self._groups.get(key)
        if group is None:
            raise NotAMember(f"{member} is not a member (any more): join again")
        group.roster.touch(member, self._clock.elapsed())
        return group

    @asynccontextmanager
    async def _entered(self, group: _Group) -> AsyncIterator[Roster]:
        """Alone in a group, without those whose session ended."""
        group.users += 1
        try:
            async with group.lock:
                group.roster.sweep(self._clock.elapsed())
                yield group.roster
        finally:
            group.users -= 1
            self._forget_empty(group)

    async def _fetch(self, group: _Group, name: str, generation: int, limit: int, bell: Bell) -> list[Record]:
        waited = False
        while True:
            bell.quiet()
            async with self._entered(group) as roster:
                member = roster.present(name, generation)
                if member.changed > generation:
                    if waited:
                        return []
                    raise NotAMember("the group's partitions were shared out again: send a heartbeat first")
                if not waited:
                    roster.settle(member)
                starts = await self._starts(group, member, roster.readable(member))
            records = await self._read(group, member, starts, limit)
            if records or bell.over:
                return records
            await bell.wait(self._until_next_event(roster))
            if self._following.closed:
                return []
            waited = True

    async def _read(self, group: _Group, member: Member, starts: dict[int, int], limit: int) -> list[Record]:
        """Read, and take what is still this member's to take; others were not kept waiting for it."""
        tenant, name, _ = group.key
        topic = await self._log.topic(tenant, name) if starts else None
        if topic is None:
            return []
        batch = await read_page(self._log, tenant, topic, starts, limit)
        taken = {partition for partition, start in starts.items() if member.is_at(partition, start)}
        for partition in taken:
            member.places[partition].position = batch.positions[partition]
        if len(taken) == len(starts):
            return batch.records
        return [record for record in batch.records if record.partition in taken]

    async def _commit(self, group: _Group, name: str, generation: int, offsets: dict[int, int]) -> None:
        async with self._entered(group) as roster:
            member = roster.present(name, generation)
            if not all(roster.holds(member, partition) for partition in offsets):
                raise NotAMember(f"{name} does not hold all of these partitions (any more): send a heartbeat")
            if offsets:
                await self._starts(group, member, list(offsets))
                await self._check(group, member, offsets)
                await self._log.commit(*group.key, offsets)
                roster.committed(member, offsets)

    async def _check(self, group: _Group, member: Member, offsets: dict[int, int]) -> None:
        topic = await self._log.topic(group.key[0], group.key[1])
        for partition, offset in offsets.items():
            end = topic.next[partition] if topic is not None else 0
            if not 0 <= offset <= end:
                raise Invalid("offsets", f"partition {partition} ends at {end}: commit 0 to {end}")
            if offset < member.places[partition].start:
                raise NotAMember(f"another member has committed more of partition {partition}: fetch again")

    async def _starts(self, group: _Group, member: Member, partitions: list[int]) -> dict[int, int]:
        """Where to fetch from, by partition; a new holder begins at what is committed."""
        if any(partition not in member.places for partition in partitions):
            committed = await self._log.committed(*group.key)
            for partition in partitions:
                offset = committed.get(partition, 0)
                member.places.setdefault(partition, Place(offset, offset, offset))
        return {partition: member.places[partition].position for partition in partitions}

    # Bookkeeping

    def _group(self, key: tuple[str, str, str]) -> _Group:
        """The group of a key, made if there is none and the tenant may have one more."""
        group = self._groups.get(key)
        if group is None:
            self._make_room(key[0])
            group = _Group(key, Roster(self._log.partitions, self._session_us, self._generations))
            self._groups[key] = group
        return group

    def _make_room(self, tenant: str) -> None:
        groups = [group for key, group in self._groups.items() if key[0] == tenant]
        if len(groups) < GROUPS_PER_TENANT_MAX:
            return
        for group in groups:
            if not group.users:
                group.roster.sweep(self._clock.elapsed())
                self._forget_empty(group)
        if sum(key[0] == tenant for key in self._groups) >= GROUPS_PER_TENANT_MAX:
            raise Invalid("group", f"there are {GROUPS_PER_TENANT_MAX} groups with members: leave one first")

    def _forget_empty(self, group: _Group) -> None:
        if not group.users and not group.roster.members and self._groups.get(group.key) is group:
            del self._groups[group.key]

    def _until_next_event(self, roster: Roster) -> int:
        event = roster.next_event()
        now = self._clock.elapsed()
        return self._session_us if event is None else max(0, event - now) + TIMER_SLACK_US

    def _membership(self, roster: Roster, member: Member) -> Membership:
        return Membership(member.name, roster.generation, member.partitions, self._session_us // 1000)
