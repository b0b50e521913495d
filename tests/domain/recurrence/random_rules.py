"""Random rules and expressions, from a seed."""

from datetime import datetime, timedelta
from random import Random

FREQUENCIES = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
NAMES = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/St_Johns",
    "Asia/Pyongyang",
    "America/Caracas",
    "Antarctica/Troll",
    "Asia/Tehran",
]


def start(random: Random) -> datetime:
    """A start between 1990 and 2025, often at a round time."""
    at = datetime(1990, 1, 1) + timedelta(days=random.randrange(13_000), seconds=random.randrange(86_400))  # noqa: DTZ001
    return at.replace(second=0, minute=random.choice([0, 30, at.minute])) if random.random() < 0.7 else at


def some(random: Random, low: int, high: int, most: int = 4) -> str:
    numbers = [number for number in range(low, high + 1) if number or low == 0]
    return ",".join(str(number) for number in random.sample(numbers, random.randint(1, min(most, len(numbers)))))


def interval(random: Random) -> list[str]:
    if random.random() < 0.5:
        return []
    return [f"INTERVAL={random.choice([1, 2, 2, 3, 4, 5, 6, 7, 10, 11, 13, 24, 30, 60, 90, 168, 400])}"]


def by_day(random: Random, *, nth: bool, wide: bool) -> str:
    """Weekdays, all plain or all numbered: other tests cover a mix."""
    names = random.sample(NAMES, random.randint(1, 4))
    if not nth or random.random() < 0.5:
        return ",".join(names)
    most = random.choice([2, 5, 20, 53] if wide else [1, 2, 5])
    numbers = [number for number in range(-most, most + 1) if number]
    return ",".join(f"{random.choice(numbers)}{name}" for name in names)


def time_parts(random: Random) -> list[str]:
    parts = [f"BYHOUR={some(random, 0, 23)}"] if random.random() < 0.35 else []
    parts += [f"BYMINUTE={some(random, 0, 59)}"] if random.random() < 0.35 else []
    return parts + ([f"BYSECOND={some(random, 0, 59)}"] if random.random() < 0.2 else [])


def rule(random: Random, frequencies: list[str]) -> str:
    """A valid rule by RFC 5545, without an end."""
    frequency = random.choice(frequencies)
    yearly, numbered = frequency == "YEARLY", frequency in {"YEARLY", "MONTHLY"}
    parts = [f"FREQ={frequency}", *interval(random), *time_parts(random)]
    weeks = yearly and random.random() < 0.2
    if weeks:
        parts.append(f"BYWEEKNO={some(random, -51, 53)}")
    if random.random() < (0.3 if yearly else 0.15):
        parts.append(f"BYMONTH={some(random, 1, 12)}")
    if frequency != "WEEKLY" and random.random() < (0.3 if numbered else 0.15):
        parts.append(f"BYMONTHDAY={some(random, -31, 31, 8)}")
    if frequency in {"YEARLY", "HOURLY", "MINUTELY", "SECONDLY"} and random.random() < 0.12:
        parts.append(f"BYYEARDAY={some(random, -366, 366, 30)}")
    if weeks or random.random() < 0.35:
        wide = yearly and not any(part.startswith("BYMONTH=") for part in parts)
        parts.append(f"BYDAY={by_day(random, nth=numbered and not weeks, wide=wide)}")
    if any(part.startswith("BY") for part in parts) and random.random() < 0.25:
        parts.append(f"BYSETPOS={some(random, -6, 6, 3)}")
    if random.random() < 0.3:
        parts.append(f"WKST={random.choice(NAMES)}")
    return ";".join(parts)


def field(random: Random, low: int, high: int) -> str:
    """A cron field."""
    kind = random.random()
    if kind < 0.4:
        return "*"
    if kind < 0.5:
        return f"*/{random.randint(1, high - low + 1)}"
    if kind < 0.6:
        first = random.randint(low, high)
        return f"{first}-{random.randint(first, high)}"
    if kind < 0.7:
        first = random.randint(low, high - 1)
        return f"{first}-{random.randint(first + 1, high)}/{random.randint(1, 7)}"
    if kind < 0.75:
        return f"{random.randint(low, high)}/{random.randint(1, min(9, high - low + 1))}"
    return some(random, low, high, 5)


def expression(random: Random) -> str:
    """A cron expression."""
    days = random.choice(["L", "LW", "L,15"]) if random.random() < 0.1 else field(random, 1, 31)
    weekdays = field(random, 0, 6)
    if random.random() < 0.15:
        weekdays = random.choice(["MON-FRI", "5L", "FRI#2", "1#1,3#5", "SUN,TUE", "7", "0L"])
    months = random.choice(["JAN,JUN", "MAR-MAY"]) if random.random() < 0.1 else field(random, 1, 12)
    words = [field(random, 0, 59), field(random, 0, 23), days, months, weekdays]
    return " ".join([field(random, 0, 59), *words] if random.random() < 0.2 else words)
