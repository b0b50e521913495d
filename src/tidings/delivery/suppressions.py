"""Addresses that nothing may be sent to: because they do not exist, or because somebody does not want it."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.cursors import place_of, read_cursor, write_cursor
from tidings.delivery.filing import ALL, by_address, by_user, encode, read, suppressed_key
from tidings.domain.address import Device, check_line
from tidings.domain.errors import Invalid
from tidings.domain.place import check_place, place
from tidings.domain.rendered import CHANNEL_NAMES, ChannelName
from tidings.domain.user import TRANSACTIONAL, User
from tidings.ports import ANY, Cabinet, Document, Key, Put, Remove, Unchanged

PAGE_MAX = 1_000
REASON_CHARS_MAX = 200
SLICE = 200


class Suppression(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why, and since when. `address` is None once its person was erased; `category` None: nothing at all is sent."""

    channel: ChannelName
    address: str | None
    reason: str
    since: int
    category: str | None = None
    user: str | None = None


class SuppressionPage(msgspec.Struct, frozen=True):
    """Some of them, the latest first, and where to go on (None: that was all)."""

    suppressions: tuple[Suppression, ...]
    cursor: str | None


class Place(msgspec.Struct, frozen=True, gc=False):
    """An address on a channel, and the category of what would be sent there."""

    channel: ChannelName
    address: str | Device
    category: str = TRANSACTIONAL


class Suppressions:
    """Keeps and looks up suppressed addresses."""

    def __init__(self, cabinet: Cabinet, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock

    async def add(
        self,
        tenant: str,
        channel: ChannelName,
        address: str | Device,
        reason: str,
        *,
        category: str | None = None,
        user: str | None = None,
        resting: Unchanged | None = None,
    ) -> bool:
        """Send nothing there from now on (of one category, or at all); False if that is so already.

        With what it rests on, also if that is not so any more.
        """
        if channel != "in_app":
            check_place(channel, address, "address")
        if not reason or len(check_line(reason, "reason")) > REASON_CHARS_MAX:
            raise Invalid("reason", f"say why, in one line of at most {REASON_CHARS_MAX} characters")
        now = self._clock.now()
        made = Suppression(channel, place(channel, address), reason, now, category, user)
        put = _put(suppressed_key(tenant, channel, address, category), made, 0)
        [done] = await self._cabinet.change([[put] if resting is None else [put, resting]], now)
        return bool(done)

    async def add_nameless(self, tenant: str, channel: ChannelName, address: str | Device, reason: str) -> None:
        """The same for somebody who was erased: as a digest alone."""
        now = self._clock.now()
        put = _put(suppressed_key(tenant, channel, address), Suppression(channel, None, reason, now), 0)
        await self._cabinet.change([[put]], now)

    async def of(self, tenant: str, places: Sequence[Place]) -> list[Suppression | None]:
        """For each place what forbids to send there, None if nothing does."""
        keys = [
            key
            for asked in places
            for key in (
                suppressed_key(tenant, asked.channel, asked.address),
                suppressed_key(tenant, asked.channel, asked.address, asked.category),
            )
        ]
        found = await self._cabinet.get(keys, self._clock.now())
        pairs = zip(found[::2], found[1::2], places, strict=True)
        return [_forbidding(whole, part, asked.category) for whole, part, asked in pairs]

    async def page(
        self, tenant: str, channel: ChannelName | None = None, cursor: str | None = None, limit: int = 100
    ) -> SuppressionPage:
        """Those of a channel or all, the latest first."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must lie between 1 and {PAGE_MAX}")
        tag = ALL if channel is None else f"channel:{channel}"
        after = None if cursor is None else read_cursor(cursor)
        now = self._clock.now()
        found = await self._cabinet.find(tenant, "suppressed", tag, now, after=after, limit=limit + 1, newest=True)
        shown = found[:limit]
        end = write_cursor(place_of(shown[-1])) if len(found) > limit else None
        return SuppressionPage(tuple(read(there, Suppression) for there in shown), end)

    async def remove(
        self, tenant: str, channel: ChannelName, address: str | Device, category: str | None = None
    ) -> bool:
        """Let messages go there again; False if they could."""
        key = suppressed_key(tenant, channel, address, category)
        now = self._clock.now()
        [there] = await self._cabinet.get([key], now)
        if there is None:
            return False
        await self._cabinet.change([[Remove(key)]], now)
        return True

    async def forget(self, tenant: str, user: User) -> int:
        """Take a person out of them: what stays is a digest, by which nobody is found but she is still left alone."""
        now = self._clock.now()
        forgotten = 0
        for tag in {by_address(channel, to) for channel in CHANNEL_NAMES for to in user.addresses(channel)}:
            found = await self._cabinet.find(tenant, "suppressed", tag, now, limit=PAGE_MAX)
            forgotten += await self._redact(found, now)
        while found := await self._cabinet.find(tenant, "suppressed", by_user(user.id), now, limit=SLICE):
            forgotten += await self._redact(found, now)
        return forgotten

    async def _redact(self, found: Sequence[Document], now: int) -> int:
        known = [(there, read(there, Suppression)) for there in found]
        open_ones = [(there, kept) for there, kept in known if kept.address is not None or kept.user is not None]
        if open_ones:
            bare = [
                (there, msgspec.structs.replace(kept, address=None, user=None, reason=kept.reason.partition(":")[0]))
                for there, kept in open_ones
            ]
            await self._cabinet.change([[_put(there.key, kept, ANY)] for there, kept in bare], now)
        return len(open_ones)


def _put(key: Key, made: Suppression, expected: int) -> Put:
    tags = [ALL, f"channel:{made.channel}", "at:" + "/".join(key.name.split("/")[:2])]
    if made.user is not None:
        tags.append(by_user(made.user))
    return Put(key, encode(made), expected, tuple(tags), made.since)


def _forbidding(whole: Document | None, part: Document | None, category: str) -> Suppression | None:
    """What is transactional heeds only what holds for everything: an address that does not exist, or a complaint."""
    if whole is not None:
        return read(whole, Suppression)
    return None if part is None or category == TRANSACTIONAL else read(part, Suppression)
