"""The wire of notifications that are sent at once: `tidings.notify.<tenant>` in, and a worker tells the person.

The record's value is the notification as JSON: `user`, or `to` with an address; `channels` in order; `words`, or
`template` with `variables`; and what else one may have (`priority`, `category`, ...). Its `id` names it: sent again it
is the same one. Without an id the record's place is its id. It leaves on the built-in log, where the workers read, and
is the same to them as one that was scheduled. Who wants it later schedules it over HTTP.
"""

from typing import Any, ClassVar

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.notification import PRIORITIES, Errand, Notification, topic
from tidings.domain.request import Request
from tidings.wires.destinations import NATIVE, NATIVE_REJECTIONS
from tidings.wires.headers import derived_id
from tidings.wires.record import Ask, Record
from tidings.wires.wire import Wire, affixed

NOTIFICATIONS = f"{NATIVE}notify."
VALUE = "the record's value"
OURS = ("batch", "created", "content", "cancelled")  # what only Tidings says of a notification


class Notify(Wire):
    """Reads notifications; whose they are says the topic."""

    name = "notify"
    sources: ClassVar = {"id": "id", "value": VALUE, "topic": "channels"}

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, NOTIFICATIONS)

    def rejections(self, tenant: str) -> str:
        return NATIVE_REJECTIONS + tenant

    def ask(self, tenant: str, record: Record) -> Ask:
        notification = _read(tenant, record)
        request = Request(
            topic(notification.channels[0], notification.priority),
            msgspec.json.encode(Errand(inline=notification)),
            (notification.user or notification.id).encode(),
            id=notification.id,
            priority=PRIORITIES[notification.priority],
            bus="log",
        )
        return Ask(tenant, "add", notification.id, request)


def _read(tenant: str, record: Record) -> Notification:
    try:
        written: Any = msgspec.json.decode(record.value or b"")
    except msgspec.DecodeError as error:
        raise Invalid(VALUE, f"is not JSON: {error}") from None
    if not isinstance(written, dict):
        raise Invalid(VALUE, 'is not a notification: write an object such as {"user": "ada", "channels": ["email"]}')
    known = [name for name in Notification.__struct_fields__ if name not in (*OURS, "tenant")]
    if unknown := sorted(written.keys() - set(known)):
        raise Invalid(unknown[0], f"is not a field of a notification: it knows {', '.join(known)}")
    given = {"id": derived_id(record).replace("/", "."), **written, "tenant": tenant}
    try:
        notification = msgspec.convert(given, Notification)
    except msgspec.ValidationError as error:
        raise Invalid(VALUE, str(error)) from None
    _check(notification)
    return notification


def _check(notification: Notification) -> None:
    """What the worker could only fail for."""
    if not notification.channels:
        raise Invalid("channels", "is empty: name one at least")
    if (notification.user is None) == (notification.to is None):
        raise Invalid("user", "or to: give one of them")
    if (notification.template is None) == (notification.words is None):
        raise Invalid("template", "or words: give one of them")
    if notification.to is not None and len(notification.channels) > 1:
        raise Invalid("channels", "has several: an address is one of a single channel")
