"""A recurrence as the fields that ask for it.

Sent again they give the same moments, but for one thing: a rule that was sent without a start is shown with the minute
in which it was accepted, and would also have the moments of that minute that had passed by then.
"""

from tidings.domain.recurrence.calendar import SECOND_US
from tidings.domain.recurrence.parts import Cron, Local, Moment, Recurrence, Rule
from tidings.domain.recurrence.preview import local_text, wall_text
from tidings.domain.recurrence.resolve import folded
from tidings.domain.recurrence.zones import zone_named


def fields_of(recurrence: Recurrence) -> dict[str, object]:
    """The flat fields; policies only where they are not the defaults."""
    fields: dict[str, object] = {"zone": recurrence.zone}
    match recurrence:
        case Local():
            fields |= {"at": wall_text(recurrence.wall)}
        case Rule():
            fields |= {"rrule": recurrence.rrule, "start": _start(recurrence)}
        case Cron():
            fields |= {"cron": recurrence.expression, "start": local_text(recurrence.zone, recurrence.since)}
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
    """Its wall time; with the offset where that alone says which of two equal ones is meant."""
    zone = zone_named(rule.zone)
    anchor = folded(zone, rule.start, rule.fold)
    plain = folded(zone, rule.start, int(rule.overlap == "second"))
    return wall_text(rule.start) if anchor == plain else local_text(rule.zone, anchor * SECOND_US)


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
