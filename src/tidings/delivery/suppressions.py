"""Addresses that nothing may be sent to: because they do not exist, or because somebody does not want it.

They are stored under a digest of the address key (`domain/notifications/address_key.py`), so that a suppression is
found however its address is written, also after the user was erased.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.cursors import place_of, read_cursor, write_cursor
from tidings.delivery.filing import ALL, by_user, encode, read, suppressed_key, suppressed_keys, tags_of_address
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device, check_line
from tidings.domain.notifications.address_key import address_key, check_place
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.user import TRANSACTIONAL, User
from tidings.ports import ANY, Document, DocumentStore, Key, Put, Remove, Unchanged

PAGE_MAX = 1_000
REASON_CHARS_MAX = 200
SLICE = 200
KEYS_VERSION = "2"  # of `address_key`, by which suppressions are filed


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

    def __init__(self, cabinet: DocumentStore, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._key_upgrade = KeyUpgrade(cabinet, clock)

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
            check_suppressible(channel, address)
        if not reason or len(check_line(reason, "reason")) > REASON_CHARS_MAX:
            raise Invalid("reason", f"give a reason in one line of at most {REASON_CHARS_MAX} characters")
        await self._key_upgrade.finish(tenant)
        now = self._clock.now()
        key, *former = suppressed_keys(tenant, channel, address, category)
        if former and resting is None and any(await self._cabinet.get(former, now)):
            return False
        made = Suppression(channel, address_key(channel, address), reason, now, category, user)
        put = _put(key, made, 0)
        [done] = await self._cabinet.change([[put] if resting is None else [put, resting]], now)
        return bool(done)

    async def add_nameless(self, tenant: str, channel: ChannelName, address: str | Device, reason: str) -> None:
        """The same for somebody who was erased: as a digest alone."""
        now = self._clock.now()
        put = _put(suppressed_key(tenant, channel, address), Suppression(channel, None, reason, now), 0)
        await self._cabinet.change([[put]], now)

    async def of(self, tenant: str, places: Sequence[Place]) -> list[Suppression | None]:
        """For each place what forbids to send there, None if nothing does."""
        await self._key_upgrade.finish(tenant)
        keys = [
            (
                suppressed_keys(tenant, asked.channel, asked.address),
                suppressed_keys(tenant, asked.channel, asked.address, asked.category),
            )
            for asked in places
        ]
        wanted = list(dict.fromkeys(key for pair in keys for several in pair for key in several))
        found = dict(zip(wanted, await self._cabinet.get(wanted, self._clock.now()), strict=True))
        return [
            _forbidding(_first(found, wholes), _first(found, parts), asked.category)
            for (wholes, parts), asked in zip(keys, places, strict=True)
        ]

    async def page(
        self, tenant: str, channel: ChannelName | None = None, cursor: str | None = None, limit: int = 100
    ) -> SuppressionPage:
        """Those of a channel or all, the latest first."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
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
        await self._key_upgrade.finish(tenant)
        keys = suppressed_keys(tenant, channel, address, category)
        now = self._clock.now()
        there = [each for each in await self._cabinet.get(keys, now) if each is not None]
        if there:
            await self._cabinet.change([[Remove(each.key) for each in there]], now)
        return bool(there)

    async def forget(self, tenant: str, user: User) -> int:
        """Remove a person from them: what stays is a digest, which names nobody and still suppresses the address."""
        await self._key_upgrade.finish(tenant)
        now = self._clock.now()
        forgotten = 0
        places = ((channel, to) for channel in CHANNEL_NAMES for to in user.addresses(channel))
        for tag in {tag for channel, to in places for tag in tags_of_address(channel, to)}:
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


class KeyUpgrade:
    """Files the suppressions of a store of version 0.1 under today's keys, one tenant before its first use.

    Version 0.1 had a key for each way of writing an address. Suppressions of persons who were erased keep their key,
    because their address is not known any more: they are found by the ways of writing that `former_keys` knows.
    """

    def __init__(self, cabinet: DocumentStore, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._finished: set[str] = set()

    async def finish(self, tenant: str) -> None:
        """Return once all suppressions of a tenant are under today's keys. Cut off anywhere, it goes on later."""
        if tenant in self._finished:
            return
        async with self._locks[tenant]:
            if tenant not in self._finished:
                await self._run(tenant)
                self._finished.add(tenant)
        self._locks.pop(tenant, None)

    async def _run(self, tenant: str) -> None:
        mark = Key(tenant, "suppression_keys", KEYS_VERSION)
        [done] = await self._cabinet.get([mark], self._clock.now())
        if done is not None:
            return
        after, is_empty = None, True
        while found := await self._cabinet.find(
            tenant, "suppressed", ALL, self._clock.now(), after=after, limit=PAGE_MAX
        ):
            is_empty = False
            for there in found:
                await self._move(there)
            after = place_of(found[-1])
        if not is_empty:
            await self._cabinet.change([[Put(mark, b"{}", 0)]], self._clock.now())

    async def _move(self, there: Document) -> None:
        kept = read(there, Suppression)
        if kept.address is None or kept.channel in {"push", "in_app"}:
            return
        key = suppressed_key(there.key.tenant, kept.channel, kept.address, kept.category)
        if key == there.key:
            return
        named = msgspec.structs.replace(kept, address=address_key(kept.channel, kept.address))
        remove = Remove(there.key, there.version)
        # The second group is for an address that has a suppression under today's key too.
        await self._cabinet.change([[_put(key, named, 0), remove], [remove]], self._clock.now())


def check_suppressible(channel: ChannelName, address: str | Device) -> None:
    """Refuse what is not an address of this channel; a telephone number may have spaces and hyphens."""
    check_place(channel, address_key(channel, address) if channel == "sms" else address, "address")


def _first(found: dict[Key, Document | None], keys: Sequence[Key]) -> Document | None:
    return next((found[key] for key in keys if found[key] is not None), None)


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
