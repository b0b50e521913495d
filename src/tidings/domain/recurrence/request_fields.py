"""What a person asks for, field by field, into what is stored: rules, cron expressions and local times.

Everything is checked here, once: what comes out of this module has a first occurrence.
"""

from collections.abc import Sequence

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.days import END_SECOND, END_YEAR, SECOND_US
from tidings.domain.recurrence.local_time import end_of, folded, instants_of
from tidings.domain.recurrence.occurrences import EXCLUDED_MAX
from tidings.domain.recurrence.preview import wall_text
from tidings.domain.recurrence.rrule import LIST_MAX, parse_block, parse_moment, parse_moments, parse_rrule, quoted
from tidings.domain.recurrence.rule import Cron, Gap, Local, Moment, OnExcluded, Overlap, Rule
from tidings.domain.recurrence.timezone import Zone, check_zone, zone_named

COUNT_MAX = 999_999_999


class Terms(msgspec.Struct, frozen=True):
    """The fields beside a rule or an expression, as they were sent; `excluded` are days since 1970."""

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

_TOO_EARLY = "lies before the first occurrence: choose a later one, or an earlier 'start'"


def read_rule(text: str, now: int, terms: Terms = NO_TERMS) -> Rule:
    """The rule of an RRULE, or of a block with DTSTART, RDATE and EXDATE; `now` (microseconds) is its acceptance.

    Without a start the anchor is now with its seconds at zero, and nothing before now counts.
    """
    block = parse_block(text)
    for name, inside, given in (("start", block.start, terms.start), ("zone", block.zone, terms.zone)):
        if inside is not None and given is not None:
            raise Invalid(name, "is said in the rule's text already: leave one out")
    zone = zone_named(terms.zone or block.zone or "UTC")
    start = parse_moment(terms.start, "start") if terms.start is not None else block.start
    since = 0 if start is not None else _whole(now)
    wall, fold = _wall(zone, _within(start or Moment(now // SECOND_US // 60 * 60, "utc")), terms.overlap)
    rule = Rule(
        _with_ends(block.rrule, terms),
        wall,
        zone.name,
        fold,
        terms.gap,
        terms.overlap,
        since,
        _joined(block.added, terms.rdates, "rdates"),
        _joined(block.excepted, terms.exdates, "exdates"),
        _days(terms.excluded),
        terms.on_excluded,
        terms.calendar,
    )
    if not _occurs(rule):
        raise _never(rule, "rrule", terms) or _ended(rule, block.rrule, now, terms) or _nothing("rrule")
    return rule


def read_cron(text: str, now: int, terms: Terms = NO_TERMS) -> Cron:
    """The expression, from its start or from now on."""
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
        " ".join(text.split()),
        since,
        zone.name,
        terms.gap,
        terms.overlap,
        end,
        check_count(terms.count),
        _joined((), terms.rdates, "rdates"),
        _joined((), terms.exdates, "exdates"),
        _days(terms.excluded),
        terms.on_excluded,
        terms.calendar,
    )
    if not _occurs(cron):
        ends = _occurs(msgspec.structs.replace(cron, end=None))
        raise _never(cron, "cron", terms) or (Invalid("until", _TOO_EARLY) if ends else _nothing("cron"))
    return cron


def _whole(now: int) -> int:
    """The next whole second: moments lie on seconds, so it leaves out the same; what came in one second is equal."""
    return -(-now // SECOND_US) * SECOND_US


def read_local(text: str, zone: str, gap: Gap = "forward", overlap: Overlap = "first", field: str = "at") -> Local:
    """A one-shot at a wall time."""
    moment = parse_moment(text, field)
    if moment.form != "local":
        wanted = f"has no time of day: write {wall_text(moment.seconds)[:10]}T09:00, or when it is to be"
        if moment.form == "utc":
            wanted = "has an offset, and a zone is given too: leave one out"
        raise Invalid(field, f"{quoted(text)} {wanted}")
    check_zone(zone)
    return Local(moment.seconds, zone, gap, overlap)


def _wall(zone: Zone, moment: Moment, overlap: Overlap) -> tuple[int, int]:
    """The wall time of a start, and whether it is the second of two equal ones."""
    if moment.form != "utc":
        return moment.seconds, int(overlap == "second")
    wall = moment.seconds + zone.offset_at(moment.seconds)
    return wall, int(folded(zone, wall, 0) != moment.seconds)


def _within(start: Moment) -> Moment:
    """The start, unless no rule reaches so far."""
    if start.seconds > END_SECOND:
        raise Invalid("start", f"lies behind the year {END_YEAR}, with which every rule ends: choose an earlier one")
    return start


def _with_ends(rrule: str, terms: Terms) -> str:
    """The rule with the ends that were given beside it."""
    parts = parse_rrule(rrule)
    for name, value in (("count", terms.count), ("until", terms.until)):
        if value is not None and (parts.count is not None or parts.until is not None):
            raise Invalid(name, "the rule has an end of its own, COUNT or UNTIL: leave one out")
    if terms.count is not None and terms.until is not None:
        raise Invalid("count", "give either 'count' or 'until', not both")
    if terms.count is not None:
        return f"{rrule};COUNT={check_count(terms.count)}"
    if terms.until is not None:
        return f"{rrule};UNTIL={_basic(parse_moment(terms.until, 'until'))}"
    return rrule


def _basic(moment: Moment) -> str:
    """A moment as RFC 5545 writes it."""
    text = wall_text(moment.seconds).replace("-", "").replace(":", "")
    return text[:8] if moment.form == "date" else text + ("Z" if moment.form == "utc" else "")


def check_count(count: int | None) -> int | None:
    """How many occurrences, if anybody says so."""
    if count is not None and not 1 <= count <= COUNT_MAX:
        raise Invalid("count", f"must lie between 1 and {COUNT_MAX:,}")
    return count


def _joined(inside: tuple[Moment, ...], given: Sequence[str], field: str) -> tuple[Moment, ...]:
    if not given:
        return inside
    both = {*inside, *parse_moments(tuple(given), field)}
    if len(both) > LIST_MAX:
        raise Invalid(field, f"has {len(both)} moments with those of the rule's text, at most {LIST_MAX} are taken")
    return tuple(sorted(both, key=lambda moment: (moment.seconds, moment.form)))


def _days(excluded: Sequence[int]) -> tuple[int, ...]:
    if len(excluded) > EXCLUDED_MAX:
        raise Invalid("calendar", f"has {len(excluded):,} days, at most {EXCLUDED_MAX:,} are taken: split it")
    return tuple(sorted(set(excluded))) if excluded else ()


def _occurs(asked: Rule | Cron) -> bool:
    """Whether it ever comes; what is added does not excuse a rule that never does."""
    occurs = compiled(asked).at(1) is not None
    if occurs and asked.added:
        occurs = compiled(msgspec.structs.replace(asked, added=(), excepted=(), excluded=())).at(1) is not None
    return occurs


def _never(asked: Rule | Cron, field: str, terms: Terms) -> Invalid | None:
    """That all of it is left out by name, if that is why it never comes."""
    if not asked.excepted or not _occurs(msgspec.structs.replace(asked, excepted=())):
        return None
    what = "rule" if field == "rrule" else "expression"
    if terms.exdates:
        return Invalid("exdates", f"these leave nothing of the {what}: leave some out, or let it occur more often")
    return Invalid(field, f"its EXDATE leaves nothing of the {what}: leave some out, or let it occur more often")


def _ended(rule: Rule, text: str, now: int, terms: Terms) -> Invalid | None:
    """That it ends too early, if without its end it would come: one that was given beside it, or its own UNTIL."""
    until = parse_rrule(rule.rrule).until
    bare = ";".join(part for part in text.split(";") if not part.startswith("UNTIL="))
    if until is None or not _occurs(msgspec.structs.replace(rule, rrule=bare)):
        return None
    if terms.until is not None:
        return Invalid("until", _TOO_EARLY)
    if rule.since and end_of(zone_named(rule.zone), until) * SECOND_US < now:
        advice = "lies in the past: choose a later one, or give a 'start' before it"
    else:
        advice = _TOO_EARLY
    return Invalid("rrule", f"UNTIL={_basic(until)} {advice}")


def _nothing(field: str) -> Invalid:
    why = f"no moment up to the year {END_YEAR} meets all of it and lies before its end"
    return Invalid(field, f"has no occurrence: {why}: change the days and months that it names, or its end")
