"""A stored recurrence as request fields, which give the same occurrences when they are sent again."""

import msgspec

from tidings.domain.recurrence.calendar import SECOND_US
from tidings.domain.recurrence.compiling import compiled
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.parts import Cron, Local, Moment, Recurrence, Rule
from tidings.domain.recurrence.preview import local_text, wall_text
from tidings.domain.recurrence.resolve import instant_of_wall
from tidings.domain.recurrence.zones import zone_named


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
