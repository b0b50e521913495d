"""A single wall time in a zone, as the policies for gaps and overlaps read it."""

from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.parts import Gap, Local, Moment, Overlap
from tidings.domain.recurrence.zones import Zone, zone_named


def resolved(zone: Zone, wall: int, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants, in seconds, at which a wall time counts: one, or two of `both`, or none of `skip`."""
    found = zone.instants(wall)
    if not found:
        return [zone.before_gap(wall)] if gap == "forward" else []
    match overlap:
        case "first":
            return found[:1]
        case "second":
            return found[-1:]
        case "both":
            return found


def is_swallowed(when: object) -> bool:
    """Whether it is one wall time that clocks jump over, as far as is known, and it is to be skipped then.

    That is certain only when the day has come: until then a government can change its mind. So it waits like any other,
    for the instant to which `forward` would move it, and is missed there.
    """
    return isinstance(when, Local) and when.gap == "skip" and not zone_named(when.zone).instants(when.wall)


def folded(zone: Zone, wall: int, fold: int) -> int:
    """The instant of a wall time, the second of two if `fold` says so; what clocks jump over moves forward."""
    return resolved(zone, wall, "forward", "second" if fold else "first")[0]


def instants_of(zone: Zone, moment: Moment, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants that a written moment names; a date is its midnight."""
    if moment.form == "utc":
        return [moment.seconds]
    if moment.fold:
        return [folded(zone, moment.seconds, moment.fold)]
    return resolved(zone, moment.seconds, gap, overlap)


def day_range(zone: Zone, day: int) -> tuple[int, int]:
    """The first and the last second of a day (since 1970) in a zone."""
    first = folded(zone, day * DAY_S, 0)
    return first, folded(zone, (day + 1) * DAY_S, 0) - 1


def day_of(zone: Zone, instant: int) -> int:
    """The day (since 1970) in whose range an instant lies, also where clocks went back over midnight."""
    day = (instant + zone.offset_at(instant)) // DAY_S
    return day + 1 if folded(zone, (day + 1) * DAY_S, 0) <= instant else day


def end_of(zone: Zone, moment: Moment) -> int:
    """The last second of a written end: a date counts as a whole, of two equal times the second."""
    if moment.form == "date":
        return day_range(zone, moment.seconds // DAY_S)[1]
    return max(instants_of(zone, moment, "forward", "second"))
