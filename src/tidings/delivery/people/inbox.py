"""Inboxes: a user's in-app messages, how many of them are unread, and new ones as they come."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable

import msgspec

from tidings.clock import Clock
from tidings.delivery.rows import change, inbox_key, inbox_put, position_of, read, read_cursor, write_cursor
from tidings.domain.errors import Invalid
from tidings.domain.facts import DeliveryFact, Ended
from tidings.domain.notifications.tables import INBOX_BY_USER, INBOX_UNREAD
from tidings.domain.notifications.user import InboxEntry
from tidings.ports.tables import Row, RowPosition, Tables

PAGE_MAX = 1_000
COUNTED_MAX = 1_000
SLICE = 200
FOLLOW_SLICE = 4  # an entry may have 512 KiB, and a reader that does not read keeps one slice
TRIES_MAX = 20
LOOK_S = 1.0
LATE_US = 10_000_000  # an entry may appear that much after its time: others that are later are there before it


class ReadEntries(msgspec.Struct, frozen=True):
    """How many entries were marked as read, and the ids that are unknown."""

    count: int
    unknown: tuple[str, ...]


class InboxPage(msgspec.Struct, frozen=True):
    """Some entries, the latest first, and where to go on (None: that was all)."""

    entries: tuple[InboxEntry, ...]
    cursor: str | None


class Unread(msgspec.Struct, frozen=True):
    """How many entries are unread; `more` says that they were counted no further."""

    count: int
    more: bool = False


class Inbox:
    """The inboxes of all users. It listens to the facts of workers, and so knows at once when an entry arrives."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._waiting: set[asyncio.Event] = set()

    def __call__(self, fact: DeliveryFact) -> None:
        """Wake the waiting readers; each checks whether the entry is for it."""
        if isinstance(fact, Ended) and fact.channel == "in_app" and fact.state == "sent":
            for wake_up in self._waiting:
                wake_up.set()

    async def page(
        self, tenant: str, user: str, *, unread: bool = False, cursor: str | None = None, limit: int = 100
    ) -> InboxPage:
        """A user's entries, or the unread ones, the latest first."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
        after = None if cursor is None else read_cursor(cursor)
        found = await self._find(tenant, user, after, limit + 1, unread=unread, newest=True)
        shown = found[:limit]
        following = write_cursor(position_of(shown[-1])) if len(found) > limit else None
        return InboxPage(tuple(read(each, InboxEntry) for each in shown), following)

    async def unread(self, tenant: str, user: str) -> Unread:
        """How many entries are unread, counted up to a bound."""
        found = await self._find(tenant, user, None, COUNTED_MAX + 1, unread=True)
        return Unread(min(len(found), COUNTED_MAX), len(found) > COUNTED_MAX)

    async def read_some(self, tenant: str, user: str, entries: Iterable[str]) -> ReadEntries:
        """Mark entries as read; returns how many were unread, and those that do not exist."""
        keys = {entry: inbox_key(tenant, user, entry) for entry in entries}
        marked, unknown = 0, list[str]()
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            found = dict(zip(keys, await self._tables.get(list(keys.values()), now), strict=True))
            unknown += [entry for entry, row in found.items() if row is None]
            unread = {entry: row for entry, row in found.items() if row is not None and _is_unread(row)}
            done = await self._mark(list(unread.values()), now)
            marked += sum(done)
            keys = {entry: keys[entry] for entry, is_done in zip(unread, done, strict=True) if not is_done}
            if not keys:
                return ReadEntries(marked, tuple(unknown))
        raise Invalid("ids", "are being changed by other requests: try again")

    async def read_all(self, tenant: str, user: str) -> int:
        """Mark all that are there now as read; says how many that were."""
        marked, begun = 0, self._clock.now()
        while found := await self._find(tenant, user, None, SLICE, unread=True):
            earlier = [each for each in found if each.order <= begun]
            if not earlier:
                break
            marked += sum(await self._mark(earlier, self._clock.now()))
        return marked

    async def news(self, tenant: str, user: str, after: str | None, limit: int, wait_us: int) -> InboxPage:
        """The entries of a user after a cursor, oldest first, waiting for one if there is none; default: from now on.

        The cursor is never None: it says where to go on.
        """
        place = (self._clock.now(), "") if after is None else read_cursor(after)
        wake_up = asyncio.Event()
        self._waiting.add(wake_up)
        until = self._clock.elapsed() + wait_us
        try:
            while True:
                wake_up.clear()
                found = await self._find(tenant, user, place, limit)
                left_s = (until - self._clock.elapsed()) / 1_000_000
                if found or left_s <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_S)):  # other processes cannot set it
                        await wake_up.wait()
        finally:
            self._waiting.discard(wake_up)
        cursor = write_cursor(position_of(found[-1]) if found else place)
        return InboxPage(tuple(read(each, InboxEntry) for each in found), cursor)

    def cursor(self, entry: InboxEntry | None = None) -> str:
        """where to continue after an entry; without one, from now on."""
        return write_cursor((self._clock.now(), "") if entry is None else _place(entry))

    async def follow(self, tenant: str, user: str, after: str) -> AsyncGenerator[tuple[InboxEntry, ...], None]:
        """The entries of a user after a cursor as they come, without end.

        None is left out that appears a moment after a later one. A reader that continues after an entry
        may get entries of the last seconds again; they have the same ids.
        """
        place = read_cursor(after)
        first = start = place if not place[1] else (max(0, place[0] - LATE_US), "")
        seen = {place}
        wake_up = asyncio.Event()
        self._waiting.add(wake_up)
        try:
            while True:
                wake_up.clear()
                found = await self._find(tenant, user, start, FOLLOW_SLICE)
                fresh = [each for each in found if position_of(each) not in seen]
                seen |= {position_of(each) for each in fresh}
                start = position_of(found[-1]) if found else start
                has_more = len(found) == FOLLOW_SLICE
                entries = tuple(read(each, InboxEntry) for each in fresh)
                del found, fresh  # not to be kept while the reader is slow
                if entries:
                    yield entries
                del entries
                if has_more:
                    continue
                start = max(first, min(start, (self._clock.now() - LATE_US, "")))
                seen = {each for each in seen if each > start}
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):  # other processes cannot set it
                        await wake_up.wait()
        finally:
            self._waiting.discard(wake_up)

    async def _find(
        self,
        tenant: str,
        user: str,
        after: RowPosition | None,
        limit: int,
        *,
        unread: bool = False,
        newest: bool = False,
    ) -> list[Row]:
        index = INBOX_UNREAD if unread else INBOX_BY_USER
        now = self._clock.now()
        return await self._tables.find(index, tenant, (user,), now, after=after, limit=limit, newest=newest)

    async def _mark(self, found: list[Row], now: int) -> list[bool]:
        groups = []
        for row in found:
            entry = msgspec.structs.replace(read(row, InboxEntry), read=now)
            groups.append([inbox_put(row.key.tenant, entry, row.version, row.until)])
        return [answer != 0 for answer in await change(self._tables, groups, now)]


def _is_unread(row: Row) -> bool:
    return read(row, InboxEntry).read is None


def _place(entry: InboxEntry) -> RowPosition:
    """Where an entry lies among those of its user."""
    return entry.at, f"{entry.user}/{entry.id}"
