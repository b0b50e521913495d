"""50,000 recurring schedules due at one instant: released, and the next occurrence of each stored."""

import asyncio
import random
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from bench.burst import ATTEMPTS, READ_S_MAX, Burst, Leaving, Missed, Pace, burst_on, read
from bench.engines import engine_on, remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import batch_sizes, request
from bench.rounds import Rounds
from bench.screen import note
from tests.domain.recurrence.random_rules import ZONES
from tidings.domain.recurrence.preview import local_text
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import Request, Timing
from tidings.engine import Engine

TITLE = "50,000 recurring schedules due at one instant, rows/s until the last is read; the limit is as many one-shots"
ROWS = 50_000

BARS = (
    Bar("recurring", "ratio", ">=", 0.4),
    Bar("first_ms", "median", "<=", 50),
)

_SECOND_US = 1_000_000
_RULES = (
    *("FREQ=DAILY", "FREQ=DAILY;INTERVAL=3", "FREQ=WEEKLY", "FREQ=WEEKLY;INTERVAL=2", "FREQ=MONTHLY", "FREQ=YEARLY"),
    *("FREQ=HOURLY", "FREQ=HOURLY;INTERVAL=7", "FREQ=MINUTELY;INTERVAL=15", "FREQ=MINUTELY;INTERVAL=90"),
    *(
        "FREQ=SECONDLY;INTERVAL=3600",
        "FREQ=MONTHLY;BYDAY=-1FR,{day}",
        "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;COUNT=100",
    ),
    *("FREQ=YEARLY;BYMONTH=1,2,3,4,5,6,7,8,9,10,11,12", "FREQ=DAILY;UNTIL=20991231T000000Z"),
)
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def run(options: Options) -> Report:
    """Recurring schedules and one-shots in every round."""
    with workspace() as folder:
        return run_loop(_measure(options, folder))


async def _measure(options: Options, folder: Path) -> Report:
    rounds = Rounds("recurring_burst")
    rows, pace, once_pace = options.rows(ROWS), Pace(4_000), Pace()
    for number in range(1, options.rounds + 1):
        note(f"recurring_burst: round {number} of {options.rounds}")
        recurring = await _recurring_on(folder / "recurring.db", rows, pace)
        remove(folder / "recurring.db")
        once = await burst_on(folder / "once.db", rows, once_pace, "once")
        remove(folder / "once.db")
        figures = {"recurring": recurring.per_s, "first_ms": recurring.first_ms}
        rounds.add(figures, {"recurring": once.per_s}, {"recurring": recurring.per_s / once.per_s})
    return rounds.report()


async def _recurring_on(path: Path, rows: int, pace: Pace) -> Burst:
    """One burst on a store; again, from further ahead, where scheduling it took too long."""
    for attempt in range(ATTEMPTS):
        try:
            async with engine_on(path) as engine:
                return await _burst(engine, rows, pace, f"recurring-{attempt}")
        except Missed:
            note("recurring_burst: the machine was too slow to schedule it in time, once more")
            remove(path)
    raise RuntimeError(f"{rows:,} schedules could not be made before they were due, {ATTEMPTS} times")


async def _burst(engine: Engine, rows: int, pace: Pace, topic: str) -> Burst:
    due = -(-(engine.clock.now() + pace.ahead_us(rows)) // _SECOND_US) * _SECOND_US
    took = await send(engine, _batches(rows, due, topic))
    pace.learn(rows, took.seconds)
    settle()
    if engine.clock.now() > due - _SECOND_US // 10:
        raise Missed
    leaving = Leaving()
    engine.listen(leaving)
    first, last = await asyncio.wait_for(read(engine, rows, topic), READ_S_MAX)
    pending = (await engine.count()).pending
    assert pending == rows, f"{rows:,} were to go on, {pending:,} do"
    return Burst(rows / ((last - due) / _SECOND_US), (first - due) / 1_000, leaving.rows_a_commit)


def _batches(rows: int, due: int, topic: str) -> Iterator[list[Request]]:
    """Batches of schedules of mixed rules and zones that all begin at one instant."""
    for size in batch_sizes(rows):
        yield [_request(due, topic) for _ in range(size)]


def _request(due: int, topic: str) -> Request:
    zone = random.choice(("UTC", *ZONES))
    wall = local_text(zone, due)
    if random.random() < 0.2:
        hour, minute, second = wall[11:13], wall[14:16], wall[17:19]
        timing = Timing(cron=f"{int(second)} {int(minute)} {int(hour)} * * *", zone=zone)
    else:
        day = _DAYS[date.fromisoformat(wall[:10]).weekday()]  # in some zones it is tomorrow already
        rule = random.choice(_RULES).format(day=day)
        timing = Timing(rrule=rule, zone=zone, start=format_instant(due)[:19] + "Z")
    plain = request(due, topic=topic)
    return Request(topic, plain.value, None, plain.headers, timing=timing)
