"""Parsing of what people write for *when*: instants, intervals, rules, cron expressions, local times."""

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tests.domain.recurrence import random_rules
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.schedules.iso8601 import parse_instant, parse_interval

TITLE = "parsing, texts/s; `new` is every text for the first time, the others come as producers send them, some often"
TEXTS = 100_000
NEW = 5_000

BARS = (
    Bar("at", "median", ">=", 100_000),
    Bar("every", "median", ">=", 20_000),
    Bar("rrule", "median", ">=", 20_000),
    Bar("cron", "median", ">=", 20_000),
)

_NOW = 1_795_000_000_000_000


def run(options: Options) -> Report:
    """Each form in every round."""
    rounds = Rounds("parse")
    for number in range(1, options.rounds + 1):
        note(f"parse: round {number} of {options.rounds}")
        rounds.add(_round(options, Random(number)))
    return rounds.report()


def _round(options: Options, random: Random) -> dict[str, float]:
    texts = options.rows(TEXTS)
    moments = [
        datetime(2026, 11, 20, tzinfo=UTC) + timedelta(microseconds=random.randrange(10**14)) for _ in range(texts)
    ]
    rules = _satisfiable([random_rules.rule(random, random_rules.FREQUENCIES) for _ in range(200)])
    crons = [f"{random.randrange(60)} {random.randrange(24)} * * {random.randrange(7)}" for _ in range(200)]
    new_rules = [
        f"{random_rules.rule(random, random_rules.FREQUENCIES)};COUNT={number + 1}"
        for number in range(options.rows(NEW))
    ]
    new_crons = list(dict.fromkeys(random_rules.expression(random) for _ in range(options.rows(NEW))))
    parse_rrule.cache_clear()
    parse_cron.cache_clear()
    berlin = Terms(zone="Europe/Berlin")
    walls = [f"{moment:%Y-%m-%d %H:%M}" for moment in moments[: texts // 10]]
    return {
        "at": _per_s(parse_instant, [moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for moment in moments]),
        "at_local": _per_s(lambda text: read_local(text, "Europe/Berlin"), walls),
        "every": _per_s(lambda text: parse_interval(text, _NOW), _intervals(random, texts // 4)),
        "rrule": _per_s(lambda text: read_rule(text, _NOW, berlin), random.choices(rules, k=texts // 4)),
        "cron": _per_s(lambda text: read_cron(text, _NOW, berlin), random.choices(crons, k=texts // 4)),
        "rrule_new": _per_s(parse_rrule, new_rules),
        "cron_new": _per_s(parse_cron, new_crons),
    }


def _satisfiable(rules: list[str]) -> list[str]:
    """Rules that occur at all; random ones often do not."""
    found = []
    for rule in rules:
        with contextlib.suppress(Invalid):
            read_rule(rule, _NOW, Terms(zone="Europe/Berlin"))
            found.append(rule)
    return found


def _intervals(random: Random, count: int) -> list[str]:
    start = datetime(2026, 11, 20, tzinfo=UTC)
    moments = [(start + timedelta(seconds=random.randrange(10**8))).isoformat() for _ in range(count)]
    return [f"R{random.randrange(1, 99)}/{moment}/PT{random.randrange(1, 60)}M" for moment in moments]


def _per_s(parse: Callable[[str], object], texts: Sequence[str]) -> float:
    started = time.perf_counter()
    for text in texts:
        parse(text)
    return len(texts) / (time.perf_counter() - started)
