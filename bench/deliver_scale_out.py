"""20,000 due webhooks on PostgreSQL, sent by one worker process and by two: their CPU time, and where they wait."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlencode

from bench.delivery import site as delivery
from bench.engines import run as run_on_loop
from bench.fleet import site as fleet
from bench.options import Options
from bench.processes import Server, cpu_s, node
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "20,000 due webhooks on PostgreSQL: CPU microseconds of the workers for each, by one process and by two"
COUNT = 20_000
WARM_UP = 500
WAIT_S = 300.0
SAMPLE_S = 0.02
SHOWN = 6
WORKER = "bench-worker"

BARS = (Bar("cpu_us_two", "ratio", "<=", 1.1),)

_SENT = "SELECT count(*) FROM tidings.delivery WHERE state = 'sent'"
_WAITS = f"""
SELECT coalesce(wait_event_type || ' ' || wait_event, 'working') FROM pg_stat_activity
WHERE application_name = '{WORKER}' AND (state = 'active' OR wait_event_type = 'Lock')
"""


def run(options: Options) -> Report:
    """In every round one process after two; each has a database of its own."""
    rounds, count = Rounds("deliver_scale_out"), options.rows(COUNT)
    with fleet.opened() as server, delivery.opened() as site:
        for number in range(1, options.rounds + 1):
            note(f"deliver_scale_out: round {number} of {options.rounds}")
            (per_s_two, cpu_two), (per_s_one, cpu_one) = (_deliver(server, site, each, count) for each in (2, 1))
            figures = {"cpu_us_one": cpu_one, "cpu_us_two": cpu_two, "per_s_one": per_s_one, "per_s_two": per_s_two}
            rounds.add(figures, {"cpu_us_two": cpu_one}, {"cpu_us_two": cpu_two / cpu_one})
    return rounds.report()


def _deliver(server: fleet.Site, site: delivery.Site, workers: int, count: int) -> tuple[float, float]:
    """Messages a second, and the CPU time of all workers for each."""
    people = range(count)
    with server.database("scale_out") as database, contextlib.ExitStack() as stack:
        run_on_loop(delivery.fill(database.dsn, count, site.receiver.http_port))
        api = stack.enter_context(
            node(database.dsn, "--config", str(site.settings()), "--roles", "api,intake,dispatch")
        )
        teller = delivery.Teller(api.port, api.process)
        stack.callback(teller.close)
        teller.put_template()
        processes = [stack.enter_context(_worker(database, site)) for _ in range(workers)]
        _send(database, site, teller, people[:WARM_UP])
        server.settle()
        spent_s, waits = sum(cpu_s(each.process) for each in processes), Counter[str]()
        with _sampled(database, waits):
            seconds = _send(database, site, teller, people)
        spent_s = sum(cpu_s(each.process) for each in processes) - spent_s
    total = waits.total() or 1
    shown = ", ".join(f"{name} {100 * found / total:.0f} %" for name, found in waits.most_common(SHOWN))
    note(f"  {workers} worker process(es): {count / seconds:,.0f}/s; their sessions on PostgreSQL: {shown}")
    return count / seconds, spent_s / count * 1_000_000


@contextlib.contextmanager
def _worker(database: fleet.Database, site: delivery.Site) -> Iterator[Server]:
    dsn = f"{database.dsn}?{urlencode({'application_name': WORKER})}"
    with node(dsn, "--config", str(site.settings()), "--roles", "deliver") as server:
        yield server


def _send(database: fleet.Database, site: delivery.Site, teller: delivery.Teller, people: range) -> float:
    """The seconds from the due time of all until all are stored as sent."""
    before = database.number(_SENT)
    due = site.queue(teller, "webhook", people, "normal")
    if due is None:
        raise RuntimeError(f"{len(people):,} could not be scheduled before they were due")
    site.receiver.wait(len(people))
    database.until(lambda: database.number(_SENT) - before >= len(people), WAIT_S)
    seconds = (delivery.now_us() - due) / delivery.SECOND_US
    delivery.check(site.receiver.arrivals(), people)
    return seconds


@contextlib.contextmanager
def _sampled(database: fleet.Database, waits: Counter[str]) -> Iterator[None]:
    """Count what the workers' sessions wait for, many times a second."""
    ended = threading.Event()

    def sample() -> None:
        with database.connect() as connection:
            while not ended.is_set():
                waits.update(str(name) for (name,) in connection.execute(_WAITS.encode()))
                time.sleep(SAMPLE_S)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
