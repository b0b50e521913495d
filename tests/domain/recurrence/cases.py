"""Random rules, each with our answer and that of another implementation.

These are dateutil (FREQ=DAILY and longer, in UTC), cronsim (in UTC), and our brute-force oracle for rules in time
zones. Documented differences are not generated, or are left out and counted as such.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from random import Random
from typing import NamedTuple

import msgspec
from cronsim import CronSim, CronSimError
from dateutil.rrule import rrule, rrulestr

from tests.domain.recurrence import random_rules, text_api
from tests.domain.recurrence.oracle import Oracle, library_zone, placed
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.rule import Moment, Recurrence, Rule
from tidings.domain.recurrence.timezone import Zone, zone_named

COARSE = random_rules.FREQUENCIES[:4]
FINE = random_rules.FREQUENCIES[4:]
SPAN_S = {"HOURLY": 24 * 3_600, "MINUTELY": 6 * 3_600, "SECONDLY": 2 * 3_600}
BUSY_S = 2_400  # a long enough range for a rule that occurs every second
# Documented: dateutil has a week 53 in years without one. These weeks are compared with our oracle.
LAST_WEEKS = re.compile(r"BYWEEKNO=[^;]*\b5[23]\b")
DENSE = 12  # with more times of day than this, fewer days are compared


class Case(NamedTuple):
    """A rule, both answers, and the name of the other implementation: empty if nothing can be compared."""

    what: str
    ours: list[int]
    theirs: list[int]
    oracle: str = ""


def against_dateutil(random: Random) -> Case:
    """The first occurrences of a rule, within some years, compared with dateutil."""
    start, text = random_rules.start(random), random_rules.rule(random, COARSE)
    while LAST_WEEKS.search(text):
        text = random_rules.rule(random, COARSE)
    years = random.choice([2, 5, 30]) if text.startswith(("FREQ=YEARLY", "FREQ=MONTHLY")) else 1
    end = start + timedelta(days=366 * years)
    rule = Rule(rrule=text, start=text_api.seconds(start))
    if not compiled(rule).through(text_api.seconds(end)):
        return never(text, start, end)
    theirs = [text_api.seconds(at) for at in islice(rrule_of(text, start, end), 60)]
    last = theirs[-1] if len(theirs) == 60 else text_api.seconds(end)
    ours = text_api.between(rule, 0, last)
    if text.startswith("FREQ=WEEKLY") and "BYSETPOS" in text:
        ours, theirs = ([at for at in found if at >= second_week(text, start)] for found in (ours, theirs))
    return Case(f"{text} from {start}", ours + agrees(random, rule, ours), theirs, "dateutil")


def second_week(text: str, start: datetime) -> int:
    """Documented: with BYSETPOS, dateutil begins the first week at the start; we count whole weeks."""
    week_start = random_rules.NAMES.index(text.partition("WKST=")[2] or "MO")
    day = start.date() + timedelta(days=7 - (start.weekday() - week_start) % 7)
    return text_api.seconds(datetime(day.year, day.month, day.day))  # noqa: DTZ001 wall time


def rrule_of(text: str, start: datetime, end: datetime) -> rrule:
    """The rule in dateutil, with an end, without which it may not return."""
    parsed = rrulestr(text, dtstart=start)
    assert isinstance(parsed, rrule)
    return parsed.replace(until=end)


def never(text: str, start: datetime, end: datetime) -> Case:
    """A rule without an occurrence, for which dateutil may not return: our oracle checks every day of some years."""
    end = min(end, start + timedelta(days=366 * 6))
    walls = Oracle(text, start).walls(date(start.year - 1, 12, 24), date(end.year + 1, 1, 8))
    found = [text_api.seconds(at) for at in walls if start <= at <= end]
    return Case(f"{text} from {start}", [], found, "every day")


def against_cronsim(random: Random) -> Case:
    """The next occurrences of an expression after an instant, compared with cronsim."""
    since, text = random_rules.start(random).replace(tzinfo=UTC), random_rules.expression(random)
    end = since + timedelta(days=1_500)
    theirs = []
    try:
        for at in islice(CronSim(text, since - timedelta(seconds=1)), 40):
            if at > end:
                break
            theirs.append(text_api.seconds(at))
    except CronSimError:
        return Case(text, [], [])  # it refuses days that no month has; so do we, which other tests check
    except StopIteration:
        pass
    cron = text_api.cron(text, since)
    last = theirs[-1] if len(theirs) == 40 else text_api.seconds(end)
    ours = text_api.between(cron, 0, last)
    return Case(f"{text} after {since}", ours + agrees(random, cron, ours), theirs, "cronsim")


def against_days(random: Random) -> Case:
    """FREQ=DAILY and longer in time zones, with every policy: the oracle checks every day of some months."""
    start, text, zone = random_rules.start(random), random_rules.rule(random, COARSE), random.choice(random_rules.ZONES)
    gap, overlap = random.choice(["forward", "skip"]), random.choice(["first", "second", "both"])
    if random.random() < 0.4:
        start, text = near_transition(random, zone, text)
    oracle, place = Oracle(text, start), library_zone(zone)
    first = start.date() + timedelta(days=random.choice([0, 0, 200, 3_000]))
    span = 500 if text.startswith("FREQ=YEARLY") else 120 if len(oracle.times) <= DENSE else 40
    begin, end = first - timedelta(days=40), first + timedelta(days=span + 40)
    if text.startswith("FREQ=YEARLY"):  # whole periods, for BYSETPOS
        begin, end = date(first.year, 1, 1), date(end.year + 1, 1, 1)
    rule = Rule(rrule=text, start=text_api.seconds(start), zone=zone, fold=0, gap=gap, overlap=overlap)  # type: ignore[arg-type]
    anchor = int(start.replace(tzinfo=place).timestamp())
    low = max(anchor, text_api.seconds(datetime(first.year, first.month, first.day, tzinfo=UTC)))
    high = low + span * 86_400
    near = (wall for wall in oracle.walls(begin, end) if low <= text_api.seconds(wall) + 172_800 <= high + 345_600)
    theirs = [at for at in placed(near, place, gap, overlap) if low <= at <= high]
    ours = text_api.between(rule, low, high)
    what = f"{text} from {start} {zone} {gap} {overlap}"
    return Case(what, ours + agrees(random, rule, ours), theirs, "every day")


def near_transition(random: Random, zone: str, text: str) -> tuple[datetime, str]:
    """A start some days before clocks change, and times of day around the change."""
    table = zone_named(zone)
    table.segment(2_000_000_000)  # extend the table, so that the result does not depend on earlier calls
    places = [place for place, at in enumerate(table.starts) if 315_532_800 < at < 2_000_000_000]
    place = random.choice(places)
    change = datetime.fromtimestamp(table.starts[place], UTC) + timedelta(seconds=table.offsets[place - 1])
    near = change.replace(tzinfo=None) + timedelta(minutes=random.choice([-30, -1, 0, 1, 15, 30, 45, 60, 90]))
    start = near - timedelta(days=random.choice([0, 1, 2, 30]))
    kept = ";".join(part for part in text.split(";") if not part.startswith(("BYHOUR", "BYMINUTE")))
    hours = sorted({change.hour, (change.hour + 1) % 24, (change.hour - 1) % 24})
    return start, f"{kept};BYHOUR={','.join(str(hour) for hour in hours)};BYMINUTE=0,15,30,59"


def against_seconds(random: Random) -> Case:
    """Rules below DAILY in time zones: the oracle checks every second of some hours, often around a transition."""
    start, text, zone = random_rules.start(random), random_rules.rule(random, FINE), random.choice(random_rules.ZONES)
    table, oracle = zone_named(zone), Oracle(text, start)
    anchor = int(start.replace(tzinfo=library_zone(zone)).timestamp())
    low = anchor + random.choice([0, 0, 100_000, 40_000_000])
    if random.random() < 0.4 and len(table.starts) > table.segment(anchor) + 1:
        low = max(anchor, table.starts[table.segment(anchor) + 1] - 3_600)
    elif random.random() < 0.8:
        low = on_a_day(random, oracle, low)
    offset = text_api.seconds(start) - anchor
    low = (low + offset) // 3_600 * 3_600 - offset  # whole hours on the anchor's clock, for BYSETPOS
    if re.fullmatch(r"FREQ=SECONDLY(;INTERVAL=[12])?(;BY(HOUR|DAY|MONTH)=[^;]*)*(;WKST=..)?", text):
        low, high = low + 2_400, low + 2_400 + BUSY_S - 1
    else:
        high = low + SPAN_S[oracle.frequency] - 1
    if "BYSETPOS" in text and (cut_hour(table, low, high) or moved_hour(table, offset, low, text)):
        return Case(text, [], [])
    theirs = [at for at in oracle.exact(library_zone(zone), low, high) if low <= at <= high]
    rule = Rule(rrule=text, start=text_api.seconds(start), zone=zone)
    ours = text_api.between(rule, low, high)
    return Case(f"{text} from {start} {zone}", ours + agrees(random, rule, ours), theirs, "every second")


def on_a_day(random: Random, oracle: Oracle, since: int) -> int:
    """An instant on the next day that the rule allows: most other days have nothing to compare."""
    first = datetime.fromtimestamp(since, UTC).toordinal()
    days = (day for day in range(first, first + 800) if oracle.passes(date.fromordinal(day)))
    day = next(days, first)
    hour = random.choice(oracle.given["BYHOUR"] or range(24))
    return max(since, text_api.seconds(datetime.fromordinal(day)) + hour * 3_600 - random.choice([0, 7_200]))


def cut_hour(table: Zone, low: int, high: int) -> bool:
    """Documented: where the offset changes by part of an hour, BYSETPOS selects separately before and after."""
    first, last = table.segment(low), table.segment(high)
    return any((table.offsets[place + 1] - table.offsets[place]) % 3_600 for place in range(first, last))


def moved_hour(table: Zone, offset: int, low: int, text: str) -> bool:
    """Documented: once the offset differs by part of an hour, BYSETPOS counts all minutes of the start's hour.

    That includes minutes whose local hour or day the rule does not allow.
    """
    return text.startswith("FREQ=HOURLY") and bool((table.offset_at(low) - offset) % 3_600)


def agrees(random: Random, recurrence: Recurrence, found: list[int]) -> list[int]:
    """The instants, negated, at which other answers of the engine do not fit those it listed; normally none."""
    moments = compiled(recurrence)
    wrong = []
    for at in random.sample(found, min(3, len(found))):
        number = moments.through(at)
        here = bisect_right(found, at)
        if moments.at(number) != at or (here < len(found) and moments.at(number + 1) != found[here]):
            wrong.append(-at)
        if isinstance(recurrence, Rule) and random.random() < 0.1:
            wrong += excepted(recurrence, at, number)
    return wrong


def excepted(rule: Rule, at: int, number: int) -> list[int]:
    """Check that an EXDATE removes one occurrence, an RDATE at the same instant adds none, and COUNT ends there."""
    without = compiled(msgspec.structs.replace(rule, excepted=(Moment(at, "utc"),)))
    with_it = compiled(msgspec.structs.replace(rule, added=(Moment(at, "utc"),)))
    counted = compiled(msgspec.structs.replace(rule, rrule=f"{rule.rrule};COUNT={number}"))
    fits = without.at(number) == compiled(rule).at(number + 1) and without.through(at) == number - 1
    fits = fits and with_it.at(number) == at and counted.at(number) == at and counted.at(number + 1) is None
    return [] if fits else [-at]


# Shares of 20 rules.
FAMILIES: tuple[tuple[int, Callable[[Random], Case]], ...] = (
    (8, against_dateutil),
    (5, against_cronsim),
    (4, against_days),
    (3, against_seconds),
)
TURN = [family for share, family in FAMILIES for _ in range(share)]


def case(seed: int, number: int) -> Case:
    """The case with this number of a seed."""
    return TURN[number % len(TURN)](Random(f"{seed}/{number}"))
