"""Addresses that nothing may be sent to: they do not exist, or their owner does not want it.

They are stored under a digest of the address key (`domain/notifications/address_key.py`), so that a suppression is
found however its address is written, and also after its owner was erased.
"""

from collections.abc import Sequence
from typing import Protocol, get_args

import msgspec

from tidings.clock import Clock
from tidings.delivery.rows import (
    address_digests,
    change,
    encode,
    notification_key,
    position_of,
    read,
    read_cursor,
    suppression_keys,
    user_key,
    user_put,
    write_cursor,
)
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device, check_line
from tidings.domain.notifications.address_key import address_key, check_channel_address
from tidings.domain.notifications.delivery import PermanentReason, ReceiptState
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.tables import (
    SUPPRESSIONS,
    SUPPRESSIONS_BY_ADDRESS,
    SUPPRESSIONS_BY_CHANNEL,
    SUPPRESSIONS_BY_USER,
)
from tidings.domain.notifications.user import TRANSACTIONAL, User
from tidings.ports.tables import ANY, Put, Remove, Row, RowKey, Tables, Unchanged
from tidings.shapes.refusal import refused_words

PAGE_MAX = 1_000
REASON_CHARS_MAX = 200
SLICE = 200
ERASED = "erased"  # instead of a reason that may name the person
_REASONS = frozenset({*get_args(ReceiptState), *get_args(PermanentReason), "by hand"})


