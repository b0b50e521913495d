"""`kill -9` of a node under 500/s, 20 times, and clean stops: how soon its last lane is released again by another."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from uuid import UUID

import psycopg

from bench.engines import run as run_loop
from bench.fleet.site import Database, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import TENANT, request
from bench.rounds import Rounds
from bench.screen import note
from tidings.engine import Engine

TITLE = "seconds from the end of a node under 500/s until the last of its lanes is released again"
RATE = 500
KILLS = 4  # a round: 20 in the five that are usual
LANES_S_MAX = 30.0
DRAIN_S_MAX = 60.0
LOOK_S = 0.005
TOPIC = "takeover"
STEADY_S = 1.0  # between two ends

BARS = (
    Bar("killed_s_longest", "median", "<=", 5),
    Bar("stopped_s_longest", "median", "<=", 0.5),
    *(Bar(fault, "median", "<=", 0) for fault in ("lost", "twice", "early")),
)

_SECOND_US = 1_000_000
_LOOK = """
SELECT l.lane, l.token, coalesce(sum(p.next), 0)::bigint
FROM tidings.lane l LEFT JOIN tidings.partition p ON p.lane = l.lane GROUP BY 1, 2
"""
_OWNERS = "SELECT lane, node FROM tidings.lane"
_FAULTS = """
SELECT count(*) - count(DISTINCT id), count(*) FILTER (WHERE released < due), count(*) FROM tidings.log
"""


def run(options: Options) -> Report:
    """Kills and clean stops in turns, while the flow goes on."""
    rounds = Rounds("takeover")
    ends = max(1, round(KILLS * options.scale))
    killed, stopped = [], []
    with opened() as site, site.database("takeover") as database, _flowing(database) as flowing:
        for number in range(1, options.rounds + 1):
            note(f"takeover: round {number} of {options.rounds}")
            kills = [_end(database, signal.SIGKILL) for _ in range(ends)]
            stops = [_end(database, signal.SIGTERM) for _ in range(ends)]
            rounds.add({"killed_s": max(kills), "stopped_s": max(stops)})
            killed += kills
            stopped += stops
        sent = flowing.stop()
        faults = _faults(database, sent)
    rounds.put({"kills": len(killed), "killed_s_longest": max(killed), "stopped_s_longest": max(stopped), **faults})
    return rounds.report()


def _end(database: Database, how: signal.Signals) -> float:
    """Let a node join, end it, and wait until another releases each of its lanes."""
    database.share(1)
    with database.connect() as connection, database.node() as node:
        (other,) = set(_owners(connection).values())
        database.share(2)
        time.sleep(STEADY_S)
        before = _look(connection)
        mine = [lane for lane, owner in _owners(connection).items() if owner != other]
        node.process.send_signal(how)
        ended = time.monotonic()
        return _again(connection, {lane: before[lane] for lane in mine}) - ended


def _again(connection: "psycopg.Connection[tuple[object, ...]]", lanes: dict[int, tuple[UUID, int]]) -> float:
    """When the last of these lanes was released under another token, as its commit was seen."""
    waiting = dict(lanes)
    deadline = time.monotonic() + LANES_S_MAX
    now = time.monotonic()
    while waiting:
        found = _look(connection)
        now = time.monotonic()
        for lane, (token, rows) in list(waiting.items()):
            if found[lane][0] == token:  # what the old owner had sent before its end may still be committed
                waiting[lane] = (token, found[lane][1])
            elif found[lane][0] is not None and found[lane][1] > rows:
                del waiting[lane]
        if now > deadline:
            raise TimeoutError(f"the lanes {sorted(waiting)} were not released within {LANES_S_MAX} s")
        time.sleep(LOOK_S)
    return now


def _look(connection: "psycopg.Connection[tuple[object, ...]]") -> dict[int, tuple[UUID, int]]:
    """By lane: under which token, and how many were released so far."""
    return {row[0]: (row[1], row[2]) for row in connection.execute(_LOOK).fetchall()}  # type: ignore[misc]


def _owners(connection: "psycopg.Connection[tuple[object, ...]]") -> dict[int, object]:
    """By lane."""
    return {int(str(lane)): node for lane, node in connection.execute(_OWNERS).fetchall()}


def _faults(database: Database, sent: int) -> dict[str, float]:
    """What must not be, once all is on the log."""
    with database.node():
        database.until(lambda: database.number("SELECT count(*) FROM tidings.timeline") == 0, DRAIN_S_MAX)
    with database.connect() as connection:
        ((twice, early, found),) = connection.execute(_FAULTS).fetchall()
    return {
        "lost": sent - (int(str(found)) - int(str(twice))),
        "twice": int(str(twice)),
        "early": int(str(early)),
    }


class _Flowing:
    """A flow without end, from a thread of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = False
        self._sent = 0
        self._thread = threading.Thread(target=lambda: run_loop(self._produce()), name="flow")
        self._thread.start()

    def stop(self) -> int:
        """End the flow; how many were sent."""
        self._stopping = True
        self._thread.join()
        return self._sent

    async def _produce(self) -> None:
        async with self._database.producer() as engine:
            while not self._stopping:
                await self._step(engine)

    async def _step(self, engine: Engine) -> None:
        """A tenth of a second of the flow, a second ahead."""
        start = engine.clock.now() + _SECOND_US
        size = RATE // 10
        requests = [request(start + index * _SECOND_US // RATE, topic=TOPIC) for index in range(size)]
        await engine.submit([engine.admit(TENANT, each) for each in requests])
        self._sent += size
        await asyncio.sleep(max(0, (start - engine.clock.now()) / _SECOND_US - 0.9))


@contextlib.contextmanager
def _flowing(database: Database) -> Iterator[_Flowing]:
    """The flow, and a node that is never ended."""
    with database.node():
        database.share(1)
        flowing = _Flowing(database)
        try:
            yield flowing
        finally:
            flowing.stop()
