"""A brute-force implementation of rules: it checks every day, or every second.

It shares no code with the one under test, and its time zones are those of the standard library.
"""

from calendar import isleap, monthrange
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib.resources import files
from itertools import groupby, product
from typing import TypeVar
from zoneinfo import ZoneInfo

NAMES = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
FREQUENCIES = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
UNIT_S = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}

Element = TypeVar("Element")


class Oracle:
    """A rule, parsed without validation."""

    def __init__(self, text: str, start: datetime) -> None:
        fields = dict(part.split("=") for part in text.split(";"))
        self.start = start
        self.frequency = fields["FREQ"]
        self.interval = int(fields.get("INTERVAL", 1))
        self.week_start = NAMES.index(fields.get("WKST", "MO"))
        self.days = [(int(text[:-2] or 0), NAMES.index(text[-2:])) for text in self.listed(fields, "BYDAY")]
        numbers = {
            name: [int(text) for text in self.listed(fields, name)]
            for name in ("BYSECOND", "BYMINUTE", "BYHOUR", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYMONTH", "BYSETPOS")
        }
        self.given = numbers
        hours, minutes, seconds = (
            numbers["BYHOUR"] or [start.hour],
            numbers["BYMINUTE"] or [start.minute],
            numbers["BYSECOND"] or [start.second],
        )
        self.times = sorted(product(set(hours), set(minutes), set(seconds)))

    @staticmethod
    def listed(fields: dict[str, str], name: str) -> list[str]:
        return fields[name].split(",") if name in fields else []

    # --- days ---

    def nth_fits(self, day: date, nth: int) -> bool:
        year_day, year_days, month_days = measures(day)
        if self.frequency == "MONTHLY" or self.given["BYMONTH"]:
            place, length = day.day - 1, month_days
        else:
            place, length = year_day - 1, year_days
        return nth in {place // 7 + 1, -((length - 1 - place) // 7) - 1}

    def passes(self, day: date) -> bool:
        """Whether a day matches all parts about days; missing parts come from the start."""
        given, weekday = self.given, day.weekday()
        year_day, year_days, month_days = measures(day)
        if given["BYMONTH"] and day.month not in given["BYMONTH"]:
            return False
        if given["BYMONTHDAY"] and not {day.day, day.day - month_days - 1} & set(given["BYMONTHDAY"]):
            return False
        if given["BYYEARDAY"] and not {year_day, year_day - year_days - 1} & set(given["BYYEARDAY"]):
            return False
        if given["BYWEEKNO"] and not set(week_number(day, self.week_start)) & set(given["BYWEEKNO"]):
            return False
        if self.days:
            return any(weekday == name and (nth == 0 or self.nth_fits(day, nth)) for nth, name in self.days)
        return self.start_passes(day)

    def start_passes(self, day: date) -> bool:
        """Whether a day of a rule without BYDAY matches the start."""
        given, start = self.given, self.start
        bare = not (given["BYMONTHDAY"] or given["BYYEARDAY"])
        if self.frequency == "WEEKLY" or (bare and given["BYWEEKNO"]):
            return day.weekday() == start.weekday()
        if bare and self.frequency == "YEARLY":
            return day.day == start.day and (bool(given["BYMONTH"]) or day.month == start.month)
        return not (bare and self.frequency == "MONTHLY") or day.day == start.day

    def period(self, day: date) -> int:
        """The number of the year, month, week or day."""
        match self.frequency:
            case "YEARLY":
                return day.year
            case "MONTHLY":
                return day.year * 12 + day.month
            case "WEEKLY":
                return (day.toordinal() - 1 - self.week_start) // 7
            case _:
                return day.toordinal()

    def walls(self, begin: date, end: date) -> Iterator[datetime]:
        """The wall times of a rule of DAILY or longer, over whole periods."""
        first = self.period(self.start.date())
        for number, days in groupby(map(date.fromordinal, range(begin.toordinal(), end.toordinal())), self.period):
            if (number - first) % self.interval == 0:
                passed = [day for day in days if self.passes(day)]
                yield from self.chosen([datetime.combine(day, time(*hms)) for day in passed for hms in self.times])

    def chosen(self, elements: list[Element]) -> list[Element]:
        """The elements of a period that BYSETPOS selects."""
        if not self.given["BYSETPOS"]:
            return elements
        size = len(elements)
        places = {place - 1 if place > 0 else size + place for place in self.given["BYSETPOS"]}
        return [elements[place] for place in sorted(places) if 0 <= place < size]

    # --- below DAILY: in exact time ---

    def exact(self, zone: ZoneInfo, begin: int, end: int) -> list[int]:
        """The instants of a rule below DAILY, over whole units; it checks every minute, and the seconds of some."""
        anchor = int(self.start.replace(tzinfo=zone).timestamp())
        offset = int((self.start - datetime.fromtimestamp(anchor, UTC).replace(tzinfo=None)).total_seconds())
        unit = UNIT_S[self.frequency]
        first = (anchor + offset) // unit
        units: dict[int, list[int]] = {}
        for minute in range(begin // 60 * 60, end + 1, 60):
            if not self.minute_passes(minute, offset, zone):
                continue
            for instant in range(max(minute, begin), min(minute + 60, end + 1)):
                number = (instant + offset) // unit
                if (number - first) % self.interval == 0 and self.second_passes(instant, offset):
                    units.setdefault(number, []).append(instant)
        chosen = [instant for number in sorted(units) for instant in self.chosen(units[number])]
        return [instant for instant in chosen if instant >= anchor]

    def minute_passes(self, instant: int, offset: int, zone: ZoneInfo) -> bool:
        """Whether the minute that begins at an instant matches all parts except those about seconds."""
        given = self.given
        if not given["BYMINUTE"] and self.frequency == "HOURLY" and (instant + offset) // 60 % 60 != self.start.minute:
            return False
        here = datetime.fromtimestamp(instant, zone)
        assert here.second == offset % 60 == 0, "all generated offsets are whole minutes"
        return (
            (not given["BYMINUTE"] or here.minute in given["BYMINUTE"])
            and (not given["BYHOUR"] or here.hour in given["BYHOUR"])
            and self.passes(here.date())
        )

    def second_passes(self, instant: int, offset: int) -> bool:
        if self.given["BYSECOND"]:
            return instant % 60 in self.given["BYSECOND"]
        return self.frequency == "SECONDLY" or (instant + offset) % 60 == self.start.second


@cache
def measures(day: date) -> tuple[int, int, int]:
    """The day of the year, and the lengths of its year and its month."""
    return day.timetuple().tm_yday, 366 if isleap(day.year) else 365, monthrange(day.year, day.month)[1]


@cache
def week_number(day: date, week_start: int) -> tuple[int, int]:
    """The number of a day's week, from the beginning and from the end of its week year."""
    monday = day - timedelta(days=(day.weekday() - week_start) % 7)
    middle = monday + timedelta(days=3)
    number = (middle - date(middle.year, 1, 1)).days // 7 + 1
    total = number
    while (middle + timedelta(days=7 * (total - number + 1))).year == middle.year:
        total += 1
    return number, number - total - 1


@cache
def library_zone(name: str) -> ZoneInfo:
    """The time zone in the standard library, from the same version of tzdata."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as content:
        return ZoneInfo.from_file(content, key=name)


def placed(walls: Iterable[datetime], zone: ZoneInfo, gap: str, overlap: str) -> list[int]:
    """The instants of wall times, by the standard library."""
    return chosen(both(walls, zone), gap, overlap)


def both(walls: Iterable[datetime], zone: ZoneInfo) -> list[tuple[int, int]]:
    """The instants of each wall time with fold 0 and fold 1, by the standard library."""
    return [
        (int(wall.replace(tzinfo=zone).timestamp()), int(wall.replace(tzinfo=zone, fold=1).timestamp()))
        for wall in walls
    ]


def chosen(pairs: Iterable[tuple[int, int]], gap: str, overlap: str) -> list[int]:
    """The instants that the policies select."""
    found: set[int] = set()
    for first, second in pairs:
        if first == second:  # no transition near it
            found.add(first)
        elif first > second:  # it does not exist; the fold selects the offset
            found |= {first} if gap == "forward" else set()
        elif overlap == "both":
            found |= {first, second}
        else:
            found.add(first if overlap == "first" else second)
    return sorted(found)
