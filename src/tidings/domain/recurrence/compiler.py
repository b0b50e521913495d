"""Compiling of stored recurrences into numbered occurrences, with caches that equal rules share.

First, a rule takes the parts that it does not have from its start: FREQ=DAILY from 9:30 is FREQ=DAILY;BYHOUR=9;
BYMINUTE=30;BYSECOND=0. After that, only the remainder of the start by INTERVAL matters, so the start is reduced to the
earliest one with the same wall times. With INTERVAL=3, daily rules that start on days 20,600 and 20,603 (both 2 modulo
3) become the same rule, which starts on day 2, and share one set of wall times with all its counts.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from tidings.domain.recurrence.cache import BoundedCache
from tidings.domain.recurrence.cron import cron_times, cron_walls, is_exact, parse_cron
from tidings.domain.recurrence.days import (
    DAY_S,
    END_YEAR,
    SECOND_US,
    Days,
    days_of,
    decade_of,
    month_of,
    year_of,
    year_start,
)
from tidings.domain.recurrence.lattice import (
    UNIT_TABLES,
    YEAR_BLOCKS,
    Lattice,
    UnitTableKey,
    packed,
    table_of,
    units_of_day,
)
from tidings.domain.recurrence.local_time import (
    SEGMENTS,
    ZonedTimes,
    end_of,
    instant_of_wall,
    instants_of,
    resolve_wall,
)
from tidings.domain.recurrence.occurrences import (
    Bounded,
    ExcludedRuns,
    Listed,
    MovedFromExcludedDays,
    Occurrences,
    Preceded,
    Renumbered,
    WithoutExcludedDays,
    check_movable,
    with_listed_dates,
)
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.rule import (
    DAILY,
    HOURLY,
    MINUTELY,
    MONTHLY,
    SECONDLY,
    WEEKLY,
    YEARLY,
    Cron,
    Gap,
    Local,
    Moment,
    Overlap,
    Recurrence,
    RruleParts,
    Rule,
)
from tidings.domain.recurrence.timezone import Zone, zone_named
from tidings.domain.recurrence.wall_times import (
    DisjointUnion,
    Product,
    Progression,
    SetPositions,
    TimesOfDay,
    WallTimes,
    pick_positions,
)

INTERVAL_SHARED_MAX = 1_000  # longer ones are rare, and their reduced start could be after the last year

_UNITS = {HOURLY: 3_600, MINUTELY: 60, SECONDLY: 1}


def with_start_defaults(parts: RruleParts, start: int) -> RruleParts:
    """The rule without its end, with missing parts taken from the start."""
    day, second = divmod(start, DAY_S)
    filled: dict[str, object] = {"count": None, "until": None}
    if parts.frequency <= DAILY:
        filled["by_hour"] = parts.by_hour or (second // 3_600,)
        filled["by_minute"] = parts.by_minute or (second // 60 % 60,)
        filled["by_second"] = parts.by_second or (second % 60,)
    weekday = ((0, (day + 3) % 7),)
    plain = not (parts.by_day or parts.by_month_day or parts.by_year_day)
    if (parts.by_week and plain) or (parts.frequency == WEEKLY and not parts.by_day):
        filled["by_day"] = weekday
    elif plain and parts.frequency in {YEARLY, MONTHLY}:
        filled["by_month_day"] = (day - _month_start(day) + 1,)
        if parts.frequency == YEARLY:
            filled["by_month"] = parts.by_month or (month_of(day),)
    return msgspec.structs.replace(parts, **filled)


def canonical_start(parts: RruleParts, start: int) -> int:
    """The earliest start (from about 1970 on) with which a rule with defaults has the same wall times."""
    interval, day = parts.interval, start // DAY_S
    if parts.frequency == YEARLY:
        return year_start(1970 + (year_of(day) - 1970) % interval) * DAY_S if interval < INTERVAL_SHARED_MAX else start
    if parts.frequency == MONTHLY:
        months = ((year_of(day) - 1970) * 12 + month_of(day) - 1) % interval
        return days_of(1970 + months // 12, months % 12 + 1, 1) * DAY_S if interval < INTERVAL_SHARED_MAX else start
    if parts.frequency == WEEKLY:
        return ((day + 3 - parts.week_start) // 7 % interval * 7 - 3 + parts.week_start) * DAY_S
    if parts.frequency == DAILY:
        return day % interval * DAY_S
    unit = _UNITS[parts.frequency]
    return start // unit % interval * unit + start % unit


def wall_times_of(parts: RruleParts, start: int, origin_year: int) -> Callable[[int], WallTimes]:
    """The wall times of a rule with defaults, by shift: how many seconds the offset is less than at the anchor.

    The shift matters only for rules below DAILY, which step in exact time. A rule every 12 hours from 9:00 in winter
    has the wall times 9:00 and 21:00 there, and 10:00 and 22:00 in summer, when the shift is -3,600.
    """
    if parts.frequency <= DAILY:
        walls = _daily_or_longer(parts, start, origin_year)
        return lambda _shift: walls
    days = Days(parts, 0)
    made: dict[int, WallTimes] = {}

    def shifted(shift: int) -> WallTimes:
        if shift not in made:
            made[shift] = _sub_daily(parts, days, start, origin_year, shift)
        return made[shift]

    return shifted


def _daily_or_longer(parts: RruleParts, start: int, origin_year: int) -> WallTimes:
    days = Days(parts, start // DAY_S)
    times = _times(parts)
    if not parts.by_position:
        return Product(days, times, origin_year, END_YEAR)
    if parts.frequency == DAILY:
        chosen = [times.at(index) for index in pick_positions(parts.by_position, times.size)]
        return Product(days, TimesOfDay(chosen, (0,), 1), origin_year, END_YEAR)
    period = (parts.frequency, parts.week_start)
    return SetPositions(days, times, period, parts.by_position, (origin_year, END_YEAR))


def _times(parts: RruleParts) -> TimesOfDay:
    coarse = (hour * 3_600 + minute * 60 for hour in parts.by_hour for minute in parts.by_minute)
    return TimesOfDay(array("i", coarse), parts.by_second, 60)


def least_distance(parts: RruleParts, start: int) -> int:
    """The shortest time, in seconds, between two wall times of a rule with defaults."""
    if parts.frequency <= DAILY:
        return _times(parts).least_distance()
    fine, unit = _offsets_in_unit(parts, start, 0), _UNITS[parts.frequency]
    near = [later - earlier for earlier, later in pairwise(fine)]
    return min([unit * parts.interval - (fine[-1] - fine[0]), *near])


def per_day_max(parts: RruleParts, start: int) -> int:
    """The greatest number of wall times of a rule with defaults on one day."""
    if parts.frequency <= DAILY:
        size = _times(parts).size
        return min(size, len(parts.by_position)) if parts.by_position else size
    fine = len(_offsets_in_unit(parts, start, 0))
    chosen = len(pick_positions(parts.by_position, fine)) if parts.by_position else fine
    fields = (parts.by_hour, parts.by_minute, parts.by_second)
    return table_of(UnitTableKey(parts.frequency, fields, parts.interval, _UNITS[parts.frequency])).most * chosen


def _sub_daily(parts: RruleParts, days: Days, start: int, origin_year: int, shift: int) -> WallTimes:
    unit = _UNITS[parts.frequency]
    first_unit = start // unit
    fine = _offsets_in_unit(parts, start, shift)
    if parts.by_position:
        fine = [fine[index] for index in pick_positions(parts.by_position, len(fine))]
    free = not (parts.by_hour or (parts.frequency > HOURLY and parts.by_minute))
    free = free and not (parts.frequency == SECONDLY and parts.by_second)
    if not fine:  # BYSETPOS selects a position that no unit has
        return Product(days, TimesOfDay((), (), 1), origin_year, END_YEAR)
    if free and days.unfiltered():
        step = unit * parts.interval
        origin = year_start(origin_year) * DAY_S
        return Progression(origin + (first_unit * unit - shift - origin) % step - step, step, tuple(fine))
    if parts.interval == 1:
        return Product(days, _every_unit(parts, [(index - shift) % unit for index in fine]), origin_year, END_YEAR)
    groups: dict[int, list[int]] = {}
    for index in fine:
        groups.setdefault((index - shift) // unit, []).append((index - shift) % unit)
    sets = [
        _with_interval(parts, days, first_unit + moved, tuple(group), origin_year) for moved, group in groups.items()
    ]
    return sets[0] if len(sets) == 1 else DisjointUnion(sets[0], sets[1], origin_year)


def _offsets_in_unit(parts: RruleParts, start: int, shift: int) -> list[int]:
    """The seconds within a unit, by the offset of the anchor. BYMINUTE and BYSECOND themselves are wall time."""
    if parts.frequency == SECONDLY:
        return [0]
    seconds = [(second + shift) % 60 for second in parts.by_second] or [start % 60]
    if parts.frequency == MINUTELY:
        return sorted(seconds)
    if not parts.by_minute:
        return sorted(start // 60 % 60 * 60 + second for second in seconds)
    local = [(second - shift) % 60 for second in seconds]
    return sorted((minute * 60 + second + shift) % 3_600 for minute in parts.by_minute for second in local)


def _every_unit(parts: RruleParts, fine: list[int]) -> TimesOfDay:
    """The times of day of a rule with INTERVAL=1."""
    if parts.frequency == HOURLY:
        return TimesOfDay(_hours(parts), sorted(fine), 3_600)
    minutes = [hour * 60 + minute for hour in parts.by_hour or range(24) for minute in parts.by_minute or range(60)]
    seconds = sorted(fine) if parts.frequency == MINUTELY else parts.by_second or range(60)
    return TimesOfDay(array("i", (minute * 60 for minute in minutes)), seconds, 60)


def _with_interval(
    parts: RruleParts, days: Days, first_unit: int, fine: tuple[int, ...], origin_year: int
) -> WallTimes:
    unit = _UNITS[parts.frequency]
    fields = (parts.by_hour, parts.by_minute, parts.by_second)
    if DAY_S // unit % parts.interval:
        table = UnitTableKey(parts.frequency, fields, parts.interval, unit)
        return Lattice(days, table, (unit, parts.interval, first_unit), tuple(sorted(fine)), (origin_year, END_YEAR))
    coarse: Sequence[int] = range(first_unit % parts.interval * unit, DAY_S, parts.interval * unit)
    if parts.frequency == SECONDLY and 3_600 % parts.interval == 0:  # every hour is the same
        inner = units_of_day(SECONDLY, ((0,), parts.by_minute, parts.by_second))
        inner = inner[(inner - first_unit) % parts.interval == 0]
        return Product(days, TimesOfDay(_hours(parts), packed(inner), 3_600), origin_year, END_YEAR)
    if any(fields[: parts.frequency - HOURLY + 1]):
        units = units_of_day(parts.frequency, fields)
        coarse = packed(units[(units - first_unit) % parts.interval == 0] * unit)
    return Product(days, TimesOfDay(coarse, sorted(fine), unit), origin_year, END_YEAR)


def _hours(parts: RruleParts) -> list[int]:
    return [hour * 3_600 for hour in parts.by_hour or range(24)]


def _month_start(day: int) -> int:
    return days_of(year_of(day), month_of(day), 1)


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
    return _numbered(moments, recurrence)


@lru_cache(maxsize=CALENDARS_KEPT)
def _excluded_runs(days: tuple[int, ...]) -> ExcludedRuns:
    """The runs of these days; one object for all schedules with equal days, which also serves as a cache key."""
    return ExcludedRuns(days)


def _with_calendar(asked: Rule | Cron, runs: ExcludedRuns) -> Occurrences:
    """The occurrences with those on excluded days skipped or moved."""
    base, zone = compiled(_from_one(asked)), zone_named(asked.zone)
    if asked.on_excluded == "skip":
        counted = WithoutExcludedDays(base, zone, runs)
    else:
        counted = MovedFromExcludedDays(base, zone, runs, (asked.gap, asked.overlap), _per_day_max(asked))
    return _numbered(counted, asked)


def _from_one(asked: Rule | Cron) -> Rule | Cron:
    """The rule alone, numbered from 1: what is kept from before is still a part of COUNT."""
    return msgspec.structs.replace(asked, shift=0, given=asked.given + len(asked.kept), kept=())


def _numbered(moments: Occurrences, asked: Rule | Cron) -> Occurrences:
    """The occurrences after those that are kept from before, with their numbers."""
    if asked.kept:
        moments = Preceded(asked.kept, moments)
    return Renumbered(moments, asked.shift) if asked.shift else moments


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
    return _with_dates(Bounded(zoned, lower, end, _remaining(parts.count, rule)), zone, rule, lower)


def _cron(cron: Cron) -> Occurrences:
    zone = zone_named(cron.zone)
    since = -(-cron.since // SECOND_US)
    fields = parse_cron(cron.expression)
    gap, overlap = ("skip", "both") if is_exact(fields) else (cron.gap, cron.overlap)
    zoned = _cron_zoned(cron.expression, (cron.zone, gap, overlap), decade_of(since // DAY_S))
    end = None if cron.end is None else cron.end // SECOND_US
    return _with_dates(Bounded(zoned, since, end, _remaining(cron.count, cron)), zone, cron, since)


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


def _remaining(count: int | None, asked: Rule | Cron) -> int | None:
    """How many occurrences are left of COUNT."""
    return None if count is None else max(0, count - asked.given - len(asked.kept))


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
