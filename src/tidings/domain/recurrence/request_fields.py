"""Request fields (`rrule`, `cron`, `start`, `zone`, ...) into stored recurrences: rules, cron expressions, local times.

All validation is done here, once: a recurrence that this module returns has a first occurrence.
"""

from collections.abc import Sequence

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.days import END_SECOND, END_YEAR, SECOND_US
from tidings.domain.recurrence.local_time import end_of, instant_of_wall, instants_of
from tidings.domain.recurrence.occurrences import EXCLUDED_MAX
from tidings.domain.recurrence.preview import wall_text
from tidings.domain.recurrence.rrule import LIST_MAX, parse_block, parse_moment, parse_moments, parse_rrule, quoted
from tidings.domain.recurrence.rule import Cron, Gap, Local, Moment, OnExcluded, Overlap, Rule
from tidings.domain.recurrence.timezone import Zone, check_zone, zone_named

COUNT_MAX = 999_999_999


class Terms(msgspec.Struct, frozen=True):
    """The request fields beside a rule or a cron expression; `excluded` are the days (since 1970) of `calendar`."""

    start: str | None = None
    zone: str | None = None
    gap: Gap = "forward"
    overlap: Overlap = "first"
    count: int | None = None
    until: str | None = None
    rdates: Sequence[str] = ()
    exdates: Sequence[str] = ()
    excluded: Sequence[int] = ()
    on_excluded: OnExcluded = "skip"
    calendar: str | None = None


NO_TERMS = Terms()

_TOO_EARLY = "is before the first occurrence: choose a later end, or an earlier 'start'"


