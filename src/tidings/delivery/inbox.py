"""Inboxes: a user's in-app messages, how many of them are unread, and new ones as they come."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from tidings.clock import Clock
from tidings.delivery.cursors import place_of, read_cursor, write_cursor
from tidings.delivery.filing import encode, read
from tidings.domain.errors import Invalid
from tidings.domain.facts import DeliveryFact, Ended
from tidings.domain.notifications.user import INBOX_KIND, UNREAD, InboxEntry, entry_name, entry_tags
from tidings.ports import Document, DocumentStore, Key, Place, Put

PAGE_MAX = 1_000
COUNTED_MAX = 1_000
SLICE = 200
FOLLOW_SLICE = 4  # a line may have 512 KiB, and a reader that does not read keeps one slice
TRIES_MAX = 20
LOOK_S = 1.0
LATE_US = 2_000_000  # a line may appear that much after its time: others that are later are there before it


class InboxPage(msgspec.Struct, frozen=True):
    """Some lines, the latest first, and where to go on (None: that was all)."""

    lines: tuple[InboxEntry, ...]
    cursor: str | None


class Unread(msgspec.Struct, frozen=True):
    """How many lines are unread; `more` says that they were counted no further."""

    count: int
    more: bool = False


class Inbox:
    """The inboxes of all. As a listener of what workers tell, it knows at once when something came."""

    def __init__(self, cabinet: DocumentStore, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._bells: set[asyncio.Event] = set()

    def __call__(self, fact: DeliveryFact) -> None:
        """Wake the waiting readers; each checks whether the line is for it."""
        if isinstance(fact, Ended) and fact.channel == "in_app" and fact.state == "sent":
            for bell in self._bells:
                bell.set()

    async def page(
        self, tenant: str, user: str, *, unread: bool = False, cursor: str | None = None, limit: int = 100
    ) -> InboxPage:
        """A user's lines, or the unread ones, the latest first."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
        after = None if cursor is None else read_cursor(cursor)
        found = await self._find(tenant, _tag(user, unread=unread), after, limit + 1, newest=True)
        shown = found[:limit]
        following = write_cursor(place_of(shown[-1])) if len(found) > limit else None
        return InboxPage(tuple(read(each, InboxEntry) for each in shown), following)

    async def unread(self, tenant: str, user: str) -> Unread:
        """How many lines are unread, counted up to a bound."""
        found = await self._find(tenant, _tag(user, unread=True), None, COUNTED_MAX + 1)
        return Unread(min(len(found), COUNTED_MAX), len(found) > COUNTED_MAX)

    async def read_one(self, tenant: str, user: str, line: str) -> InboxEntry | None:
        """Mark one line as read; None if there is no such line."""
        key = Key(tenant, INBOX_KIND, entry_name(user, line))
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [there] = await self._cabinet.get([key], now)
            if there is None:
                return None
            kept = read(there, InboxEntry)
            if kept.read is not None or (await self._mark([there], now))[0]:
                return msgspec.structs.replace(kept, read=kept.read or now)
        raise Invalid("line", "is being changed by other requests: try again")

    async def read_all(self, tenant: str, user: str) -> int:
        """Mark all that are there now as read; says how many that were."""
        marked, begun = 0, self._clock.now()
        while found := await self._find(tenant, _tag(user, unread=True), None, SLICE):
            earlier = [each for each in found if each.order <= begun]
            if not earlier:
                break
            marked += sum(await self._mark(earlier, self._clock.now()))
        return marked

    async def news(self, tenant: str, user: str, after: str | None, limit: int, wait_us: int) -> InboxPage:
        """The lines of a user after a cursor, oldest first, waiting for one if there is none; default: from now on.

        The cursor is never None: it says where to go on.
        """
        place = (self._clock.now(), "") if after is None else read_cursor(after)
        bell = asyncio.Event()
        self._bells.add(bell)
        until = self._clock.elapsed() + wait_us
        try:
            while True:
                bell.clear()
                found = await self._find(tenant, _tag(user, unread=False), place, limit)
                left_s = (until - self._clock.elapsed()) / 1_000_000
                if found or left_s <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_S)):  # other processes do not ring our bell
                        await bell.wait()
        finally:
            self._bells.discard(bell)
        cursor = write_cursor(place_of(found[-1]) if found else place)
        return InboxPage(tuple(read(each, InboxEntry) for each in found), cursor)

    def cursor(self, line: InboxEntry | None = None) -> str:
        """Where to go on behind a line; without one, from now on."""
        return write_cursor((self._clock.now(), "") if line is None else _place(line))

    async def follow(self, tenant: str, user: str, after: str) -> AsyncGenerator[tuple[InboxEntry, ...], None]:
        """The lines of a user after a cursor as they come, without end.

        None is left out that appears a moment after a later one. Who goes on behind a line may see again what came
        just before it: lines have ids.
        """
        place = read_cursor(after)
        first = start = place if not place[1] else (max(0, place[0] - LATE_US), "")
        seen = {place}
        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            while True:
                bell.clear()
                found = await self._find(tenant, _tag(user, unread=False), start, FOLLOW_SLICE)
                fresh = [each for each in found if place_of(each) not in seen]
                seen |= {place_of(each) for each in fresh}
                start = place_of(found[-1]) if found else start
                has_more = len(found) == FOLLOW_SLICE
                lines = tuple(read(each, InboxEntry) for each in fresh)
                del found, fresh  # not to be kept while the reader is slow
                if lines:
                    yield lines
                del lines
                if has_more:
                    continue
                start = max(first, min(start, (self._clock.now() - LATE_US, "")))
                seen = {each for each in seen if each > start}
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):  # other processes do not ring our bell
                        await bell.wait()
        finally:
            self._bells.discard(bell)

    async def _find(
        self, tenant: str, tag: str, after: Place | None, limit: int, *, newest: bool = False
    ) -> list[Document]:
        return await self._cabinet.find(
            tenant, INBOX_KIND, tag, self._clock.now(), after=after, limit=limit, newest=newest
        )

    async def _mark(self, found: list[Document], now: int) -> list[bool]:
        groups = []
        for there in found:
            line = msgspec.structs.replace(read(there, InboxEntry), read=now)
            groups.append([Put(there.key, encode(line), there.version, entry_tags(line), there.order, there.until)])
        return [answer != 0 for answer in await self._cabinet.change(groups, now)]


def _place(line: InboxEntry) -> Place:
    """Where a line lies among those of its user."""
    return line.at, entry_name(line.user, line.id)


def _tag(user: str, *, unread: bool) -> str:
    return f"{UNREAD}:{user}" if unread else f"user:{user}"
