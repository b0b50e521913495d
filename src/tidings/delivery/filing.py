"""How each kind of document is filed in the cabinet: its key, the tags that find it, and what it is in bytes.

All who write a kind write it from here, so that it is found again whoever wrote it.
"""

from hashlib import blake2b
from typing import TypeVar

import msgspec

from tidings.domain.notifications.address import Device
from tidings.domain.notifications.address_key import digest, digests
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import KIND, User
from tidings.ports import Document, Key, Put

T = TypeVar("T")

ALL = "all"
SHARED = ""  # the tenant of what a provider names, who knows no tenants; no tenant can be called so
DAY_US = 86_400_000_000
KEPT_US = 30 * DAY_US  # how long what is over can be looked up
DIGEST_BYTES = 16

_TROUBLE = frozenset({"failed", "bounced", "complained", "expired"})

encode = msgspec.json.Encoder().encode


class Sent(msgspec.Struct, frozen=True, gc=False):
    """Which delivery a provider's id stands for."""

    tenant: str
    delivery: str


class Held(msgspec.Struct, frozen=True, gc=False):
    """Which notification has a dedupe key."""

    notification: str


def read(document: Document, kind: type[T]) -> T:
    """What a document says."""
    return msgspec.json.decode(document.body, type=kind)


def by_user(user: str, tenant: str | None = None) -> str:
    """The tag of everything of a user; under the shared tenant it names the user's tenant too."""
    return f"user:{user}" if tenant is None else f"user:{tenant}/{user}"


# Users


def user_key(tenant: str, user: str) -> Key:
    return Key(tenant, KIND, user)


def by_address(channel: ChannelName, to: str | Device) -> str:
    """Finds the users who have an address, and what went to it without one."""
    return f"at:{channel}/{digest(channel, to)}"


def tags_of_address(channel: ChannelName, to: str | Device) -> list[str]:
    """The tags of everything that names an address: today's first, then those that version 0.1 may have given it."""
    return [f"at:{channel}/{each}" for each in digests(channel, to)]


def user_put(tenant: str, user: User, expected: int) -> Put:
    """A user, found by id, in the order of ids, and by e-mail address and telephone number."""
    tags = [ALL]
    if user.email is not None:
        tags.append(by_address("email", user.email))
    if user.phone is not None:
        tags.append(by_address("sms", user.phone))
    return Put(user_key(tenant, user.id), encode(user), expected, tuple(tags))


# Notifications


def notification_key(tenant: str, notification: str) -> Key:
    return Key(tenant, "notification", notification)


def notification_put(notification: Notification, expected: int, until: int | None = None) -> Put:
    """A notification, in the order of acceptance. Those that take the latest version of a template are told apart."""
    tags = [ALL, *(f"channel:{channel}" for channel in notification.channels)]
    if notification.user is not None:
        tags.append(by_user(notification.user))
    if notification.to is not None:
        tags.append(by_address(notification.channels[0], notification.to))
    if notification.template is not None:
        word = "latest" if notification.version is None else "pinned"
        tags += [f"template:{notification.template}", f"{word}:{notification.template}"]
    if notification.batch is not None:
        tags.append(f"batch:{notification.batch}")
    key = notification_key(notification.tenant, notification.id)
    return Put(key, encode(notification), expected, tuple(tags), notification.created, until)


# Deliveries


def delivery_key(tenant: str, name: str) -> Key:
    return Key(tenant, "delivery", name)


def delivery_name(notification: str, number: int, generation: int = 1, channel: ChannelName | None = None) -> str:
    """The name of an occurrence; with the channel if it goes to all of them.

    An id that was used again begins to count again: its later uses have names of their own.
    """
    name = f"{notification}/{number}" if generation == 1 else f"{notification}/{generation}.{number}"
    return name if channel is None else f"{name}/{channel}"


def delivery_put(tenant: str, delivery: Delivery, expected: int) -> Put:
    """A delivery, in the order of due times; what went wrong is found by its state.

    Once it is settled it is kept for a while. What waits or is under way is never forgotten.
    """
    tags = [ALL, f"notification:{delivery.notification}"]
    if delivery.user is not None:
        tags.append(by_user(delivery.user))
    elif delivery.address is not None and delivery.channel is not None:
        tags.append(by_address(delivery.channel, delivery.address))
    if delivery.state in _TROUBLE:
        tags.append(f"state:{delivery.state}")
    until = delivery.changed + KEPT_US if delivery.is_settled else None
    return Put(delivery_key(tenant, delivery.name), encode(delivery), expected, tuple(tags), delivery.due, until)


def sent_key(provider: str, provider_id: str) -> Key:
    return Key(SHARED, "sent", f"{provider}/{provider_id}")


def sent_put(tenant: str, delivery: Delivery, provider: str, provider_id: str, now: int) -> Put:
    """What a receipt of this provider will speak of, if nothing is there: an id that comes twice stays the first's."""
    tags = () if delivery.user is None else (by_user(delivery.user, tenant),)
    body = encode(Sent(tenant, delivery.name))
    return Put(sent_key(provider, provider_id), body, 0, tags, now, now + KEPT_US)


# Suppressed addresses and dedupe keys


def suppressed_key(tenant: str, channel: ChannelName, to: str | Device, category: str | None = None) -> Key:
    """Under a digest, so that a person can be forgotten and still not be written to."""
    return suppressed_keys(tenant, channel, to, category)[0]


def suppressed_keys(tenant: str, channel: ChannelName, to: str | Device, category: str | None = None) -> list[Key]:
    """Where to look for the suppression of an address: today's key, then those that version 0.1 may have used."""
    behind = "" if category is None else f"/{category}"
    return [Key(tenant, "suppressed", f"{channel}/{each}{behind}") for each in digests(channel, to)]


def recipient(notification: Notification) -> str:
    """Whom it is for, without an address that could be read."""
    if notification.user is not None:
        return notification.user
    assert notification.to is not None, "a notification has a user or an address"
    return digest(notification.channels[0], notification.to)


def dedupe_key(tenant: str, key: str, whom: str) -> Key:
    """A caller's key, for one person: the same key for another one is no duplicate."""
    return Key(tenant, "dedupe", blake2b(f"{key}\0{whom}".encode(), digest_size=DIGEST_BYTES).hexdigest())
