"""Recurrences for people: a preview of the next occurrences, notes about clock changes, and the request fields."""

import msgspec

from tidings.domain.limits import PREVIEW_MAX
from tidings.domain.names import Mark
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.days import DAY_S, SECOND_US, days_of, is_leap, month_starts, year_of, year_start
from tidings.domain.recurrence.local_time import instant_of_wall, is_swallowed
from tidings.domain.recurrence.occurrences import occurs_at
from tidings.domain.recurrence.rule import Cron, Local, Moment, Recurrence, Rule
from tidings.domain.recurrence.timezone import Zone, zone_named

__all__ = [
    "PREVIEW_MAX",
    "Mark",
    "Shown",
    "late_start_note",
    "local_text",
    "moved_note",
    "offset_text",
    "preview",
    "swallowed_note",
    "wall_text",
]


class Shown(msgspec.Struct, frozen=True):
    """One line of a preview. `number` and `at` (microseconds) are None for a time that a DST gap skips.

    `wall` is the local time with its offset; for a skipped one, the local time that does not exist. `mark` says that
    the time lies in a DST gap and was `moved` forward or `skipped`, or that it is the `first` or `second` of two equal
    local times in a DST overlap.
    """

    wall: str
    number: int | None = None
    at: int | None = None
    mark: Mark | None = None


