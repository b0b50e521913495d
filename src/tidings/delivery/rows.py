"""The rows of notifications: from a value to the columns and the body of its row, and back.

Everything that writes a table builds its rows here, so that they are found again whoever wrote them.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.address_key import digest, digests
from tidings.domain.notifications.delivery import Delivery, DeliveryReceipt
from tidings.domain.notifications.message import ID_BYTES_MAX, ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.tables import SHARED
from tidings.domain.notifications.user import InboxEntry, User
from tidings.ports.tables import BulkGroups, ChangeGroup, Put, Row, RowChange, RowKey, RowPosition, Tables

T = TypeVar("T")

DAY_US = 86_400_000_000
RETENTION_US = 30 * DAY_US  # how long finished notifications can be looked up
KEPT_RECEIPTS_US = 600_000_000  # how long a receipt waits for its message
DIGEST_BYTES = 16

# Follows the JSON of a claimed delivery. A settled one is longer by about as much, so it fits in the place of its row:
# SQLite has to move the rows beside one that does not.
_ROOM = b" " * 192

_TROUBLE = frozenset({"failed", "bounced", "complained", "expired"})

encode = msgspec.json.Encoder().encode
_decoders: dict[type, msgspec.json.Decoder[object]] = {}


class ProviderMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delivery that a provider's id belongs to; while that is not known, the receipts that came for it."""

    tenant: str = ""
    delivery: str = ""
    receipts: tuple[DeliveryReceipt, ...] = ()


class DedupeHolder(msgspec.Struct, frozen=True, gc=False):
    """The notification that has a dedupe key."""

    notification: str


def read(row: Row, kind: type[T]) -> T:
    """The value in the body of a row."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(row.body)  # type: ignore[return-value]


# Users


def user_key(tenant: str, user: str) -> RowKey:
    return RowKey("app_user", tenant, user)


def user_put(tenant: str, user: User, expected: int) -> Put:
    values = (
        user.name,
        user.email,
        user.phone,
        user.webhook,
        user.zone,
        user.locale,
        None if user.email is None else address_digest("email", user.email),
        None if user.phone is None else address_digest("sms", user.phone),
    )
    return Put(user_key(tenant, user.id), encode(user), expected, values)


def address_digest(channel: ChannelName, to: str | Device) -> str:
    """The value of the columns by which an address is found, however it is written."""
    return f"{channel}/{digest(channel, to)}"


def address_digests(channel: ChannelName, to: str | Device) -> list[str]:
    """Today's digest of an address, and those that version 0.1 may have given it."""
    return [f"{channel}/{each}" for each in digests(channel, to)]


# Notifications


def notification_key(tenant: str, notification: str) -> RowKey:
    return RowKey("notification", tenant, notification)


def notification_put(notification: Notification, expected: int, until: int | None = None) -> Put:
    to = notification.to
    values = (
        notification.user,
        None if to is None else address_digest(notification.channels[0], to),
        ",".join(notification.channels),
        notification.template,
        notification.version,
        notification.category,
        notification.priority,
        notification.batch,
        notification.created,
        notification.cancelled,
        notification.first,
        1 if notification.is_local else None,
    )
    key = notification_key(notification.tenant, notification.id)
    return Put(key, encode(notification), expected, values, until)


def new_notifications(tenant: str, *, are_new: bool = False) -> BulkGroups:
    """Notifications for users that must be as they were read, to be filled in by column.

    `are_new` says that their ids were made just now.
    """
    return BulkGroups(table="notification", required_table="app_user", own_column=0, tenant=tenant, are_new=are_new)


# Deliveries


def delivery_key(tenant: str, name: str) -> RowKey:
    return RowKey("delivery", tenant, name)


def delivery_name(notification: str, number: int, generation: int = 1, channel: ChannelName | None = None) -> str:
    """The name of the delivery of an occurrence; with the channel if the notification goes to all of them.

    The occurrences of a reused id are numbered from 1 again, so its later generations are part of the name.
    """
    name = f"{notification}/{number}" if generation == 1 else f"{notification}/{generation}.{number}"
    return name if channel is None else f"{name}/{channel}"


def generation_of(notification: str, delivery: str) -> int:
    """The generation in the name of a delivery."""
    number, dot, _ = delivery.removeprefix(f"{notification}/").partition("/")[0].partition(".")
    return int(number) if dot else 1


def delivery_put(tenant: str, delivery: Delivery, expected: int, retention_us: int = RETENTION_US) -> Put:
    """A delivery. It expires some time after it is settled, and never before."""
    to = None
    if delivery.user is None and delivery.address is not None and delivery.channel is not None:
        to = address_digest(delivery.channel, delivery.address)
    claim = delivery.claim
    values = (
        delivery.notification,
        delivery.user,
        to,
        delivery.channel,
        delivery.state,
        delivery.reason,
        delivery.state if delivery.state in _TROUBLE else None,
        delivery.due,
        delivery.next_try,
        delivery.turn,
        len(delivery.attempts),
        None if claim is None else claim.worker,
        None if claim is None else claim.until,
        delivery.provider,
        delivery.provider_id,
        delivery.sent,
        delivery.changed,
        delivery.user if delivery.is_held else None,
    )
    until = delivery.changed + retention_us if delivery.is_settled else None
    body = encode(delivery) if claim is None else encode(delivery) + _ROOM
    return Put(delivery_key(tenant, delivery.name), body, expected, values, until)


PROVIDER_ID_BYTES_MAX = 1_000  # a longer id is not stored, and so has no receipts


def provider_message_key(provider: str, provider_id: str) -> RowKey:
    return RowKey("provider_message", SHARED, f"{provider}/{provider_id}")


