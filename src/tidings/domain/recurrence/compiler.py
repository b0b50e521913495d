"""From the parts of a rule to its set of wall times.

What the rule leaves open comes from its start. After that, and with INTERVAL, only a remainder of the start matters,
so that rules which differ in nothing else share one set, and with it all that was counted before.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from tidings.domain.recurrence.cache import Kept
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
from tidings.domain.recurrence.lattice import BLOCKS, TABLES, Lattice, Units, packed, table_of, units_of_day
from tidings.domain.recurrence.local_time import STRETCHES, Zoned, end_of, folded, instants_of, resolved
from tidings.domain.recurrence.occurrences import (
    Bounded,
    Excluding,
    Few,
    Moments,
    Moving,
    Runs,
    Shifted,
    amended,
    check_movable,
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
    Parts,
    Recurrence,
    Rule,
)
from tidings.domain.recurrence.timezone import Zone, zone_named
from tidings.domain.recurrence.wall_times import Positions, Product, Progression, Times, Union, Walls, picked

INTERVAL_SHARED_MAX = 1_000  # longer ones are rare, and would need dates that no calendar has

_UNITS = {HOURLY: 3_600, MINUTELY: 60, SECONDLY: 1}


def completed(parts: Parts, start: int) -> Parts:
    """The rule with what it leaves open taken from the start, without its ends."""
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


def reduced_start(parts: Parts, start: int) -> int:
    """The earliest start (since about 1970) from which the completed rule has the same wall times."""
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


def walls_of(parts: Parts, start: int, origin_year: int) -> Callable[[int], Walls]:
    """The wall times of a completed rule while the offset from UTC is so many seconds less than at the anchor."""
    if parts.frequency <= DAILY:
        walls = _daily(parts, start, origin_year)
        return lambda _shift: walls
    days = Days(parts, 0)
    made: dict[int, Walls] = {}

    def shifted(shift: int) -> Walls:
        if shift not in made:
            made[shift] = _sub_daily(parts, days, start, origin_year, shift)
        return made[shift]

    return shifted


def _daily(parts: Parts, start: int, origin_year: int) -> Walls:
    days = Days(parts, start // DAY_S)
    times = _times(parts)
    if not parts.by_position:
        return Product(days, times, origin_year, END_YEAR)
    if parts.frequency == DAILY:
        chosen = [times.at(place) for place in picked(parts.by_position, times.size)]
        return Product(days, Times(chosen, (0,), 1), origin_year, END_YEAR)
    period = (parts.frequency, parts.week_start)
    return Positions(days, times, period, parts.by_position, (origin_year, END_YEAR))


def _times(parts: Parts) -> Times:
    coarse = (hour * 3_600 + minute * 60 for hour in parts.by_hour for minute in parts.by_minute)
    return Times(array("i", coarse), parts.by_second, 60)


def least_distance(parts: Parts, start: int) -> int:
    """The shortest time, in seconds, between two wall times of a completed rule."""
    if parts.frequency <= DAILY:
        return _times(parts).least_distance()
    fine, unit = _fine(parts, start, 0), _UNITS[parts.frequency]
    near = [later - earlier for earlier, later in pairwise(fine)]
    return min([unit * parts.interval - (fine[-1] - fine[0]), *near])


def most_a_day(parts: Parts, start: int) -> int:
    """How many wall times of a completed rule can lie on one day, at most."""
    if parts.frequency <= DAILY:
        size = _times(parts).size
        return min(size, len(parts.by_position)) if parts.by_position else size
    fine = len(_fine(parts, start, 0))
    chosen = len(picked(parts.by_position, fine)) if parts.by_position else fine
    fields = (parts.by_hour, parts.by_minute, parts.by_second)
    return table_of(Units(parts.frequency, fields, parts.interval, _UNITS[parts.frequency])).most * chosen


def _sub_daily(parts: Parts, days: Days, start: int, origin_year: int, shift: int) -> Walls:
    unit = _UNITS[parts.frequency]
    first_unit = start // unit
    fine = _fine(parts, start, shift)
    if parts.by_position:
        fine = [fine[place] for place in picked(parts.by_position, len(fine))]
    free = not (parts.by_hour or (parts.frequency > HOURLY and parts.by_minute))
    free = free and not (parts.frequency == SECONDLY and parts.by_second)
    if not fine:  # BYSETPOS asks for a position that no unit has
        return Product(days, Times((), (), 1), origin_year, END_YEAR)
    if free and days.unfiltered():
        step = unit * parts.interval
        origin = year_start(origin_year) * DAY_S
        return Progression(origin + (first_unit * unit - shift - origin) % step - step, step, tuple(fine))
    if parts.interval == 1:
        return Product(days, _every_unit(parts, [(place - shift) % unit for place in fine]), origin_year, END_YEAR)
    groups: dict[int, list[int]] = {}
    for place in fine:
        groups.setdefault((place - shift) // unit, []).append((place - shift) % unit)
    sets = [_stepped(parts, days, first_unit + moved, tuple(group), origin_year) for moved, group in groups.items()]
    return sets[0] if len(sets) == 1 else Union(sets[0], sets[1], origin_year)


def _fine(parts: Parts, start: int, shift: int) -> list[int]:
    """The places inside of a unit, on the clock of the anchor. What BYMINUTE and BYSECOND say is wall time."""
    if parts.frequency == SECONDLY:
        return [0]
    seconds = [(second + shift) % 60 for second in parts.by_second] or [start % 60]
    if parts.frequency == MINUTELY:
        return sorted(seconds)
    if not parts.by_minute:
        return sorted(start // 60 % 60 * 60 + second for second in seconds)
    local = [(second - shift) % 60 for second in seconds]
    return sorted((minute * 60 + second + shift) % 3_600 for minute in parts.by_minute for second in local)


def _every_unit(parts: Parts, fine: list[int]) -> Times:
    """The times of a day where every unit that the rule allows counts."""
    if parts.frequency == HOURLY:
        return Times(_hours(parts), sorted(fine), 3_600)
    minutes = [hour * 60 + minute for hour in parts.by_hour or range(24) for minute in parts.by_minute or range(60)]
    seconds = sorted(fine) if parts.frequency == MINUTELY else parts.by_second or range(60)
    return Times(array("i", (minute * 60 for minute in minutes)), seconds, 60)


def _stepped(parts: Parts, days: Days, first_unit: int, fine: tuple[int, ...], origin_year: int) -> Walls:
    unit = _UNITS[parts.frequency]
    fields = (parts.by_hour, parts.by_minute, parts.by_second)
    if DAY_S // unit % parts.interval:
        table = Units(parts.frequency, fields, parts.interval, unit)
        return Lattice(days, table, (unit, parts.interval, first_unit), tuple(sorted(fine)), (origin_year, END_YEAR))
    coarse: Sequence[int] = range(first_unit % parts.interval * unit, DAY_S, parts.interval * unit)
    if parts.frequency == SECONDLY and 3_600 % parts.interval == 0:  # every hour the same
        inner = units_of_day(SECONDLY, ((0,), parts.by_minute, parts.by_second))
        inner = inner[(inner - first_unit) % parts.interval == 0]
        return Product(days, Times(_hours(parts), packed(inner), 3_600), origin_year, END_YEAR)
    if any(fields[: parts.frequency - HOURLY + 1]):
        units = units_of_day(parts.frequency, fields)
        coarse = packed(units[(units - first_unit) % parts.interval == 0] * unit)
    return Product(days, Times(coarse, sorted(fine), unit), origin_year, END_YEAR)


def _hours(parts: Parts) -> list[int]:
    return [hour * 3_600 for hour in parts.by_hour or range(24)]


def _month_start(day: int) -> int:
    return days_of(year_of(day), month_of(day), 1)


SCHEDULES_KEPT = 16_384
LISTED_KEPT = 512  # with up to 1,000 moments of their own each: some 150 kB
FEW = 20
DATED_BYTES_MAX = 64 * 1024 * 1024  # with the days of calendars
DAY_BYTES = 64
CALENDARS_KEPT = 128

DATED: Kept[tuple[Rule | Cron, Runs], Moments] = Kept(DATED_BYTES_MAX)


def compiled(recurrence: Recurrence) -> Moments:
    """The moments of a schedule."""
    if isinstance(recurrence, Local) or not recurrence.excluded:
        long = not isinstance(recurrence, Local) and len(recurrence.added) + len(recurrence.excepted) > FEW
        return _listed(recurrence) if long else _plain(recurrence)
    runs, asked = _runs(recurrence.excluded), msgspec.structs.replace(recurrence, excluded=())
    moments = DATED.get((asked, runs))
    if moments is None:
        moments = _dated(asked, runs)
        DATED.put((asked, runs), moments, 1_000 + DAY_BYTES * len(runs.days))
    return moments


def forget() -> None:
    """Drop all that was worked out, as after new rules of zones."""
    for cached in (_plain, _listed, _runs, _rule_zoned, _cron_zoned, zone_named):
        cached.cache_clear()
    for kept in (DATED, STRETCHES, BLOCKS, TABLES):
        kept.clear()


@lru_cache(maxsize=LISTED_KEPT)
def _listed(recurrence: Recurrence) -> Moments:
    """The same for what is heavier to keep."""
    return _undated(recurrence)


@lru_cache(maxsize=SCHEDULES_KEPT)
def _plain(recurrence: Recurrence) -> Moments:
    return _undated(recurrence)


def _undated(recurrence: Recurrence) -> Moments:
    """The moments, whatever days a calendar excludes."""
    if isinstance(recurrence, Local):
        zone = zone_named(recurrence.zone)
        return Few(
            resolved(zone, recurrence.wall, "forward", recurrence.overlap)
        )  # what of `skip` is missed there: `is_swallowed`
    moments = _rule(recurrence) if isinstance(recurrence, Rule) else _cron(recurrence)
    if recurrence.on_excluded == "next_day":
        check_movable(_most_a_day(recurrence))
    return Shifted(moments, recurrence.shift) if recurrence.shift else moments


@lru_cache(maxsize=CALENDARS_KEPT)
def _runs(days: tuple[int, ...]) -> Runs:
    """One table for all schedules with equal days, and a key that is the same for them."""
    return Runs(days)


def _dated(asked: Rule | Cron, runs: Runs) -> Moments:
    """The moments without those of excluded days."""
    base, zone = compiled(msgspec.structs.replace(asked, shift=0)), zone_named(asked.zone)
    if asked.on_excluded == "skip":
        counted = Excluding(base, zone, runs)
    else:
        counted = Moving(base, zone, runs, (asked.gap, asked.overlap), _most_a_day(asked))
    return Shifted(counted, asked.shift) if asked.shift else counted


def _rule(rule: Rule) -> Moments:
    zone = zone_named(rule.zone)
    parts = parse_rrule(rule.rrule)
    anchor = folded(zone, rule.start, rule.fold)
    full = completed(parts, rule.start)
    exact = parts.frequency > DAILY
    # Only rules in exact time know the offset of their anchor, and no policy.
    clock = rule.start - anchor if exact else 0
    gap, overlap = ("skip", "both") if exact else (rule.gap, rule.overlap)
    decade = decade_of(rule.start // DAY_S)
    zoned = _rule_zoned(full, reduced_start(full, rule.start), clock, (rule.zone, gap, overlap), decade)
    lower = max(anchor, -(-rule.since // SECOND_US))
    end = None if parts.until is None else end_of(zone, parts.until)
    return _amended(Bounded(zoned, lower, end, _left(parts.count, rule.given)), zone, rule, lower)


def _cron(cron: Cron) -> Moments:
    zone = zone_named(cron.zone)
    since = -(-cron.since // SECOND_US)
    fields = parse_cron(cron.expression)
    gap, overlap = ("skip", "both") if is_exact(fields) else (cron.gap, cron.overlap)
    zoned = _cron_zoned(cron.expression, (cron.zone, gap, overlap), decade_of(since // DAY_S))
    end = None if cron.end is None else cron.end // SECOND_US
    return _amended(Bounded(zoned, since, end, _left(cron.count, cron.given)), zone, cron, since)


Policy = tuple[str, Gap, Overlap]


@lru_cache(maxsize=2_048)
def _rule_zoned(parts: Parts, start: int, clock: int, policy: Policy, decade: int) -> Zoned:
    walls = walls_of(parts, start, decade - 1)
    zone, gap, overlap = policy
    lower = (year_start(decade) - 2) * DAY_S
    exact = parts.frequency > DAILY
    return Zoned(lambda offset: walls(clock - offset), zone_named(zone), gap, overlap, lower, exact=exact)


@lru_cache(maxsize=2_048)
def _cron_zoned(expression: str, policy: Policy, decade: int) -> Zoned:
    walls = cron_walls(parse_cron(expression), decade - 1)
    zone, gap, overlap = policy
    return Zoned(lambda _offset: walls, zone_named(zone), gap, overlap, (year_start(decade) - 2) * DAY_S)


def _amended(moments: Bounded, zone: Zone, asked: Rule | Cron, lower: int) -> Moments:
    """With its single moments; what is added counts from where the rule begins."""
    if not asked.added and not asked.excepted:
        return moments
    added = [at for at in _instants(zone, asked.added, asked.gap, asked.overlap) if at >= lower]
    return amended(moments, zone, asked, added)


def _left(count: int | None, given: int) -> int | None:
    """How many a rule may still give."""
    return None if count is None else max(0, count - given)


def _instants(zone: Zone, written: Sequence[Moment], gap: Gap, overlap: Overlap) -> list[int]:
    found = {instant for moment in written for instant in instants_of(zone, moment, gap, overlap)}
    return sorted(found)


def _most_a_day(asked: Rule | Cron) -> int:
    """How many wall times of a rule as such can lie on one day, at most."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).size
    return most_a_day(completed(parse_rrule(asked.rrule), asked.start), asked.start)


def least_distance_us(asked: Rule | Cron) -> int:
    """The shortest time between two wall times of a rule as such, whatever is added to it and clocks do."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).least_distance() * SECOND_US
    return least_distance(completed(parse_rrule(asked.rrule), asked.start), asked.start) * SECOND_US
