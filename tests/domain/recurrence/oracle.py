"""An independent engine, slow and plain: it looks at every day, or every second, and asks whether it belongs.

It shares no code with the one under test and takes zones from the standard library.
"""

from calendar import isleap, monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib.resources import files
from itertools import product
from zoneinfo import ZoneInfo

NAMES = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
FREQUENCIES = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
UNIT_S = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}


class Oracle:
    """A rule, read without any checks."""

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

    @staticmethod
    def listed(fields: dict[str, str], name: str) -> list[str]:
        return fields[name].split(",") if name in fields else []

    # --- days ---

    def week_number(self, day: date) -> tuple[int, int]:
        """The number of a day's week from the front and from the back of its week year."""
        monday = day - timedelta(days=(day.weekday() - self.week_start) % 7)
        middle = monday + timedelta(days=3)
        number = (middle - date(middle.year, 1, 1)).days // 7 + 1
        total = number
        while (middle + timedelta(days=7 * (total - number + 1))).year == middle.year:
            total += 1
        return number, number - total - 1

    def nth_fits(self, day: date, nth: int) -> bool:
        if self.frequency == "MONTHLY" or self.given["BYMONTH"]:
            place, length = day.day - 1, monthrange(day.year, day.month)[1]
        else:
            place, length = day.timetuple().tm_yday - 1, 366 if isleap(day.year) else 365
        return nth in {place // 7 + 1, -((length - 1 - place) // 7) - 1}

    def passes(self, day: date) -> bool:
        """Whether a day passes every part that speaks of days; what is open comes from the start."""
        given, start = self.given, self.start
        year_days = 366 if isleap(day.year) else 365
        year_day = day.timetuple().tm_yday
        month_days = monthrange(day.year, day.month)[1]
        bare = not (self.days or given["BYMONTHDAY"] or given["BYYEARDAY"])
        checks = [
            not given["BYMONTH"] or day.month in given["BYMONTH"],
            not given["BYMONTHDAY"] or bool({day.day, day.day - month_days - 1} & set(given["BYMONTHDAY"])),
            not given["BYYEARDAY"] or bool({year_day, year_day - year_days - 1} & set(given["BYYEARDAY"])),
            not given["BYWEEKNO"] or bool(set(self.week_number(day)) & set(given["BYWEEKNO"])),
            not self.days
            or any(day.weekday() == name and (nth == 0 or self.nth_fits(day, nth)) for nth, name in self.days),
        ]
        if bare and given["BYWEEKNO"]:
            checks.append(day.weekday() == start.weekday())
        elif bare and self.frequency in {"YEARLY", "MONTHLY"}:
            checks.append(day.day == start.day)
            if self.frequency == "YEARLY":
                checks.append(bool(given["BYMONTH"]) or day.month == start.month)
        elif self.frequency == "WEEKLY" and not self.days:
            checks.append(day.weekday() == start.weekday())
        return all(checks)

    def period(self, day: date) -> int:
        """The number of the year, month, week or day since 1970 or so."""
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
        """The wall times of a rule of DAILY or coarser, over whole periods."""
        given, start = self.given, self.start
        hours, minutes, seconds = (
            given["BYHOUR"] or [start.hour],
            given["BYMINUTE"] or [start.minute],
            given["BYSECOND"] or [start.second],
        )
        times = sorted(product(set(hours), set(minutes), set(seconds)))
        first = self.period(start.date())
        periods: dict[int, list[datetime]] = {}
        for ordinal in range(begin.toordinal(), end.toordinal()):
            day = date.fromordinal(ordinal)
            number = self.period(day)
            if (number - first) % self.interval == 0 and self.passes(day):
                periods.setdefault(number, []).extend(datetime.combine(day, time(*hms)) for hms in times)
        for number in sorted(periods):
            yield from self.chosen(periods[number])

    def chosen(self, elements: list[datetime]) -> list[datetime]:
        if not self.given["BYSETPOS"]:
            return elements
        size = len(elements)
        places = {place - 1 if place > 0 else size + place for place in self.given["BYSETPOS"]}
        return [elements[place] for place in sorted(places) if 0 <= place < size]

    # --- below DAILY: in exact time ---

    def exact(self, zone: ZoneInfo, begin: int, end: int) -> list[int]:
        """The instants of a rule below DAILY, by a look at every second."""
        anchor = self.start.replace(tzinfo=zone).astimezone(UTC)
        offset = int((self.start - anchor.replace(tzinfo=None)).total_seconds())
        unit = UNIT_S[self.frequency]
        origin = int(anchor.timestamp()) + offset
        units: dict[int, list[int]] = {}
        for instant in range(begin, end + 1):
            number = (instant + offset) // unit
            if (number - origin // unit) % self.interval == 0 and self.second_passes(instant, offset, zone):
                units.setdefault(number, []).append(instant)
        found: list[int] = []
        for number in sorted(units):
            found += self.places(units[number])
        return [instant for instant in found if instant >= int(anchor.timestamp())]

    def places(self, elements: list[int]) -> list[int]:
        if not self.given["BYSETPOS"]:
            return elements
        size = len(elements)
        places = {place - 1 if place > 0 else size + place for place in self.given["BYSETPOS"]}
        return [elements[place] for place in sorted(places) if 0 <= place < size]

    def second_passes(self, instant: int, offset: int, zone: ZoneInfo) -> bool:
        grid = instant + offset
        given, start = self.given, self.start
        if not given["BYSECOND"] and self.frequency != "SECONDLY" and grid % 60 != start.second:
            return False
        if not given["BYMINUTE"] and self.frequency == "HOURLY" and grid // 60 % 60 != start.minute:
            return False
        here = datetime.fromtimestamp(instant, zone)
        return (
            (not given["BYSECOND"] or here.second in given["BYSECOND"])
            and (not given["BYMINUTE"] or here.minute in given["BYMINUTE"])
            and (not given["BYHOUR"] or here.hour in given["BYHOUR"])
            and self.passes(here.date())
        )


@cache
def library_zone(name: str) -> ZoneInfo:
    """The zone as the standard library reads it, from the same version of the data."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as content:
        return ZoneInfo.from_file(content, key=name)


def placed(walls: Iterator[datetime], zone: ZoneInfo, gap: str, overlap: str) -> list[int]:
    """The instants of wall times, by asking the standard library about each."""
    found: set[int] = set()
    for wall in walls:
        first, second = (int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
        exists = datetime.fromtimestamp(first, zone).replace(tzinfo=None, fold=0) == wall
        if not exists:
            found |= {first} if gap == "forward" else set()
        elif overlap == "both":
            found |= {first, second}
        else:
            found.add(first if overlap == "first" else second)
    return sorted(found)