def provider_message_put(
    tenant: str,
    delivery: Delivery,
    provider: str,
    provider_id: str,
    now: int,
    expected: int = 0,
    *,
    retention_us: int = RETENTION_US,
) -> Put:
    """The delivery that a provider's receipts will be about. If the id is taken, it stays with its first delivery.

    `expected` is the version of the row of receipts that came before, which this one replaces.
    """
    user = None if delivery.user is None else user_tag(tenant, delivery.user)
    values = (tenant, delivery.name, user, now, None)
    body = encode(ProviderMessage(tenant, delivery.name))
    return Put(provider_message_key(provider, provider_id), body, expected, values, now + retention_us)


def kept_receipts_put(key: RowKey, kept_for: str, receipts: Sequence[DeliveryReceipt], expected: int, now: int) -> Put:
    """Receipts for an id that no delivery has yet."""
    body = encode(ProviderMessage(receipts=tuple(receipts)))
    return Put(key, body, expected, (None, None, None, now, kept_for), now + KEPT_RECEIPTS_US)


def user_tag(tenant: str, user: str) -> str:
    """A user of a tenant, in tables that all tenants share."""
    return f"{tenant}/{user}"


# Suppressions and dedupe keys


def suppression_keys(tenant: str, channel: ChannelName, to: str | Device, category: str | None = None) -> list[RowKey]:
    """The keys of the suppression of an address: today's, then those that version 0.1 may have used."""
    suffix = "" if category is None else f"/{category}"
    return [RowKey("suppression", tenant, f"{each}{suffix}") for each in address_digests(channel, to)]


def recipient(notification: Notification) -> str:
    """The user of a notification, or a digest of its address."""
    if notification.user is not None:
        return notification.user
    assert notification.to is not None, "a notification has a user or an address"
    return digest(notification.channels[0], notification.to)


def dedupe_key(tenant: str, key: str, whom: str) -> RowKey:
    """A caller's dedupe key, for one recipient: for another recipient the same key is not a duplicate."""
    name = blake2b(f"{key}\0{whom}".encode(), digest_size=DIGEST_BYTES).hexdigest()
    return RowKey("dedupe_key", tenant, name)


def dedupe_put(key: RowKey, notification: Notification, expected: int, until: int) -> Put:
    values = (notification.id, notification.user, notification.created)
    return Put(key, encode(DedupeHolder(notification.id)), expected, values, until)


# Inboxes


def inbox_key(tenant: str, user: str, entry: str) -> RowKey:
    """The key of an inbox entry; it is unambiguous because a user's id has no slash."""
    return RowKey("inbox", tenant, f"{user}/{entry}")


def inbox_put(tenant: str, entry: InboxEntry, expected: int, until: int | None) -> Put:
    values = (entry.user, entry.user if entry.read is None else None, entry.title, entry.at, entry.read)
    return Put(inbox_key(tenant, entry.user, entry.id), encode(entry), expected, values, until)


# Changes without a command for the timeline


async def change(tables: Tables, groups: Sequence[Sequence[RowChange]], now: int) -> list[int]:
    """Apply groups of row changes, each as a whole or not at all; the version of each, 0 if it was not applied."""
    results = await tables.commit([ChangeGroup(tuple(group)) for group in groups], now)
    return [result.version for result in results]


def position_of(row: Row) -> RowPosition:
    """The position of a row in the index by which it was found."""
    return row.order, row.key.name


def write_cursor(position: RowPosition) -> str:
    """The cursor of a position."""
    return f"{position[0]}.{position[1]}"


def read_cursor(cursor: str) -> RowPosition:
    """The position of a cursor."""
    order, dot, name = cursor.partition(".")
    if not dot or not order.isdigit() or not order.isascii() or len(order) > 18:
        raise Invalid("cursor", "is not valid: leave it out to start from the beginning")
    return int(order), name


_PLAIN = re.compile(r"[!-$&-~]+")  # without the percent sign, so that it can be read back


def message_id(tenant: str, name: str, device: int = 0) -> str:
    """A delivery's name, with the number of a device, and its tenant unless that is the default one: receivers that
    know ids again, and providers' receipts, know no tenants. What a provider could not take is written otherwise.

    A name ends with a number or a channel behind a slash. Where somebody chose one that could be taken for another
    tenant's, it says its own tenant too.
    """
    text = f"{name}/{device}" if device else name
    if not _PLAIN.fullmatch(text):
        text = quote(text)
    if tenant != DEFAULT_TENANT or "@" in name.rpartition("/")[2]:
        text = f"{text}@{tenant}"
    return text if len(text) <= ID_BYTES_MAX else blake2b(text.encode(), digest_size=32).hexdigest()


def delivery_of(tenant: str, message: str) -> str | None:
    """The delivery of this tenant that was sent under an id; None if it was not one of this tenant's."""
    end = f"@{tenant}"
    if message.endswith(end):
        return unquote(message.removesuffix(end))
    return unquote(message) if tenant == DEFAULT_TENANT and "@" not in message.rpartition("/")[2] else None


def is_readable(message: str) -> bool:
    """Whether an id names its delivery; otherwise it is a digest of the name."""
    return "/" in message


def owner_of(message: str) -> tuple[str, str] | None:
    """The tenant and the delivery that an id names; None if it is a digest, or not one of our ids."""
    if not is_readable(message):
        return None
    _, at, tenant = message.rpartition("/")[2].rpartition("@")
    tenant = tenant if at else DEFAULT_TENANT
    name = delivery_of(tenant, message)
    return None if name is None else (tenant, name)
