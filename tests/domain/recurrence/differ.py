"""`python -m tests.domain.recurrence.differ --rules 1000000`: random rules, our answers against others'.

Four families in turn: dateutil (DAILY and coarser, UTC), cronsim (UTC), and our plain oracle for rules in zones, of
DAILY and coarser and below. Every difference is printed with its seed; the documented ones are not generated.
"""

import argparse
import re
import sys
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from random import Random

from cronsim import CronSim, CronSimError
from dateutil.rrule import rrule, rrulestr

from tests.domain.recurrence import asking, making
from tests.domain.recurrence.oracle import Oracle, library_zone, placed
from tidings.domain.recurrence.compiling import compiled
from tidings.domain.recurrence.parts import Moment, Recurrence, Rule
from tidings.domain.recurrence.zones import Zone, zone_named

COARSE = making.FREQUENCIES[:4]
FINE = making.FREQUENCIES[4:]
# Documented: dateutil counts a week 53 in years that have none. Our oracle does these weeks.
LAST_WEEKS = re.compile(r"BYWEEKNO=[^;]*\b5[23]\b")
Case = tuple[str, list[int], list[int]]


def against_dateutil(random: Random) -> Case:
    """The first occurrences, and those after some later moment, over a dozen years."""
    start, text = making.start(random), making.rule(random, COARSE)
    while LAST_WEEKS.search(text):
        text = making.rule(random, COARSE)
    years = random.choice([2, 5, 30]) if text.startswith(("FREQ=YEARLY", "FREQ=MONTHLY")) else 1
    end = start + timedelta(days=366 * years)
    if not asking.between(Rule(text, asking.seconds(start)), 0, asking.seconds(end)):
        return never(text, start)
    theirs = [asking.seconds(at) for at in islice(rrule_of(text, start, end), 60)]
    rule = Rule(text, asking.seconds(start))
    last = theirs[-1] if len(theirs) == 60 else asking.seconds(end)
    ours = asking.between(rule, 0, last)
    if text.startswith("FREQ=WEEKLY") and "BYSETPOS" in text:
        ours, theirs = ([at for at in found if at >= second_week(text, start)] for found in (ours, theirs))
    return f"{text} from {start}", ours + agrees(random, rule, ours), theirs


def second_week(text: str, start: datetime) -> int:
    """Documented: for BYSETPOS dateutil cuts the first week at the start; we count in whole weeks."""
    week_start = making.NAMES.index(text.partition("WKST=")[2] or "MO")
    day = start.date() + timedelta(days=7 - (start.weekday() - week_start) % 7)
    return asking.seconds(datetime(day.year, day.month, day.day))  # noqa: DTZ001 wall time


def rrule_of(text: str, start: datetime, end: datetime) -> rrule:
    """The rule as dateutil reads it, with an end, without which it may never return."""
    parsed = rrulestr(text, dtstart=start)
    assert isinstance(parsed, rrule)
    return parsed.replace(until=end)


def never(text: str, start: datetime) -> Case:
    """Rules without an occurrence, on which dateutil does not return: our oracle looks at two years of them."""
    walls = Oracle(text, start).walls(date(start.year - 1, 12, 24), date(start.year + 2, 1, 8))
    return (
        f"{text} from {start}",
        [],
        [asking.seconds(at) for at in walls if start <= at <= start + timedelta(days=366)],
    )


def against_cronsim(random: Random) -> Case:
    """The next occurrences after a moment."""
    since, text = making.start(random).replace(tzinfo=UTC), making.expression(random)
    end = since + timedelta(days=1_500)
    theirs = []
    try:
        for at in islice(CronSim(text, since - timedelta(seconds=1)), 40):
            if at > end:
                break
            theirs.append(asking.seconds(at))
    except CronSimError:
        return text, [], []  # it refuses days that no month has; so do we, with tests of our own
    except StopIteration:
        pass
    cron = asking.cron(text, since)
    last = theirs[-1] if len(theirs) == 40 else asking.seconds(end)
    ours = asking.between(cron, 0, last)
    return f"{text} after {since}", ours + agrees(random, cron, ours), theirs


def against_days(random: Random) -> Case:
    """Rules of DAILY and coarser in zones, with every policy: some months, with a look at every day."""
    start, text, zone = making.start(random), making.rule(random, COARSE), random.choice(making.ZONES)
    gap, overlap = random.choice(["forward", "skip"]), random.choice(["first", "second", "both"])
    if random.random() < 0.4:
        start, text = near_transition(random, zone, text)
    oracle, place = Oracle(text, start), library_zone(zone)
    first = start.date() + timedelta(days=random.choice([0, 0, 200, 3_000]))
    span = 500 if text.startswith("FREQ=YEARLY") else 120
    begin, end = first - timedelta(days=40), first + timedelta(days=span + 40)
    if text.startswith("FREQ=YEARLY"):  # whole periods, for BYSETPOS
        begin, end = date(first.year, 1, 1), date(end.year + 1, 1, 1)
    walls = oracle.walls(begin, end)
    rule = Rule(text, asking.seconds(start), zone, 0, gap, overlap)  # type: ignore[arg-type]
    anchor = int(start.replace(tzinfo=place).timestamp())
    low = max(anchor, asking.seconds(datetime(first.year, first.month, first.day, tzinfo=UTC)))
    high = low + span * 86_400
    theirs = [at for at in placed(walls, place, gap, overlap) if low <= at <= high]
    ours = asking.between(rule, low, high)
    return f"{text} from {start} {zone} {gap} {overlap}", ours + agrees(random, rule, ours), theirs