def preview(recurrence: Recurrence, after: int, count: int) -> list[Shown]:
    """Up to `count` occurrences after the instant `after` (microseconds)."""
    zone = zone_named(recurrence.zone)
    moments = compiled(recurrence)
    if isinstance(recurrence, Local) and is_swallowed(recurrence):
        passed = moments.through(after // SECOND_US)
        return [] if passed else [Shown(wall_text(recurrence.wall), mark="skipped")]
    strict = compiled(msgspec.structs.replace(recurrence, gap="skip"))
    first = moments.through(after // SECOND_US) + 1
    lines: list[Shown] = []
    last = after // SECOND_US
    for number in range(first, first + min(count, PREVIEW_MAX)):
        at = moments.at(number)
        if at is None:
            break
        lines += _skipped(recurrence, zone, last + 1, at - 1)
        lines.append(_shown(zone, number, at, moved=not occurs_at(strict, at) or _is_moved(recurrence, zone)))
        last = at
    return lines


def _is_moved(recurrence: Recurrence, zone: Zone) -> bool:
    """Whether it is a single wall time in a DST gap."""
    return isinstance(recurrence, Local) and not zone.instants(recurrence.wall)


def _shown(zone: Zone, number: int, at: int, *, moved: bool) -> Shown:
    wall = at + zone.offset_at(at)
    same = zone.instants(wall)
    mark: Mark | None = "moved" if moved else None
    if mark is None and len(same) == 2:
        mark = "first" if at == same[0] else "second"
    return Shown(f"{wall_text(wall)}{offset_text(zone.offset_at(at))}", number, at * SECOND_US, mark)


def _skipped(recurrence: Recurrence, zone: Zone, begin: int, end: int) -> list[Shown]:
    """The times that the policy `skip` leaves out in a range: those that `forward` would have moved there."""
    if recurrence.gap != "skip" or isinstance(recurrence, Local):
        return []
    forward = compiled(msgspec.structs.replace(recurrence, gap="forward"))
    numbers = range(forward.through(begin - 1) + 1, forward.through(end) + 1)
    lines = []
    for number in numbers[:PREVIEW_MAX]:
        at = forward.at(number)
        if at is not None:
            before = zone.offsets[zone.segment(at) - 1]
            lines.append(Shown(wall_text(at + before), mark="skipped"))
    return lines


def swallowed_note(when: object) -> str | None:
    """The note that a single local time in a DST gap will be skipped; None if it will not."""
    if not isinstance(when, Local) or not is_swallowed(when):
        return None
    return f"{_not_there(when)}: it will be skipped and counted as missed (gap)"


def moved_note(when: object) -> str | None:
    """The note that a single local time in a DST gap is moved forward; None if it is not."""
    if not isinstance(when, Local) or when.gap == "skip" or zone_named(when.zone).instants(when.wall):
        return None
    at = compiled(when).at(1)
    assert at is not None, "a moved time has an occurrence"
    wall = at + zone_named(when.zone).offset_at(at)
    shown = _clock if wall // DAY_S == when.wall // DAY_S else _date_and_clock
    return f"{_not_there(when)}: it is moved forward, to {shown(wall)}"


def _not_there(when: Local) -> str:
    """The statement that a local time does not exist, and why."""
    zone = zone_named(when.zone)
    jump = zone.segment(zone.before_gap(when.wall))
    before, behind = (zone.starts[jump] + zone.offsets[segment] for segment in (jump - 1, jump))
    shown = _clock if before // DAY_S == behind // DAY_S else _date_and_clock
    change = f"clocks go from {shown(before)} to {shown(behind)}"
    return f"{_clock(when.wall)} does not exist on {wall_text(when.wall)[:10]} in {when.zone} ({change})"


def late_start_note(asked: object) -> str | None:
    """The note that a start is the second of two equal local times, which `overlap=first` does not count."""
    if not isinstance(asked, Rule | Cron) or asked.overlap != "first" or asked.zone == "UTC":
        return None
    if isinstance(asked, Rule) and (not asked.fold or asked.since):
        return None
    zone = zone_named(asked.zone)
    start = instant_of_wall(zone, asked.start, 1) if isinstance(asked, Rule) else -(-asked.since // SECOND_US)
    wall = start + zone.offset_at(start)
    if zone.instants(wall)[0] == start or occurs_at(compiled(asked), start):
        return None
    if not occurs_at(compiled(msgspec.structs.replace(asked, overlap="both")), start):
        return None
    what = f"{_date_and_clock(wall)} exists twice in {asked.zone} (DST overlap), and the start is the second one"
    return f"{what}; overlap=first uses only the first, which is before it: use overlap=second or both to begin there"


def _clock(wall: int) -> str:
    """The time of day, without seconds if they are 0."""
    return wall_text(wall)[11:].removesuffix(":00")


def _date_and_clock(wall: int) -> str:
    return f"{wall_text(wall)[:10]} {_clock(wall)}"


def local_text(zone: str, at: int) -> str:
    """The local time in a zone at an instant (microseconds), with the offset."""
    found = zone_named(zone)
    offset = found.offset_at(at // SECOND_US)
    return f"{wall_text(at // SECOND_US + offset)}{offset_text(offset)}"


def wall_text(wall: int) -> str:
    """A wall time in ISO 8601."""
    day, second = divmod(wall, 86_400)
    year = year_of(day)
    starts = month_starts(leap=is_leap(year))
    month = next(month for month in range(12, 0, -1) if starts[month - 1] <= day - year_start(year))
    date = f"{year:04}-{month:02}-{day - days_of(year, month, 1) + 1:02}"
    return f"{date}T{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}"


def offset_text(offset: int) -> str:
    """An offset in ISO 8601, with seconds if they are not 0."""
    sign, size = ("-", -offset) if offset < 0 else ("+", offset)
    seconds = f":{size % 60:02}" if size % 60 else ""
    return f"{sign}{size // 3_600:02}:{size // 60 % 60:02}{seconds}"


def fields_of(recurrence: Recurrence) -> dict[str, object]:
    """The request fields of a recurrence; policies only if they are not the defaults."""
    fields: dict[str, object] = {"zone": recurrence.zone}
    match recurrence:
        case Local():
            fields |= {"at": wall_text(recurrence.wall)}
        case Rule():
            fields |= {"rrule": recurrence.rrule, "start": _start(recurrence)}
        case Cron():
            fields |= {"cron": recurrence.expression, "start": _since(recurrence)}
            if recurrence.end is not None:
                fields["until"] = local_text(recurrence.zone, recurrence.end)
            if recurrence.count is not None:
                fields["count"] = recurrence.count
    if recurrence.gap != "forward":
        fields["gap"] = recurrence.gap
    if recurrence.overlap != "first":
        fields["overlap"] = recurrence.overlap
    return fields if isinstance(recurrence, Local) else fields | _lists(recurrence)


def _start(rule: Rule) -> str:
    """The start as local time, with the offset if it is needed to tell two equal local times apart.

    A rule that was sent without a start has the minute of its acceptance as anchor. If it has a time in that minute
    before its acceptance, its first occurrence is shown instead: otherwise that time would occur if it were sent again.
    """
    zone = zone_named(rule.zone)
    anchor = instant_of_wall(zone, rule.start, rule.fold)
    if rule.since > anchor * SECOND_US:
        moments = compiled(msgspec.structs.replace(rule, since=0, added=(), excepted=(), excluded=(), shift=0, given=0))
        passed = moments.through(-(-rule.since // SECOND_US) - 1)
        first = moments.at(passed + 1) if passed else None
        if first is not None:
            return local_text(rule.zone, first * SECOND_US)
    plain = instant_of_wall(zone, rule.start, int(rule.overlap == "second"))
    return wall_text(rule.start) if anchor == plain else local_text(rule.zone, anchor * SECOND_US)


def _since(cron: Cron) -> str:
    """The first whole second of the expression; rounded up to a minute if it occurs only at second 0."""
    zone, second = zone_named(cron.zone), -(-cron.since // SECOND_US)
    offset = zone.offset_at(second)
    minute = -(-(second + offset) // 60) * 60 - offset
    whole = parse_cron(cron.expression).seconds == (0,) and not cron.added and zone.offset_at(minute) == offset
    return local_text(cron.zone, (minute if whole else second) * SECOND_US)


def _lists(asked: Rule | Cron) -> dict[str, object]:
    fields: dict[str, object] = {}
    if asked.added:
        fields["rdates"] = [_written(moment) for moment in asked.added]
    if asked.excepted:
        fields["exdates"] = [_written(moment) for moment in asked.excepted]
    if asked.calendar is not None:
        fields |= {"calendar": asked.calendar, "on_excluded": asked.on_excluded}
    return fields


def _written(moment: Moment) -> str:
    if moment.form == "utc":
        return local_text("UTC", moment.seconds * SECOND_US).replace("+00:00", "Z")
    text = wall_text(moment.seconds)
    return text[:10] if moment.form == "date" else text
