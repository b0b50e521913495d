"""Calendars and time zones as every store keeps them, and what it writes down when they move or end a schedule."""

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import format_instant
from tidings.domain.recurrence import zones
from tidings.domain.revising import zone_of
from tidings.domain.schedule import KeptZone
from tidings.domain.when import Cron, Rule, When

MOVED_MAX = 10_000  # of what was moved so many are remembered, for each tenant
CALENDARS_MAX = 1_000

encode_days = msgspec.msgpack.Encoder().encode
decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def too_many() -> Invalid:
    """A tenant has an end of calendars."""
    return Invalid("calendar", f"there are {CALENDARS_MAX:,} already: drop one that is not needed")


def kept_zone(name: str) -> KeptZone:
    """A zone's rules as they are now, to be kept for the day on which they change."""
    return KeptZone(name, zones.VERSION, zones.content_of(name))


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
