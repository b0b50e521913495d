"""200,000 due at one instant, released to Kafka exactly once by two nodes on PostgreSQL; beside one node on SQLite."""

import contextlib

from bench import kafka_burst
from bench.burst import ATTEMPTS, Missed, Pace
from bench.engines import remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.fleet.node import NodeOptions, config_of
from bench.fleet.site import Database, opened
from bench.fleet.site import Site as FleetSite
from bench.kafka.arrivals import Arrivals
from bench.kafka.site import Reading, Site
from bench.kafka.site import opened as kafka_opened
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import TENANT, instant_batches, request
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.clock import SystemClock

TITLE = (
    "200,000 due at one instant, to the last one read, rows/s, by two nodes; the limit is one node as in kafka_burst"
)
ROWS = 200_000
READ_S_MAX = 120.0
NODES = 2

BARS = (
    Bar("two_nodes", "ratio", ">=", 0.8),
    *(Bar(fault, "median", "<=", 0) for fault in ("lost", "twice", "early")),
)

_SECOND_US = 1_000_000


def run(options: Options) -> Report:
    """One node on a file and two on PostgreSQL, with the same reader beside each, in every round."""
    rounds = Rounds("fleet_kafka")
    rows, one_pace, two_pace = options.rows(ROWS), Pace(), Pace()
    faults: dict[str, int] = {}
    with opened() as fleet, kafka_opened(options) as site, workspace() as folder:
        for number in range(1, options.rounds + 1):
            note(f"fleet_kafka: round {number} of {options.rounds}")
            one = kafka_burst.burst_on(site, folder / "burst.db", rows, one_pace)
            remove(folder / "burst.db")
            read, due = _burst_on(fleet, site, rows, two_pace)
            burst = read.since(due)
            if not burst.due:
                raise RuntimeError("nothing of the burst arrived")
            figures = {"two_nodes": len(burst.due) / ((burst.at[-1] - due) / _SECOND_US)}
            figures["first_ms"] = (burst.at[0] - due) / 1_000
            limit = {"two_nodes": one.per_s}
            rounds.add(figures, limit, divided(figures, limit))
            for found in (burst.faults(rows), one.faults):
                faults = {name: faults.get(name, 0) + count for name, count in found.items()}
    rounds.put(faults)
    return rounds.report()


def _burst_on(fleet: FleetSite, site: Site, rows: int, pace: Pace) -> tuple[Arrivals, int]:
    """What the reader saw, and when it was due; again, from further ahead, where scheduling it took too long."""
    for attempt in range(ATTEMPTS):
        with contextlib.ExitStack() as stack:
            topic = stack.enter_context(site.topic("fleet"))
            reading = stack.enter_context(site.reading(topic, rows + 1, READ_S_MAX))
            database = stack.enter_context(fleet.database("kafka"))
            try:
                return _burst(fleet, database, site, f"fleet-{topic}-{attempt}", rows, pace, topic, reading)
            except Missed:
                note("fleet_kafka: the machine was too slow to schedule it in time, once more")
    raise RuntimeError(f"{rows:,} rows could not be scheduled before they were due, {ATTEMPTS} times")


def _burst(
    fleet: FleetSite, database: Database, site: Site, name: str, rows: int, pace: Pace, topic: str, reading: Reading
) -> tuple[Arrivals, int]:
    with contextlib.ExitStack() as stack:
        for _ in range(NODES):
            stack.enter_context(database.node(kafka=site.broker.bootstrap, name=name))
        database.share(NODES)
        due = run_loop(_fill(database, site, name, rows, pace, topic))
        fleet.settle()
        settle()
        if SystemClock().now() > due - _SECOND_US // 10:
            raise Missed
        return reading.arrivals(), due


async def _fill(database: Database, site: Site, name: str, rows: int, pace: Pace, topic: str) -> int:
    config = config_of(NodeOptions(database.dsn, site.broker.bootstrap, name))
    async with database.producer(config) as engine:
        await engine.submit([engine.admit(TENANT, request(engine.clock.now(), topic=topic))])  # the topic is in use
        due = engine.clock.now() + pace.ahead_us(rows)
        took = await send(engine, instant_batches(rows, due, topic=topic))
    pace.learn(rows, took.seconds)
    return due
