"""Rules that all stores share: single-process stores, calendars and histories, and documents."""

from collections.abc import Callable, Sequence

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.fleet import Role
from tidings.domain.recurrence import timezone
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.schedule import KeptZone
from tidings.domain.schedules.when import Cron, Rule, When
from tidings.ports import NAME_BYTES_MAX, Change, Document, GroupMembership, Place, Put, Unchanged

MOVED_MAX = 10_000  # moves that are remembered for each tenant
CALENDARS_MAX = 1_000
TOPICS_PER_TENANT_MAX = 10_000

NUMBER_MIN = -(1 << 63)
NUMBER_MAX = (1 << 63) - 1
FIRST: Place = (NUMBER_MIN, "")  # before every document
LAST: Place = (NUMBER_MAX, "")  # after every document

encode_days = msgspec.msgpack.Encoder().encode
decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_encode_tags = msgspec.msgpack.Encoder().encode
_decode_tags = msgspec.msgpack.Decoder(tuple[str, ...]).decode


class SingleProcess:
    """The methods that concern other processes, for a store that only one process at a time works on."""

    group_membership: GroupMembership | None = None

    async def subscribe(self, tenant: str, topic: str) -> None:
        """Nothing to do: there is no other process that appends records."""

    def unsubscribe(self, tenant: str, topic: str) -> None:
        """Nothing to do."""

    def on_records(self, listener: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """Nothing to do: a standby polls."""

    def reads(self, source: str, partition: int, role: Role = "intake") -> bool:
        """The one process reads all partitions."""
        del source, partition, role
        return True


# Topics


def topic_refusal(command: Command, may_open: Callable[[str, str], bool]) -> Outcome | None:
    """The rejection of a schedule whose topic would be one too many for its tenant, None if there is room for it."""
    add = command.add if isinstance(command, Replace) else command
    if not isinstance(add, Add) or may_open(add.tenant, add.topic):
        return None
    reason = f"topic: there are {TOPICS_PER_TENANT_MAX} already, use one of them"
    return Outcome(add.id or "", "rejected", reason=reason)


# Idempotency keys


def is_remembered(outcomes: Sequence[Outcome]) -> bool:
    """Whether an idempotency key is stored with these outcomes: not for a single request that is invalid (400)."""
    return len(outcomes) != 1 or outcomes[0].field is None


# Calendars and histories


def too_many_calendars() -> Invalid:
    """The error for a tenant with too many calendars."""
    return Invalid("calendar", f"there are {CALENDARS_MAX:,} already: drop one that is not needed")


def kept_zone(name: str) -> KeptZone:
    """The current rules of a time zone, to be stored in case they change later."""
    return KeptZone(name, timezone.VERSION, timezone.content_of(name))


def moved_reason(cause: str, before: int) -> str:
    """The history text of a move: its cause, and the former due time."""
    return f"{cause}, from {format_instant(before)}"


def ended_reason(when: When) -> str | None:
    """The history text of an ended schedule: its rule, which is stored nowhere else from then on."""
    zone = zone_of(when)
    where = "" if zone is None else f" in {zone}"
    match when:
        case Rule():
            return f"rrule {when.rrule}{where}"
        case Cron():
            return f"cron {when.expression}{where}"
        case _:
            return None


# Documents


def check_changes(groups: Sequence[Sequence[Change]]) -> None:
    """Raise `ValueError` if a group of document changes contradicts itself or exceeds a limit."""
    for group in groups:
        if len(group) > 1 and len({change.key for change in group}) < len(group):
            raise ValueError(f"a group has a key twice: {[change.key for change in group]}")
        for change in group:
            if isinstance(change, Put):
                _check_put(change)
            elif isinstance(change, Unchanged) and change.expected < 1:
                raise ValueError(f"a document that must stay unchanged has to exist: {change.key}")


def _check_put(put: Put) -> None:
    length = len(put.key.name.encode())  # raises for lone surrogates
    if length > NAME_BYTES_MAX:
        raise ValueError(f"the name of a document may have {NAME_BYTES_MAX:,} bytes, and this one has {length:,}")
    if put.tags:
        "".join(put.tags).encode()
        if len(set(put.tags)) < len(put.tags):
            raise ValueError(f"a document has a tag twice: {put.tags}")
    if not NUMBER_MIN < put.order < NUMBER_MAX:
        raise ValueError(f"the order of a document must fit in 64 bits: {put.order}")
    if put.until is not None and not NUMBER_MIN <= put.until <= NUMBER_MAX:
        raise ValueError(f"the expiry of a document must fit in 64 bits: {put.until}")


def as_new_put(document: Document) -> Put:
    """The `Put` that creates a copy of a document from another store."""
    return Put(document.key, document.body, 0, document.tags, document.order, document.until)


def is_same(document: Document, known: Document | None) -> bool:
    """Whether two documents are equal except for their versions, which differ between stores."""
    return known is not None and as_new_put(document) == as_new_put(known)


def encode_tags(tags: tuple[str, ...]) -> bytes:
    """Encode the tags of a document."""
    return _encode_tags(tags) if tags else b""


def decode_tags(packed: bytes) -> tuple[str, ...]:
    """Decode the tags of a document."""
    return _decode_tags(packed) if packed else ()
