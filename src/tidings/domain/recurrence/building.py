"""From the parts of a rule to its set of wall times.

What the rule leaves open comes from its start. After that, and with INTERVAL, only a remainder of the start matters,
so that rules which differ in nothing else share one set, and with it all that was counted before.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from tidings.domain.recurrence.calendar import DAY_S, END_YEAR, days_of, year_of, year_start
from tidings.domain.recurrence.days import Days, month_of
from tidings.domain.recurrence.lattice import Lattice
from tidings.domain.recurrence.parts import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY, Parts
from tidings.domain.recurrence.positions import Positions
from tidings.domain.recurrence.remainders import Units, packed, table_of, units_of_day
from tidings.domain.recurrence.times import Times, picked
from tidings.domain.recurrence.walls import Product, Progression, Union, Walls

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
