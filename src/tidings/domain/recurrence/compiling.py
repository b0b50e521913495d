"""Compiling of a stored rule, cron expression or local time into numbered occurrences."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from tidings.domain.recurrence.building import (
    canonical_start,
    least_distance,
    per_day_max,
    wall_times_of,
    with_start_defaults,
)
from tidings.domain.recurrence.calendar import DAY_S, SECOND_US, decade_of, year_start
from tidings.domain.recurrence.cron import cron_times, cron_walls, is_exact, parse_cron
from tidings.domain.recurrence.excluding import (
    ExcludedRuns,
    MovedFromExcludedDays,
    WithoutExcludedDays,
    check_movable,
    with_listed_dates,
)
from tidings.domain.recurrence.kept import BoundedCache
from tidings.domain.recurrence.lattice import YEAR_BLOCKS
from tidings.domain.recurrence.moments import Bounded, Listed, Occurrences, Renumbered
from tidings.domain.recurrence.parts import DAILY, Cron, Gap, Local, Moment, Overlap, Recurrence, RruleParts, Rule
from tidings.domain.recurrence.remainders import UNIT_TABLES
from tidings.domain.recurrence.resolve import end_of, instant_of_wall, instants_of, resolve_wall
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.zoned import SEGMENTS, ZonedTimes
from tidings.domain.recurrence.zones import Zone, zone_named

SCHEDULES_KEPT = 16_384
LIST_SHORT_MAX = 20  # rules with more RDATEs and EXDATEs than this are in the smaller cache
LISTED_KEPT = 512  # with up to 1,000 times each: about 150 kB
WITH_CALENDAR_BYTES_MAX = 64 * 1024 * 1024  # of recurrences with a calendar
DAY_BYTES = 64
CALENDARS_KEPT = 128

WITH_CALENDAR: BoundedCache[tuple[Rule | Cron, ExcludedRuns], Occurrences] = BoundedCache(WITH_CALENDAR_BYTES_MAX)


def compiled(recurrence: Recurrence) -> Occurrences:
    """The occurrences of a recurrence."""
    if isinstance(recurrence, Local) or not recurrence.excluded:
        long = not isinstance(recurrence, Local) and len(recurrence.added) + len(recurrence.excepted) > LIST_SHORT_MAX
        return _cached_with_lists(recurrence) if long else _cached(recurrence)
    runs, asked = _excluded_runs(recurrence.excluded), msgspec.structs.replace(recurrence, excluded=())
    moments = WITH_CALENDAR.get((asked, runs))
    if moments is None:
        moments = _with_calendar(asked, runs)
        WITH_CALENDAR.put((asked, runs), moments, 1_000 + DAY_BYTES * len(runs.days))
    return moments


def forget() -> None:
    """Clear all caches, as is needed after a change of time zone rules."""
    for cached in (_cached, _cached_with_lists, _excluded_runs, _rule_zoned, _cron_zoned, zone_named):
        cached.cache_clear()
    for kept in (WITH_CALENDAR, SEGMENTS, YEAR_BLOCKS, UNIT_TABLES):
        kept.clear()


@lru_cache(maxsize=LISTED_KEPT)
def _cached_with_lists(recurrence: Recurrence) -> Occurrences:
    """The same in a smaller cache, for rules with long lists of times."""
    return _without_calendar(recurrence)


@lru_cache(maxsize=SCHEDULES_KEPT)
def _cached(recurrence: Recurrence) -> Occurrences:
    return _without_calendar(recurrence)


def _without_calendar(recurrence: Recurrence) -> Occurrences:
    """The occurrences, without regard to a calendar."""
    if isinstance(recurrence, Local):
        zone = zone_named(recurrence.zone)
        # With `skip`, a time in a gap stays pending until the instant of `forward` and is missed there: `is_swallowed`.
        return Listed(resolve_wall(zone, recurrence.wall, "forward", recurrence.overlap))
    moments = _rule(recurrence) if isinstance(recurrence, Rule) else _cron(recurrence)
    if recurrence.on_excluded == "next_day":
        check_movable(_per_day_max(recurrence))
    return Renumbered(moments, recurrence.shift) if recurrence.shift else moments


@lru_cache(maxsize=CALENDARS_KEPT)
def _excluded_runs(days: tuple[int, ...]) -> ExcludedRuns:
    """The runs of these days; one object for all schedules with equal days, which also serves as a cache key."""
    return ExcludedRuns(days)


def _with_calendar(asked: Rule | Cron, runs: ExcludedRuns) -> Occurrences:
    """The occurrences with those on excluded days skipped or moved."""
    base, zone = compiled(msgspec.structs.replace(asked, shift=0)), zone_named(asked.zone)
    if asked.on_excluded == "skip":
        counted = WithoutExcludedDays(base, zone, runs)
    else:
        counted = MovedFromExcludedDays(base, zone, runs, (asked.gap, asked.overlap), _per_day_max(asked))
    return Renumbered(counted, asked.shift) if asked.shift else counted


def _rule(rule: Rule) -> Occurrences:
    zone = zone_named(rule.zone)
    parts = parse_rrule(rule.rrule)
    anchor = instant_of_wall(zone, rule.start, rule.fold)
    full = with_start_defaults(parts, rule.start)
    exact = parts.frequency > DAILY
    # Only rules in exact time depend on the offset of their anchor, and the policies do not apply to them.
    clock = rule.start - anchor if exact else 0
    gap, overlap = ("skip", "both") if exact else (rule.gap, rule.overlap)
    decade = decade_of(rule.start // DAY_S)
    zoned = _rule_zoned(full, canonical_start(full, rule.start), clock, (rule.zone, gap, overlap), decade)
    lower = max(anchor, -(-rule.since // SECOND_US))
    end = None if parts.until is None else end_of(zone, parts.until)
    return _with_dates(Bounded(zoned, lower, end, _remaining(parts.count, rule.given)), zone, rule, lower)


def _cron(cron: Cron) -> Occurrences:
    zone = zone_named(cron.zone)
    since = -(-cron.since // SECOND_US)
    fields = parse_cron(cron.expression)
    gap, overlap = ("skip", "both") if is_exact(fields) else (cron.gap, cron.overlap)
    zoned = _cron_zoned(cron.expression, (cron.zone, gap, overlap), decade_of(since // DAY_S))
    end = None if cron.end is None else cron.end // SECOND_US
    return _with_dates(Bounded(zoned, since, end, _remaining(cron.count, cron.given)), zone, cron, since)


Policy = tuple[str, Gap, Overlap]


@lru_cache(maxsize=2_048)
def _rule_zoned(parts: RruleParts, start: int, clock: int, policy: Policy, decade: int) -> ZonedTimes:
    walls = wall_times_of(parts, start, decade - 1)
    zone, gap, overlap = policy
    lower = (year_start(decade) - 2) * DAY_S
    exact = parts.frequency > DAILY
    return ZonedTimes(lambda offset: walls(clock - offset), zone_named(zone), gap, overlap, lower, exact=exact)


@lru_cache(maxsize=2_048)
def _cron_zoned(expression: str, policy: Policy, decade: int) -> ZonedTimes:
    walls = cron_walls(parse_cron(expression), decade - 1)
    zone, gap, overlap = policy
    return ZonedTimes(lambda _offset: walls, zone_named(zone), gap, overlap, (year_start(decade) - 2) * DAY_S)


def _with_dates(moments: Bounded, zone: Zone, asked: Rule | Cron, lower: int) -> Occurrences:
    """The occurrences with RDATE and EXDATE applied; an RDATE before the rule begins does not count."""
    if not asked.added and not asked.excepted:
        return moments
    added = [at for at in _instants(zone, asked.added, asked.gap, asked.overlap) if at >= lower]
    return with_listed_dates(moments, zone, asked, added)


def _remaining(count: int | None, given: int) -> int | None:
    """How many occurrences are left of COUNT."""
    return None if count is None else max(0, count - given)


def _instants(zone: Zone, written: Sequence[Moment], gap: Gap, overlap: Overlap) -> list[int]:
    found = {instant for moment in written for instant in instants_of(zone, moment, gap, overlap)}
    return sorted(found)


def _per_day_max(asked: Rule | Cron) -> int:
    """The greatest number of wall times of the rule itself on one day."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).size
    return per_day_max(with_start_defaults(parse_rrule(asked.rrule), asked.start), asked.start)


def least_distance_us(asked: Rule | Cron) -> int:
    """The shortest time between two wall times of the rule itself, without RDATEs and clock changes."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).least_distance() * SECOND_US
    return least_distance(with_start_defaults(parse_rrule(asked.rrule), asked.start), asked.start) * SECOND_US