class Suppression(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why, and since when. `address` is None once its owner was erased; `category` None: nothing at all is sent."""

    channel: ChannelName
    address: str | None
    reason: str
    since: int
    category: str | None = None
    user: str | None = None


class SuppressionPage(msgspec.Struct, frozen=True):
    """Some of them, the latest first, and where to continue (None: that was all)."""

    suppressions: tuple[Suppression, ...]
    cursor: str | None


class Recipient(msgspec.Struct, frozen=True, gc=False):
    """An address on a channel, and the category of what would be sent there."""

    channel: ChannelName
    address: str | Device
    category: str = TRANSACTIONAL


class Suppressions:
    """Stores and finds suppressed addresses."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
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
        condition: Unchanged | None = None,
    ) -> bool:
        """Send nothing there from now on (of one category, or at all); False if that is so already.

        With a condition, also if that does not hold any more.
        """
        if channel not in CHANNEL_NAMES:
            raise refused_words("channel", channel, CHANNEL_NAMES)
        if channel != "in_app":
            check_suppressible(channel, address)
        if not reason or len(check_line(reason, "reason")) > REASON_CHARS_MAX:
            raise Invalid("reason", f"give a reason in one line of at most {REASON_CHARS_MAX} characters")
        now = self._clock.now()
        key, *former = suppression_keys(tenant, channel, address, category)
        if former and condition is None and any(await self._tables.get(former, now)):
            return False
        put = suppression_put(key, Suppression(channel, address_key(channel, address), reason, now, category, user), 0)
        [done] = await change(self._tables, [[put] if condition is None else [put, condition]], now)
        return bool(done)

    async def add_nameless(self, tenant: str, channel: ChannelName, address: str | Device, reason: str) -> None:
        """The same for a person who was erased: as a digest alone."""
        now = self._clock.now()
        key = suppression_keys(tenant, channel, address)[0]
        await change(self._tables, [[suppression_put(key, Suppression(channel, None, reason, now), 0)]], now)

    async def of(self, tenant: str, recipients: Sequence[Recipient]) -> list[Suppression | None]:
        """The suppression of each recipient; None if it has none."""
        keys = [
            (
                suppression_keys(tenant, each.channel, each.address),
                suppression_keys(tenant, each.channel, each.address, each.category),
            )
            for each in recipients
        ]
        wanted = list(dict.fromkeys(key for pair in keys for several in pair for key in several))
        found = dict(zip(wanted, await self._tables.get(wanted, self._clock.now()), strict=True))
        return [
            _effective(_first(found, wholes), _first(found, parts), each.category)
            for (wholes, parts), each in zip(keys, recipients, strict=True)
        ]

    async def page(
        self, tenant: str, channel: ChannelName | None = None, cursor: str | None = None, limit: int = 100
    ) -> SuppressionPage:
        """Those of a channel, or all, the latest first."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
        index, values = (SUPPRESSIONS, ()) if channel is None else (SUPPRESSIONS_BY_CHANNEL, (channel,))
        after = None if cursor is None else read_cursor(cursor)
        now = self._clock.now()
        found = await self._tables.find(index, tenant, values, now, after=after, limit=limit + 1, newest=True)
        shown = found[:limit]
        end = write_cursor(position_of(shown[-1])) if len(found) > limit else None
        return SuppressionPage(tuple(read(row, Suppression) for row in shown), end)

    async def remove(
        self, tenant: str, channel: ChannelName, address: str | Device, category: str | None = None
    ) -> bool:
        """Allow messages to an address again; False if they were allowed."""
        keys = suppression_keys(tenant, channel, address, category)
        now = self._clock.now()
        found = [row for row in await self._tables.get(keys, now) if row is not None]
        if found:
            await change(self._tables, [[Remove(row.key) for row in found]], now)
        return bool(found)

    async def redact(self, tenant: str, user: User) -> int:
        """Remove a person from them; what stays is a digest, which names nobody and still suppresses the address."""
        now = self._clock.now()
        redacted = 0
        digests = {
            digest
            for channel in CHANNEL_NAMES
            for to in user.addresses(channel)
            for digest in address_digests(channel, to)
        }
        for digest in digests:
            found = await self._tables.find(SUPPRESSIONS_BY_ADDRESS, tenant, (digest,), now, limit=PAGE_MAX)
            redacted += await self._redact(found, now)
        while found := await self._tables.find(SUPPRESSIONS_BY_USER, tenant, (user.id,), now, limit=SLICE):
            redacted += await self._redact(found, now)
        return redacted

    async def _redact(self, found: Sequence[Row], now: int) -> int:
        stored = [(row.key, read(row, Suppression)) for row in found]
        named = [(key, each) for key, each in stored if each.address is not None or each.user is not None]
        bare = [
            suppression_put(
                key, msgspec.structs.replace(each, address=None, user=None, reason=_nameless(each.reason)), ANY
            )
            for key, each in named
        ]
        if bare:
            await change(self._tables, [[put] for put in bare], now)
        return len(named)


def _nameless(reason: str) -> str:
    """A reason that names nobody: a word of ours, without what follows it; what somebody wrote is left out."""
    word = reason.partition(":")[0]
    return word if word in _REASONS else ERASED


def check_suppressible(channel: ChannelName, address: str | Device) -> None:
    """Refuse what is not an address of this channel; a telephone number may have spaces and hyphens."""
    check_channel_address(channel, address_key(channel, address) if channel == "sms" else address, "address")


def suppression_put(key: RowKey, made: Suppression, expected: int) -> Put:
    digest = "/".join(key.name.split("/")[:2])
    values = (made.channel, digest, made.address, made.category, made.user, made.reason, made.since)
    return Put(key, encode(made), expected, values)


def _first(found: dict[RowKey, Row | None], keys: Sequence[RowKey]) -> Row | None:
    return next((found[key] for key in keys if found[key] is not None), None)


def _effective(whole: Row | None, part: Row | None, category: str) -> Suppression | None:
    """Transactional messages heed only what applies to everything: an address that does not exist, or a complaint."""
    if whole is not None:
        return read(whole, Suppression)
    return None if part is None or category == TRANSACTIONAL else read(part, Suppression)


TRIES_MAX = 20


class SentDelivery(Protocol):
    """A delivery whose address does not exist."""

    @property
    def tenant(self) -> str: ...

    @property
    def channel(self) -> ChannelName: ...

    @property
    def notification(self) -> Notification: ...

    @property
    def notification_version(self) -> int | None: ...


class DeadAddressHandler:
    """Repeated, it changes nothing, so that it may run before the delivery is settled."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._suppressions = Suppressions(tables, clock)

    async def handle(self, sent: SentDelivery, address: str | Device, reason: str) -> None:
        """Send nothing to this address any more."""
        user = sent.notification.user
        if user is not None and isinstance(address, Device):
            await self._remove_device(sent.tenant, user, address)
        elif sent.notification_version is None:
            await self._suppressions.add(sent.tenant, sent.channel, address, reason, user=user)
        else:
            await self._suppress(sent, address, reason)

    async def _suppress(self, sent: SentDelivery, address: str | Device, reason: str) -> None:
        """If the user was erased while it was sent, their address must not be stored again."""
        keys = [
            notification_key(sent.tenant, sent.notification.id),
            *suppression_keys(sent.tenant, sent.channel, address),
        ]
        for _ in range(TRIES_MAX):
            notification, *known = await self._tables.get(keys, self._clock.now())
            if any(known):
                return
            if notification is None:
                await self._suppressions.add_nameless(sent.tenant, sent.channel, address, reason)
                return
            condition, user = Unchanged(notification.key, notification.version), sent.notification.user
            if await self._suppressions.add(sent.tenant, sent.channel, address, reason, user=user, condition=condition):
                return

    async def _remove_device(self, tenant: str, user_id: str, device: Device) -> None:
        key = user_key(tenant, user_id)
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [row] = await self._tables.get([key], now)
            user = None if row is None else read(row, User)
            if row is None or user is None or device not in user.devices:
                return
            left = tuple(each for each in user.devices if each != device)
            put = user_put(tenant, msgspec.structs.replace(user, devices=left), row.version)
            [done] = await change(self._tables, [[put]], now)
            if done:
                return
