"""Reads the fields of a request that say when it is due: `at`, `every`, `rrule`, `cron` and those beside them."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import check_name
from tidings.domain.recurrence.compiler import least_distance_us
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.local_time import end_of, instants_of, is_swallowed
from tidings.domain.recurrence.preview import late_start_note, swallowed_note
from tidings.domain.recurrence.request_fields import COUNT_MAX, Terms, check_count, read_cron, read_local, read_rule
from tidings.domain.recurrence.rrule import parse_block, parse_moment, parse_moments, parse_rrule
from tidings.domain.recurrence.rule import GAPS, ON_EXCLUDED, OVERLAPS
from tidings.domain.recurrence.timezone import check_zone, zone_named
from tidings.domain.schedules import iso8601
from tidings.domain.schedules.schedule import Limits, Request, Timing
from tidings.domain.schedules.when import (
    SECOND_US,
    Cron,
    Every,
    Once,
    Rule,
    When,
    advance,
    last_index_at_or_before,
    occurrence,
)

Word = TypeVar("Word", bound=str)

_DATE = re.compile(r"\d{4}-?\d\d-?\d\d", re.ASCII)
_RECURRING = ("start", "until", "count", "rdates", "exdates", "calendar", "on_excluded")
_OF_RULES = ("gap", "overlap", "rdates", "exdates", "calendar", "on_excluded")


def wrong_fields(timing: Timing, known: str) -> tuple[Invalid, ...]:
    """The errors of all fields other than `known`, so that a refusal names every field that is wrong."""
    found = []
    for name, check in _CHECKS.items():
        value = getattr(timing, name)
        if name != known and value is not None and value != ():
            try:
                check(value)
            except Invalid as invalid:
                found.append(invalid)
    return tuple(found)


def word(name: str, text: str | None, words: Mapping[str, Word], default: Word) -> Word:
    """The value of a field that takes one of a few words."""
    if text is None:
        return default
    if text not in words:
        raise Invalid(name, f"{text[:48]!r} is not known: use {' or '.join(words)}")
    return words[text]


_CHECKS: dict[str, Callable[..., object]] = {
    "rrule": lambda text: parse_rrule(parse_block(text).rrule),
    "cron": parse_cron,
    "zone": check_zone,
    "start": lambda text: parse_moment(text, "start"),
    "until": lambda text: parse_moment(text, "until"),
    "count": check_count,
    "rdates": lambda texts: parse_moments(texts, "rdates"),
    "exdates": lambda texts: parse_moments(texts, "exdates"),
    "gap": lambda text: word("gap", text, GAPS, "forward"),
    "overlap": lambda text: word("overlap", text, OVERLAPS, "first"),
    "calendar": lambda name: check_name(name, "calendar"),
    "on_excluded": lambda text: word("on_excluded", text, ON_EXCLUDED, "skip"),
}


def read_at(request: Request, now: int) -> int:
    """The instant that `at` says, for a request without a time zone; a missing `at` is now."""
    at = request.at
    if at is None:
        return now
    if isinstance(at, int):
        return at
    if iso8601.is_duration(at):
        return advance(since(request, now), iso8601.parse_duration(at, "at"))
    try:
        return iso8601.parse_instant(at)
    except Invalid as invalid:
        advice = "or a duration from now such as +5s"
        if "has no offset" in invalid.detail:
            advice = "or give the 'zone' whose clocks show it, such as Europe/Berlin"
        raise Invalid("at", f"{invalid.detail}, {advice}") from None


def at_instant(request: Request, now: int) -> Request:
    """The same request with the instant that a duration in `at` says now: the same duration later is another request.

    A duration that is not valid is left as it is, so that admission refuses it with all other wrong fields.
    """
    if not isinstance(request.at, str) or not iso8601.is_duration(request.at):
        return request
    try:
        return msgspec.structs.replace(request, at=read_at(request, now))
    except Invalid:
        return request


def read_when(request: Request, now: int, limits: Limits) -> When:
    """When a request with an interval, a rule, a cron expression or a zone is due; `Invalid` names all wrong fields."""
    try:
        return _read_when(request, now, limits)
    except Invalid as invalid:
        others = wrong_fields(request.timing or Timing(), invalid.field)
        raise (Invalid(invalid.field, invalid.detail, others) if others else invalid) from None


def _read_when(request: Request, now: int, limits: Limits) -> When:
    timing = request.timing or Timing()
    _check_one(request, timing)
    if timing.zone is not None:
        check_zone(timing.zone)
    if timing.rrule is not None or timing.cron is not None:
        return _rule(timing, since(request, now), limits)
    if request.every is not None:
        return _every(request, timing, now, limits)
    for name in _RECURRING:
        if getattr(timing, name) not in {None, ()}:
            ways = "'rrule' or 'cron'" if name in _OF_RULES else "'rrule', 'cron' or 'every'"
            raise Invalid(name, f"needs {ways}: give one of them, or leave it out")
    return _local(request, timing, now)


def since(request: Request, now: int) -> int:
    """The instant from which durations, and rules without a start, are counted."""
    return now if request.since is None else request.since


def passed_note(when: When, now: int, limits: Limits) -> tuple[int, str | None]:
    """How many occurrences lie before now, and a note on what each lateness policy would do with them."""
    if (swallowed := swallowed_note(when)) is not None:
        return 0, swallowed
    start = late_start_note(when)
    passed = last_index_at_or_before(when, now - 1)
    if not passed:
        return 0, start
    catches_up = passed <= limits.catch_up_max
    each = "fire_all each one" if catches_up else "fire_all is refused for so many (limits.catch_up_max)"
    what = f"{passed:,} occurrence{' has' if passed == 1 else 's have'} passed already"
    note = f"{what}; scheduled now, fire_latest (the default) would release the latest at once, {each}"
    note = f"{note}, skip those up to late_grace late"
    return passed, note if start is None else f"{note}; {start}"


def field_of(when: When) -> str:
    """The field of the request that a `when` was read from."""
    match when:
        case Every():
            return "every"
        case Rule():
            return "rrule"
        case Cron():
            return "cron"
        case _:
            return "at"


def _check_one(request: Request, timing: Timing) -> None:
    ways = {"at": request.at, "every": request.every, "rrule": timing.rrule, "cron": timing.cron}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise Invalid(given[0], f"give either '{given[0]}' or '{given[1]}', not both")


def _rule(timing: Timing, now: int, limits: Limits) -> Rule | Cron:
    if timing.calendar is not None:
        check_name(timing.calendar, "calendar")
    elif timing.on_excluded is not None:
        raise Invalid("on_excluded", "says what to do on the days of a 'calendar': name one, or leave it out")
    terms = Terms(
        start=timing.start,
        zone=timing.zone,
        gap=word("gap", timing.gap, GAPS, "forward"),
        overlap=word("overlap", timing.overlap, OVERLAPS, "first"),
        count=timing.count,
        until=timing.until,
        rdates=timing.rdates,
        exdates=timing.exdates,
        on_excluded=word("on_excluded", timing.on_excluded, ON_EXCLUDED, "skip"),
        calendar=timing.calendar,
    )
    when: Rule | Cron
    if timing.rrule is not None:
        when, field = read_rule(timing.rrule, now, terms), "rrule"
    else:
        assert timing.cron is not None
        when, field = read_cron(timing.cron, now, terms), "cron"
    if least_distance_us(when) < limits.period_min_s * SECOND_US:
        raise Invalid(
            field, f"occurs more often than every {limits.period_min_s} s, the shortest period that is accepted"
        )
    return when


def _every(request: Request, timing: Timing, now: int, limits: Limits) -> Every:
    """An interval, with the `start`, `until` and `count` that were given beside it."""
    assert request.every is not None
    for name in _OF_RULES:
        if getattr(timing, name) not in {None, ()}:
            raise Invalid(name, "needs 'rrule' or 'cron': an interval counts elapsed time")
    every = iso8601.parse_interval(request.every, since(request, now))
    if timing.start is not None:
        if request.every.count("/") > 1:
            raise Invalid("start", "the interval has a start or an end of its own: leave one out")
        every = Every(_instant("start", timing.start, timing), every.period, every.end, every.count)
    elif timing.zone is not None and timing.until is None:
        raise Invalid("zone", "says how to read a local 'start' or 'until': give one of them, or leave it out")
    if timing.until is not None:
        if every.end is not None:
            raise Invalid("until", "the interval has an end of its own: leave one out")
        every = msgspec.structs.replace(every, end=_instant("until", timing.until, timing))
    if timing.count is not None:
        if every.count is not None:
            raise Invalid("count", "the interval has a count of its own: leave one out")
        if not 1 <= timing.count <= COUNT_MAX:
            raise Invalid("count", f"must lie between 1 and {COUNT_MAX:,}")
        every = msgspec.structs.replace(every, count=timing.count)
    if every.period_min_us() < limits.period_min_s * SECOND_US:
        raise Invalid("every", f"the period is shorter than {limits.period_min_s} s, the shortest that is accepted")
    return every


def _local(request: Request, timing: Timing, now: int) -> When:
    """A local time. One in the past becomes an instant, unless it lies in a DST gap that skips it."""
    if timing.zone is None:
        name = "gap" if timing.gap is not None else "overlap"
        raise Invalid(name, "says what clock changes do to a local time: give its 'zone', or leave it out")
    if request.at is None:
        raise Invalid("zone", "needs a local 'at', 'rrule' or 'cron': give one of them, or leave it out")
    if not isinstance(request.at, str) or iso8601.is_duration(request.at):
        raise Invalid("zone", "an instant or a duration needs no time zone: leave it out")
    gap = word("gap", timing.gap, GAPS, "forward")
    when = read_local(request.at, timing.zone, gap, word("overlap", timing.overlap, OVERLAPS, "first"))
    last = occurrence(when, 2) or occurrence(when, 1)
    assert last is not None, "a local time that was read has an instant"
    return Once(last) if last <= now and not is_swallowed(when) else when


def _instant(name: str, text: str, timing: Timing) -> int:
    if _DATE.fullmatch(text):
        return _of_date(name, text, timing)
    if timing.zone is None:
        return iso8601.parse_instant(text, name)
    at = occurrence(read_local(text, timing.zone, field=name), 1)
    assert at is not None
    return at


def _of_date(name: str, text: str, timing: Timing) -> int:
    """The first second of a date for `start`, its last second for `until`, as beside a rule."""
    zone, moment = zone_named(timing.zone or "UTC"), parse_moment(text, name)
    second = end_of(zone, moment) if name == "until" else instants_of(zone, moment, "forward", "first")[0]
    return second * SECOND_US
