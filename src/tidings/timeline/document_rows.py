"""The rows that replace the documents of version 0.1, for the migration of a store.

A body stays as it is; only suppressions get the key that their address has today.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tidings.domain.names import is_storable
from tidings.domain.notifications.address_key import address_key, digest
from tidings.domain.notifications.circuit_breaker import Breaker
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.rate_limit import Bucket
from tidings.domain.notifications.tables import Value
from tidings.domain.notifications.user import InboxEntry
from tidings.ports.tables import ANY, KEY_BYTES_MAX, ChangeGroup, Put, RowKey

Values = tuple[Value, ...]

_TROUBLE = frozenset({"failed", "bounced", "complained", "expired"})
_USER_TAG = "user:"


class Document(NamedTuple):
    """A document of version 0.1: found by its kind and name, and by each of its tags, under which `order` sorts it."""

    tenant: str
    kind: str
    name: str
    body: bytes
    version: int
    tags: tuple[str, ...]
    order: int
    until: int | None


class _User(msgspec.Struct, gc=False):
    name: str | None = None
    email: str | None = None
    phone: str | None = None
    webhook: str | None = None
    zone: str = "UTC"
    locale: str | None = None


class _Latest(msgspec.Struct, gc=False):
    version: int
    changed: int
    deleted: bool = False


class _Sent(msgspec.Struct, gc=False):
    tenant: str
    delivery: str


class _Held(msgspec.Struct, gc=False):
    notification: str


class _Suppression(msgspec.Struct, frozen=True, omit_defaults=True):
    channel: ChannelName
    address: str | None
    reason: str
    since: int
    category: str | None = None
    user: str | None = None


_user = msgspec.json.Decoder(_User).decode
_notification = msgspec.json.Decoder(Notification).decode
_delivery = msgspec.json.Decoder(Delivery).decode
_latest = msgspec.json.Decoder(_Latest).decode
_sent = msgspec.json.Decoder(_Sent).decode
_held = msgspec.json.Decoder(_Held).decode
_entry = msgspec.json.Decoder(InboxEntry).decode
_bucket = msgspec.json.Decoder(Bucket).decode
_breaker = msgspec.json.Decoder(Breaker).decode
_suppression = msgspec.json.Decoder(_Suppression).decode
_encode = msgspec.json.Encoder().encode
_decode_tags = msgspec.msgpack.Decoder(tuple[str, ...]).decode


def decode_tags(packed: bytes) -> tuple[str, ...]:
    """Decode the tags of a document."""
    return _decode_tags(packed) if packed else ()


def group_of(document: Document) -> ChangeGroup | None:
    """The change that writes the row of a document; None if nothing is kept of it.

    A suppression that gets today's key yields to one that has had it before.
    """
    kind = document.kind
    if not is_storable(document.name) or len(document.name.encode()) > KEY_BYTES_MAX:
        return None  # the id of a provider that no receipt will name again
    if kind == "suppressed":
        return ChangeGroup((_suppression_put(document),))
    if kind not in _TABLES:
        return None
    table, values = _TABLES[kind]
    key = RowKey(table, document.tenant, document.name)
    return ChangeGroup((Put(key, document.body, 0, _storable(values(document)), document.until),))


def _user_values(document: Document) -> Values:
    user = _user(document.body)
    return (
        user.name,
        user.email,
        user.phone,
        user.webhook,
        user.zone,
        user.locale,
        None if user.email is None else f"email/{digest('email', user.email)}",
        None if user.phone is None else f"sms/{digest('sms', user.phone)}",
    )


def _notification_values(document: Document) -> Values:
    own = _notification(document.body)
    return (
        own.user,
        None if own.to is None else f"{own.channels[0]}/{digest(own.channels[0], own.to)}",
        ",".join(own.channels),
        own.template,
        own.version,
        own.category,
        own.priority,
        own.batch,
        own.created,
        own.cancelled,
        own.first,
        None,
    )


def _delivery_values(document: Document) -> Values:
    own = _delivery(document.body)
    address = None
    if own.user is None and own.address is not None and own.channel is not None:
        address = f"{own.channel}/{digest(own.channel, own.address)}"
    return (
        own.notification,
        own.user,
        address,
        own.channel,
        own.state,
        own.reason,
        own.state if own.state in _TROUBLE else None,
        own.due,
        own.next_try,
        own.turn,
        len(own.attempts),
        None if own.claim is None else own.claim.worker,
        None if own.claim is None else own.claim.until,
        own.provider,
        own.provider_id,
        own.sent,
        own.changed,
        own.user if own.state == "pending" and own.reason == "quiet_hours" else None,
    )


def _template_values(document: Document) -> Values:
    latest = _latest(document.body)
    return latest.version, latest.changed, int(latest.deleted)


def _version_values(document: Document) -> Values:
    name, _, number = document.name.rpartition("/")
    return name, int(number)


def _inbox_values(document: Document) -> Values:
    entry = _entry(document.body)
    return entry.user, entry.user if entry.read is None else None, entry.title, entry.at, entry.read


def _message_values(document: Document) -> Values:
    sent = _sent(document.body)
    return sent.tenant, sent.delivery, _user_tag(document), document.order, None


def _dedupe_values(document: Document) -> Values:
    return _held(document.body).notification, _user_tag(document), document.order


def _limit_values(document: Document) -> Values:
    bucket = _bucket(document.body)
    return bucket.parts, bucket.at


def _breaker_values(document: Document) -> Values:
    breaker = _breaker(document.body)
    return breaker.reason, breaker.until, breaker.times, breaker.worker


def _user_tag(document: Document) -> str | None:
    """The user that a document is found by; behind the name of the tenant, if all tenants share its kind."""
    return next((tag.removeprefix(_USER_TAG) for tag in document.tags if tag.startswith(_USER_TAG)), None)


def _suppression_put(document: Document) -> Put:
    """Version 0.1 had a key for each way of writing an address. Suppressions of erased users keep their key, because
    their address is not known any more; so do devices, whose key has not changed."""
    kept = _suppression(document.body)
    name, body = document.name, document.body
    if kept.address is not None and kept.channel not in {"push", "in_app"}:
        name = f"{kept.channel}/{digest(kept.channel, kept.address)}"
        name = name if kept.category is None else f"{name}/{kept.category}"
        if name != document.name:
            kept = msgspec.structs.replace(kept, address=address_key(kept.channel, kept.address))
            body = _encode(kept)
    owner = "/".join(name.split("/")[:2])
    values = (kept.channel, owner, kept.address, kept.category, kept.user, kept.reason, kept.since)
    expected = ANY if name == document.name else 0
    return Put(RowKey("suppression", document.tenant, name), body, expected, _storable(values), document.until)


def _storable(values: Values) -> Values:
    """The columns only repeat what is in the body: what not every store can hold is replaced."""
    texts = "".join(value for value in values if isinstance(value, str))
    if is_storable(texts):
        return values
    return tuple(_replaced(value) if isinstance(value, str) else value for value in values)


def _replaced(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_TABLES: dict[str, tuple[str, Callable[[Document], Values]]] = {
    "user": ("app_user", _user_values),
    "notification": ("notification", _notification_values),
    "delivery": ("delivery", _delivery_values),
    "dedupe": ("dedupe_key", _dedupe_values),
    "template": ("template", _template_values),
    "template_version": ("template_version", _version_values),
    "inbox": ("inbox", _inbox_values),
    "sent": ("provider_message", _message_values),
    "throttle": ("rate_limit", _limit_values),
    "breaker": ("circuit_breaker", _breaker_values),
}
