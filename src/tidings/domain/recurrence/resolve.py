"""The instants of a single wall time under the policies for DST gaps and overlaps."""

from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.parts import Gap, Local, Moment, Overlap
from tidings.domain.recurrence.zones import Zone, zone_named


def resolve_wall(zone: Zone, wall: int, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants, in seconds, of a wall time: one, or two with `both`, or none with `skip`."""
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
    """Whether it is a single wall time in a DST gap whose policy is `skip`, by the time zone rules known now.

    Rules can change until that day. So it stays pending like any other, until the instant to which `forward` would move
    it, and counts as missed only then.
    """
    return isinstance(when, Local) and when.gap == "skip" and not zone_named(when.zone).instants(when.wall)


def instant_of_wall(zone: Zone, wall: int, fold: int) -> int:
    """The instant of a wall time: the second of two if `fold` is 1, moved forward if it lies in a gap."""
    return resolve_wall(zone, wall, "forward", "second" if fold else "first")[0]


def instants_of(zone: Zone, moment: Moment, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants of a time as written; a date means its midnight."""
    if moment.form == "utc":
        return [moment.seconds]
    if moment.fold:
        return [instant_of_wall(zone, moment.seconds, moment.fold)]
    return resolve_wall(zone, moment.seconds, gap, overlap)


def day_range(zone: Zone, day: int) -> tuple[int, int]:
    """The first and the last second of a day (since 1970) in a time zone."""
    first = instant_of_wall(zone, day * DAY_S, 0)
    return first, instant_of_wall(zone, (day + 1) * DAY_S, 0) - 1


def day_of(zone: Zone, instant: int) -> int:
    """The day (since 1970) in whose `day_range` an instant lies, even where clocks go back across midnight."""
    day = (instant + zone.offset_at(instant)) // DAY_S
    return day + 1 if instant_of_wall(zone, (day + 1) * DAY_S, 0) <= instant else day


def end_of(zone: Zone, moment: Moment) -> int:
    """The last second before an end: the last of the day for a date, the second of two equal wall times."""
    if moment.form == "date":
        return day_range(zone, moment.seconds // DAY_S)[1]
    return max(instants_of(zone, moment, "forward", "second"))
