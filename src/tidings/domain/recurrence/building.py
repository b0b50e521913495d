"""Compiling of stored recurrences into numbered occurrences, with caches that equal rules share.

First, a rule takes the parts that it does not have from its start: FREQ=DAILY from 9:30 is FREQ=DAILY;BYHOUR=9;
BYMINUTE=30;BYSECOND=0. After that, only the remainder of the start by INTERVAL matters, so the start is reduced to the
earliest one with the same wall times. With INTERVAL=3, daily rules that start on days 20,600 and 20,603 (both 2 modulo
3) become the same rule, which starts on day 2, and share one set of wall times with all its counts.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from tidings.domain.recurrence.calendar import DAY_S, END_YEAR, days_of, year_of, year_start
from tidings.domain.recurrence.days import Days, month_of
from tidings.domain.recurrence.lattice import Lattice
from tidings.domain.recurrence.parts import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY, RruleParts
from tidings.domain.recurrence.positions import SetPositions
from tidings.domain.recurrence.remainders import UnitTableKey, packed, table_of, units_of_day
from tidings.domain.recurrence.times import TimesOfDay, pick_positions
from tidings.domain.recurrence.walls import DisjointUnion, Product, Progression, WallTimes

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
        chosen = [times.at(place) for place in pick_positions(parts.by_position, times.size)]
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
        fine = [fine[place] for place in pick_positions(parts.by_position, len(fine))]
    free = not (parts.by_hour or (parts.frequency > HOURLY and parts.by_minute))
    free = free and not (parts.frequency == SECONDLY and parts.by_second)
    if not fine:  # BYSETPOS selects a position that no unit has
        return Product(days, TimesOfDay((), (), 1), origin_year, END_YEAR)
    if free and days.unfiltered():
        step = unit * parts.interval
        origin = year_start(origin_year) * DAY_S
        return Progression(origin + (first_unit * unit - shift - origin) % step - step, step, tuple(fine))
    if parts.interval == 1:
        return Product(days, _every_unit(parts, [(place - shift) % unit for place in fine]), origin_year, END_YEAR)
    groups: dict[int, list[int]] = {}
    for place in fine:
        groups.setdefault((place - shift) // unit, []).append((place - shift) % unit)
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
