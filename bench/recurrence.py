"""The next occurrence after a random moment, over a corpus of rules; dateutil beside it, with its time-outs."""

import gc
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import Random
from statistics import quantiles

from dateutil.rrule import rrulestr

from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tests.domain.recurrence import random_rules
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_rule
from tidings.domain.recurrence.rule import Rule
from tidings.domain.recurrence.timezone import names, zone_named
from tidings.domain.schedules.when import SECOND_US, When, last_index_at_or_before, occurrence

TITLE = "next occurrence after random moments, over a corpus of rules, us; cold is a rule's very first question"
RULES = 1_200
MOMENTS = 50
DATEUTIL_RULES = 60
DATEUTIL_S_MAX = 0.25

BARS = (
    Bar("median_us", "median", "<=", 50),
    Bar("p99_us", "median", "<=", 500),
    Bar("worst_us", "median", "<=", 5_000),
    Bar("cold_worst_us", "median", "<=", 5_000),
)

_NOW = 1_795_000_000 * SECOND_US  # November 2026
_YEAR_US = 31_557_600 * SECOND_US
_ZONES = ["UTC", *random_rules.ZONES]
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 wall time


def run(options: Options) -> Report:
    """The corpus in every round, dateutil in the first."""
    rounds = Rounds("recurrence")
    for name in sorted(names()):
        zone_named(name)  # a process reads its zones once
    for number in range(1, options.rounds + 1):
        note(f"recurrence: round {number} of {options.rounds}")
        rounds.add(_round(options, Random(number)))
    rounds.put(_dateutil(corpus(options.rows(DATEUTIL_RULES), Random(1)), Random(1)))
    return rounds.report()


def corpus(rules: int, random: Random) -> list[When]:
    """Rules of every FREQ, sparse and dense, in zones, with anchors up to 20 years old, and cron expressions."""
    found: list[When] = []
    while len(found) < rules:
        start = datetime(2006, 11, 16) + timedelta(seconds=random.randrange(20 * 31_557_600))  # noqa: DTZ001 wall time
        zone = random.choice(_ZONES)
        begin = start.isoformat(timespec="seconds")
        terms = Terms(start=begin, zone=zone, exdates=_dates(random), rdates=_dates(random))
        try:
            if random.random() < 0.15:
                found.append(read_cron(random_rules.expression(random), _NOW - 10 * _YEAR_US, terms))
            else:
                found.append(
                    read_rule(_ended(random, random_rules.rule(random, random_rules.FREQUENCIES)), _NOW, terms)
                )
        except Invalid:
            continue  # a random rule that never occurs
    return found


def _dates(random: Random) -> list[str]:
    if random.random() < 0.9:
        return []
    days = [datetime(2026, 1, 1) + timedelta(hours=random.randrange(8_760)) for _ in range(5)]  # noqa: DTZ001 wall time
    return [day.isoformat(timespec="seconds") for day in days]


def _ended(random: Random, text: str) -> str:
    return f"{text};COUNT={random.choice([1_000, 100_000, 10**8])}" if random.random() < 0.2 else text


def _round(options: Options, random: Random) -> dict[str, float]:
    whens = corpus(options.rows(RULES), random)
    _forget()
    gc.collect()
    gc.disable()  # its walk over everything that was ever made is no rule's cost
    cold: list[float] = []
    warm: list[float] = []
    worst = 0.0
    for when in whens:
        cold.append(_timed(when, _moment(random)))
        taken = [_timed(when, _moment(random)) for _ in range(MOMENTS)]
        warm += taken
        worst = max(worst, *taken)
    gc.enable()
    cuts = quantiles(warm, n=100)
    return {
        "median_us": cuts[49],
        "p99_us": cuts[98],
        "worst_us": worst,
        "cold_median_us": sorted(cold)[len(cold) // 2],
        "cold_worst_us": max(cold),
        "rules": len(whens),
    }


def _forget() -> None:
    """Clear the caches that reading the corpus has filled, so that the first queries are cold."""
    from tidings.domain.recurrence.compiler import forget

    forget()


def _moment(random: Random) -> int:
    return _NOW + random.randrange(-5 * _YEAR_US, 5 * _YEAR_US)


def _timed(when: When, moment: int) -> float:
    started = time.thread_time_ns()
    occurrence(when, last_index_at_or_before(when, moment) + 1)
    return (time.thread_time_ns() - started) / 1_000


class TimedOut(Exception):
    """It did not answer in time."""


def _dateutil(whens: list[When], random: Random) -> dict[str, float]:
    """The same question to dateutil, in UTC; queries that take too long are cancelled and counted."""
    taken: list[float] = []
    given_up = 0
    rules = [when for when in whens if isinstance(when, Rule)]
    for when in rules:
        try:
            parsed = rrulestr(when.rrule, dtstart=_EPOCH + timedelta(seconds=when.start))
        except ValueError:
            continue  # it refuses what occurs in summer time only
        after = _EPOCH + timedelta(microseconds=_moment(random))
        started = time.thread_time_ns()
        try:
            with _at_most(DATEUTIL_S_MAX):
                parsed.after(after)
        except TimedOut:
            given_up += 1
        taken.append((time.thread_time_ns() - started) / 1_000)
    return {"dateutil_median_us": sorted(taken)[len(taken) // 2], "dateutil_given_up": given_up / len(taken)}


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(_signal: int, _frame: object) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