def read_rule(text: str, now: int, terms: Terms = NO_TERMS) -> Rule:
    """Read an RRULE, or lines of DTSTART, RRULE, RDATE and EXDATE; `now` (microseconds) is when it was accepted.

    Without a start the anchor is the current minute, and nothing occurs before `now`.
    """
    block = parse_block(text)
    for name, inside, given in (("start", block.start, terms.start), ("zone", block.zone, terms.zone)):
        if inside is not None and given is not None:
            raise Invalid(name, "is also given in the text of the rule: remove one of the two")
    zone = zone_named(terms.zone or block.zone or "UTC")
    start = parse_moment(terms.start, "start") if terms.start is not None else block.start
    since = 0 if start is not None else _whole(now)
    wall, fold = _wall(zone, _within(start or Moment(now // SECOND_US // 60 * 60, "utc")), terms.overlap)
    rule = Rule(
        rrule=_with_ends(block.rrule, terms),
        start=wall,
        zone=zone.name,
        fold=fold,
        gap=terms.gap,
        overlap=terms.overlap,
        since=since,
        added=_joined(block.added, terms.rdates, "rdates"),
        excepted=_joined(block.excepted, terms.exdates, "exdates"),
        excluded=_days(terms.excluded),
        on_excluded=terms.on_excluded,
        calendar=terms.calendar,
    )
    if not _occurs(rule):
        excepted, ended = _all_excepted(rule, "rrule", terms), _ended_too_early(rule, block.rrule, now, terms)
        raise excepted or ended or _no_occurrence("rrule")
    return rule


def read_cron(text: str, now: int, terms: Terms = NO_TERMS) -> Cron:
    """Read a cron expression, which begins at its start or now."""
    parse_cron(text)
    zone = zone_named(terms.zone or "UTC")
    since = _whole(now)
    if terms.start is not None:
        overlap: Overlap = "first" if terms.overlap == "both" else terms.overlap
        since = max(instants_of(zone, _within(parse_moment(terms.start, "start")), "forward", overlap)) * SECOND_US
    end = None
    if terms.until is not None:
        end = end_of(zone, parse_moment(terms.until, "until")) * SECOND_US
    cron = Cron(
        expression=" ".join(text.split()),
        since=since,
        zone=zone.name,
        gap=terms.gap,
        overlap=terms.overlap,
        end=end,
        count=check_count(terms.count),
        added=_joined((), terms.rdates, "rdates"),
        excepted=_joined((), terms.exdates, "exdates"),
        excluded=_days(terms.excluded),
        on_excluded=terms.on_excluded,
        calendar=terms.calendar,
    )
    if not _occurs(cron):
        occurs_without_end = _occurs(msgspec.structs.replace(cron, end=None))
        ended = Invalid("until", _TOO_EARLY) if occurs_without_end else None
        raise _all_excepted(cron, "cron", terms) or ended or _no_occurrence("cron")
    return cron


def _whole(now: int) -> int:
    """The instant rounded up to a whole second.

    Occurrences lie on whole seconds, so this excludes the same ones, and rules accepted in one second are equal.
    """
    return -(-now // SECOND_US) * SECOND_US


def read_local(text: str, zone: str, gap: Gap = "forward", overlap: Overlap = "first", field: str = "at") -> Local:
    """Read the local time of a one-shot."""
    moment = parse_moment(text, field)
    if moment.form != "local":
        wanted = f"has no time of day: write {wall_text(moment.seconds)[:10]}T09:00, for example"
        if moment.form == "utc":
            wanted = "has an offset, and a zone is given too: remove one"
        raise Invalid(field, f"{quoted(text)} {wanted}")
    check_zone(zone)
    return Local(moment.seconds, zone, gap, overlap)


def _wall(zone: Zone, moment: Moment, overlap: Overlap) -> tuple[int, int]:
    """The wall time of a start, and its fold: 1 for the second of two equal wall times."""
    if moment.form != "utc":
        return moment.seconds, int(overlap == "second")
    wall = moment.seconds + zone.offset_at(moment.seconds)
    return wall, int(instant_of_wall(zone, wall, 0) != moment.seconds)


def _within(start: Moment) -> Moment:
    """The start itself; raises `Invalid` if it is after the end of every rule."""
    if start.seconds > END_SECOND:
        raise Invalid("start", f"is after the year {END_YEAR}, when every rule ends: choose an earlier start")
    return start


def _with_ends(rrule: str, terms: Terms) -> str:
    """The rule with the fields `count` and `until` as COUNT and UNTIL."""
    parts = parse_rrule(rrule)
    for name, value in (("count", terms.count), ("until", terms.until)):
        if value is not None and (parts.count is not None or parts.until is not None):
            raise Invalid(name, "the rule has its own end, COUNT or UNTIL: remove one")
    if terms.count is not None and terms.until is not None:
        raise Invalid("count", "give either 'count' or 'until', not both")
    if terms.count is not None:
        return f"{rrule};COUNT={check_count(terms.count)}"
    if terms.until is not None:
        return f"{rrule};UNTIL={_basic(parse_moment(terms.until, 'until'))}"
    return rrule


def _basic(moment: Moment) -> str:
    """A time in the basic form of RFC 5545."""
    text = wall_text(moment.seconds).replace("-", "").replace(":", "")
    return text[:8] if moment.form == "date" else text + ("Z" if moment.form == "utc" else "")


def check_count(count: int | None) -> int | None:
    """The count itself; raises `Invalid` if it is out of range."""
    if count is not None and not 1 <= count <= COUNT_MAX:
        raise Invalid("count", f"must lie between 1 and {COUNT_MAX:,}")
    return count


def _joined(inside: tuple[Moment, ...], given: Sequence[str], field: str) -> tuple[Moment, ...]:
    if not given:
        return inside
    both = {*inside, *parse_moments(tuple(given), field)}
    if len(both) > LIST_MAX:
        raise Invalid(
            field, f"has {len(both)} times with those in the text of the rule: at most {LIST_MAX} are allowed"
        )
    return tuple(sorted(both, key=lambda moment: (moment.seconds, moment.form)))


def _days(excluded: Sequence[int]) -> tuple[int, ...]:
    if len(excluded) > EXCLUDED_MAX:
        raise Invalid("calendar", f"has {len(excluded):,} days: at most {EXCLUDED_MAX:,} are allowed; split it")
    return tuple(sorted(set(excluded))) if excluded else ()


def _occurs(asked: Rule | Cron) -> bool:
    """Whether it has an occurrence. RDATEs alone are not enough: the rule itself must occur."""
    occurs = compiled(asked).at(1) is not None
    if occurs and asked.added:
        occurs = compiled(msgspec.structs.replace(asked, added=(), excepted=(), excluded=())).at(1) is not None
    return occurs


def _all_excepted(asked: Rule | Cron, field: str, terms: Terms) -> Invalid | None:
    """The error that EXDATEs exclude every occurrence, if that is the reason for having none."""
    if not asked.excepted or not _occurs(msgspec.structs.replace(asked, excepted=())):
        return None
    what = "rule" if field == "rrule" else "expression"
    advice = "remove some of them, or let it occur more often"
    if terms.exdates:
        return Invalid("exdates", f"exclude every occurrence of the {what}: {advice}")
    return Invalid(field, f"EXDATE excludes every occurrence of the {what}: {advice}")


def _ended_too_early(rule: Rule, text: str, now: int, terms: Terms) -> Invalid | None:
    """The error that the rule ends before its first occurrence: by the field `until`, or by its own UNTIL."""
    until = parse_rrule(rule.rrule).until
    bare = ";".join(part for part in text.split(";") if not part.startswith("UNTIL="))
    if until is None or not _occurs(msgspec.structs.replace(rule, rrule=bare)):
        return None
    if terms.until is not None:
        return Invalid("until", _TOO_EARLY)
    if rule.since and end_of(zone_named(rule.zone), until) * SECOND_US < now:
        advice = "is in the past: choose a later end, or give a 'start' before it"
    else:
        advice = _TOO_EARLY
    return Invalid("rrule", f"UNTIL={_basic(until)} {advice}")


def _no_occurrence(field: str) -> Invalid:
    why = f"no time before its end, or before the year {END_YEAR + 1}, matches all of its parts"
    return Invalid(field, f"has no occurrence: {why}; change its days and months, or its end")
