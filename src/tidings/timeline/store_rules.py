"""A store of one process at a time: of what others do there is nothing to tell."""

from collections.abc import Callable, Sequence

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.fleet import Role
from tidings.domain.recurrence import timezone
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.schedule import KeptZone
from tidings.domain.schedules.when import Cron, Rule, When
from tidings.ports import NAME_BYTES_MAX, Change, Document, GroupMembership, Place, Put, Unchanged


class SingleProcess:
    """The verbs that concern other processes, where at most one works and any other stands by."""

    rosters: GroupMembership | None = None

    async def follow(self, tenant: str, topic: str) -> None:
        """What this process releases it knows by itself."""

    def unfollow(self, tenant: str, topic: str) -> None:
        """Nothing was begun."""

    def on_news(self, call: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """There is nobody to tell; who stands by looks again from time to time."""

    def reads(self, source: str, partition: int, role: Role = "intake") -> bool:
        """Who works reads all of it."""
        del source, partition, role
        return True


MOVED_MAX = 10_000  # of what was moved so many are remembered, for each tenant
CALENDARS_MAX = 1_000

encode_days = msgspec.msgpack.Encoder().encode
decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def too_many() -> Invalid:
    """A tenant has an end of calendars."""
    return Invalid("calendar", f"there are {CALENDARS_MAX:,} already: drop one that is not needed")


def kept_zone(name: str) -> KeptZone:
    """A zone's rules as they are now, to be kept for the day on which they change."""
    return KeptZone(name, timezone.VERSION, timezone.content_of(name))


def moved_why(cause: str, before: int) -> str:
    """What moved an occurrence, and from where, for its history."""
    return f"{cause}, from {format_instant(before)}"


def ended_why(when: When) -> str | None:
    """What it was that gives no more: once a schedule has ended, its history alone still tells."""
    zone = zone_of(when)
    where = "" if zone is None else f" in {zone}"
    match when:
        case Rule():
            return f"rrule {when.rrule}{where}"
        case Cron():
            return f"cron {when.expression}{where}"
        case _:
            return None


NUMBER_MIN = -(1 << 63)
NUMBER_MAX = (1 << 63) - 1
FIRST: Place = (NUMBER_MIN, "")  # before every document: no order is as low
LAST: Place = (NUMBER_MAX, "")  # behind every document: no order is as high

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, ...]).decode


def check(groups: Sequence[Sequence[Change]]) -> None:
    """`ValueError` if something in here was meant otherwise than it could be done."""
    for group in groups:
        if len(group) > 1 and len({change.key for change in group}) < len(group):
            raise ValueError(f"a key is in a group twice: {[change.key for change in group]}")
        for change in group:
            if isinstance(change, Put):
                _check(change)
            elif isinstance(change, Unchanged) and change.expected < 1:
                raise ValueError(f"what is to be left unchanged must be there: {change.key}")


def _check(put: Put) -> None:
    length = len(put.key.name.encode())  # which refuses what is no text
    if length > NAME_BYTES_MAX:
        raise ValueError(f"a document's name may have {NAME_BYTES_MAX:,} bytes, and this one has {length:,}")
    if put.tags:
        "".join(put.tags).encode()
        if len(set(put.tags)) < len(put.tags):
            raise ValueError(f"a tag is there twice: {put.tags}")
    if not NUMBER_MIN < put.order < NUMBER_MAX:
        raise ValueError(f"the order of a document has 64 bits at most: {put.order}")
    if put.until is not None and not NUMBER_MIN <= put.until <= NUMBER_MAX:
        raise ValueError(f"the end of a document has 64 bits at most: {put.until}")


def brought(document: Document) -> Put:
    """A document of another cabinet, to be put where there is none of its name."""
    return Put(document.key, document.body, 0, document.tags, document.order, document.until)


def is_same(document: Document, known: Document | None) -> bool:
    """Whether two are alike but for their versions, which are those of their cabinets."""
    return known is not None and brought(document) == brought(known)


def encode_tags(tags: tuple[str, ...]) -> bytes:
    """The tags of a document as they are kept with it."""
    return _encode(tags) if tags else b""


def decode_tags(packed: bytes) -> tuple[str, ...]:
    """The same, read back."""
    return _decode(packed) if packed else ()
