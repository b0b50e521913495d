"""The wire of etf1/kafka-message-scheduler: a compacted topic of schedules, each under its key.

    scheduler-epoch         the due time, in seconds since 1970
    scheduler-target-topic  the destination
    scheduler-target-key    the key of the released message; null if absent

The record's key is the schedule's id. A null value deletes the schedule; the same key again replaces it or, once it is
finished, starts a new one. The first one of repeated headers counts, as in the original. All headers are released as
they came, followed by `scheduler-timestamp` (the record's own, in seconds), `scheduler-key` and `scheduler-topic`.

After a release the original writes a tombstone for the key; so does Tidings (`tidings.bus.kafka.follow_up`). Such a
tombstone has the header `tidings-origin` and is not a request: when it is read, the key may have a newer schedule,
which it must not cancel.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.schedules.schedule import MADE_ID, ORIGIN, Limits, Origin, Outgoing, Request, unpack
from tidings.domain.schedules.when import SECOND_US
from tidings.shapes.refusal import shorten
from tidings.wires.record import Ask, Nothing, Record, last_of, required
from tidings.wires.wire import REJECTIONS, SCHEDULES, Destinations, Wire

EPOCH = "scheduler-epoch"
TARGET_TOPIC = "scheduler-target-topic"
TARGET_KEY = "scheduler-target-key"
TIMESTAMP = "scheduler-timestamp"
KEY = "scheduler-key"
TOPIC = "scheduler-topic"

_ADDED = (TIMESTAMP, KEY, TOPIC, ORIGIN)
_ORIGIN = ORIGIN.encode()
_ORIGIN_TEXT = re.compile(rb"([0-9]{1,9})/([0-9]{1,18})")
_NAMES = frozenset({EPOCH, TARGET_TOPIC, TARGET_KEY})
_SECONDS = re.compile(r"\+?([0-9]{1,18})")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_ID_BYTES_MAX = Limits().id_bytes_max


class Etf1(Wire):
    """Decodes requests of kafka-message-scheduler clients. `tenants` maps each topic to its tenant."""

    name = "etf1"
    sources: ClassVar = {"at": EPOCH, "topic": TARGET_TOPIC, "key": TARGET_KEY, "id": "the record's key"}

    def __init__(self, tenants: Mapping[str, str] | None = None, destinations: Destinations | None = None) -> None:
        self._tenants = {SCHEDULES: DEFAULT_TENANT} if tenants is None else dict(tenants)
        self.own_tenants = frozenset(self._tenants.values())
        super().__init__(destinations or Destinations(schedules=self._tenants.keys()))

    def tenant_of(self, topic: str) -> str | None:
        return self._tenants.get(topic)

    def requests(self, tenant: str) -> tuple[str, ...]:
        return tuple(topic for topic, owner in self._tenants.items() if owner == tenant)

    def rejections(self, tenant: str) -> str:
        return REJECTIONS + tenant

    def ask(self, tenant: str, record: Record) -> Ask | Nothing:
        key = record.key
        if key is None or not key.strip():
            raise Invalid("the record's key", "is missing: it is the id of the schedule")
        schedule_id = _id(key)
        if record.value is None:
            is_ours = any(name == ORIGIN for name, _ in record.headers)
            return Nothing(tenant) if is_ours else Ask(tenant, "cancel", schedule_id)
        found = last_of(record.headers[::-1], _NAMES)  # reversed: the first one of repeated headers
        target = self.destination(tenant, required(found, TARGET_TOPIC), TARGET_TOPIC)
        headers = (
            *record.headers,
            (TIMESTAMP, str(record.timestamp_us // SECOND_US).encode()),
            (KEY, key),
            (TOPIC, record.topic.encode()),
            (ORIGIN, f"{record.partition}/{record.offset}".encode()),
        )
        due = _seconds(required(found, EPOCH)) * SECOND_US
        request = Request(target, record.value, found.get(TARGET_KEY), headers, schedule_id, at=due)
        return Ask(tenant, "replace", schedule_id, request, reuse=True)

    def origin_of(self, outgoing: Outgoing) -> Origin | None:
        """The request of a released record; None if it was not scheduled over this wire.

        Headers alone prove nothing, because any client can set them: the tenant must be that of the topic, and the id
        must match the key.
        """
        if _ORIGIN not in outgoing.message:
            return None
        added = unpack(outgoing.message).headers[-len(_ADDED) :]
        if tuple(name for name, _ in added) != _ADDED:
            return None
        key, topic, origin = (value or b"" for _, value in added[1:])
        found = _ORIGIN_TEXT.fullmatch(origin)
        if found is None or self._tenants.get(topic.decode(errors="replace")) != outgoing.tenant:
            return None
        if _id(key) != outgoing.id:
            return None
        return Origin(topic.decode(), int(found[1]), int(found[2]), key)


def _id(key: bytes) -> str:
    """The key as text, or its digest if it cannot be an id: keys may be any bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(key) > _ID_BYTES_MAX or _UNPRINTABLE.search(text) or MADE_ID.match(text):
        return f"sha256:{sha256(key).hexdigest()}"
    return text


def _seconds(text: str) -> int:
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise Invalid(EPOCH, f"{shorten(text)!r} is not a number of seconds since 1970: write one such as 1893456000")
    return int(found[1])