def near_transition(random: Random, zone: str, text: str) -> tuple[datetime, str]:
    """A start some days before clocks change, and times of day around the change."""
    table = zone_named(zone)
    table.segment(2_000_000_000)  # whatever was asked before, the table is known as far as this
    places = [place for place, at in enumerate(table.starts) if 315_532_800 < at < 2_000_000_000]
    place = random.choice(places)
    change = datetime.fromtimestamp(table.starts[place], UTC) + timedelta(seconds=table.offsets[place - 1])
    near = change.replace(tzinfo=None) + timedelta(minutes=random.choice([-30, -1, 0, 1, 15, 30, 45, 60, 90]))
    start = near - timedelta(days=random.choice([0, 1, 2, 30]))
    kept = ";".join(part for part in text.split(";") if not part.startswith(("BYHOUR", "BYMINUTE")))
    hours = sorted({change.hour, (change.hour + 1) % 24, (change.hour - 1) % 24})
    return start, f"{kept};BYHOUR={','.join(str(hour) for hour in hours)};BYMINUTE=0,15,30,59"


def against_seconds(random: Random) -> Case:
    """Rules below DAILY in zones: an hour or two, often around a transition, with a look at every second."""
    start, text, zone = making.start(random), making.rule(random, FINE), random.choice(making.ZONES)
    table = zone_named(zone)
    anchor = int(start.replace(tzinfo=library_zone(zone)).timestamp())
    low = anchor + random.choice([0, 0, 100_000, 40_000_000])
    if random.random() < 0.6 and len(table.starts) > table.segment(anchor) + 1:
        low = max(anchor, table.starts[table.segment(anchor) + 1] - 3_600)
    offset = asking.seconds(start) - anchor
    low = (low + offset) // 3_600 * 3_600 - offset  # whole hours on the anchor's clock, for BYSETPOS
    high = low + 2 * 3_600 - 1
    if "BYSETPOS" in text and cut_hour(table, low, high):
        return text, [], []
    theirs = [at for at in Oracle(text, start).exact(library_zone(zone), low, high) if low <= at <= high]
    rule = Rule(text, asking.seconds(start), zone)
    ours = asking.between(rule, low, high)
    return f"{text} from {start} {zone}", ours + agrees(random, rule, ours), theirs


def cut_hour(table: Zone, low: int, high: int) -> bool:
    """Documented: where clocks move by part of an hour, BYSETPOS chooses on each side of the change by itself."""
    first, last = table.segment(low), table.segment(high)
    return any((table.offsets[place + 1] - table.offsets[place]) % 3_600 for place in range(first, last))


def agrees(random: Random, recurrence: Recurrence, found: list[int]) -> list[int]:
    """Nothing if the engine's other answers fit what it listed; else the moments at which they do not."""
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
    """An EXDATE takes out one, an RDATE at the same moment changes nothing, COUNT ends there."""
    without = compiled(Rule(rule.rrule, rule.start, rule.zone, 0, rule.gap, rule.overlap, 0, (), (Moment(at, "utc"),)))
    with_it = compiled(Rule(rule.rrule, rule.start, rule.zone, 0, rule.gap, rule.overlap, 0, (Moment(at, "utc"),)))
    counted = compiled(Rule(f"{rule.rrule};COUNT={number}", rule.start, rule.zone, 0, rule.gap, rule.overlap))
    fits = without.at(number) == compiled(rule).at(number + 1) and without.through(at) == number - 1
    fits = fits and with_it.at(number) == at and counted.at(number) == at and counted.at(number + 1) is None
    return [] if fits else [-at]


FAMILIES: tuple[tuple[int, Callable[[Random], Case]], ...] = (
    (10, against_dateutil),
    (7, against_cronsim),
    (2, against_days),
    (1, against_seconds),
)
TURN = [family for share, family in FAMILIES for _ in range(share)]


def differences(rules: int, seed: int, say: Callable[[str], None] = lambda _text: None) -> list[str]:
    """Compare so many rules; answer what differs."""
    found = []
    for number in range(rules):
        family = TURN[number % len(TURN)]
        what, ours, theirs = family(Random(f"{seed}/{number}"))
        if ours != theirs:
            at = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), None)
            found.append(
                f"{family.__name__} {seed}/{number}: {what}: ours {len(ours)}, theirs {len(theirs)}, first {at}"
            )
        if number % 10_000 == 9_999:
            say(f"{number + 1:,} rules, {len(found)} differences")
    return found


def main() -> int:
    """Print every difference; exit code 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    found = differences(chosen.rules, chosen.seed, lambda text: print(text, file=sys.stderr, flush=True))
    print("\n".join(found))
    print(f"{chosen.rules:,} rules compared, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
