"""`python -m bench [NAME] [--json] [--rounds N] [--scale F] [--save]`: run the benchmarks, or one of them."""

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from bench.options import ROUNDS, Options
from bench.report import Bar, Report, save, table, to_json
from bench.screen import note
from tests.servers.downloads import Missing

NAMES = (
    "intake",
    "http_batch",
    "http_single",
    "burst",
    "lateness",
    "backlog",
    "tenants",
    "stuck_readers",
    "recurring_burst",
    "recurrence",
    "parse",
    "kafka_intake",
    "kafka_burst",
    "kafka_lateness",
    "kafka_backlog",
    "kafka_outage",
    "pg_intake",
    "pg_burst",
    "pg_lateness",
    "pg_churn",
    "takeover",
    "fleet_kafka",
    "render",
    "deliver_webhook",
    "deliver_smtp",
    "deliver_latency",
    "deliver_priority",
    "users",
    "cabinet",
    "peers",
)
LEFT_OUT = 3  # the exit code of a benchmark whose requirements are not installed


class Benchmark(Protocol):
    """The interface of a benchmark module."""

    TITLE: str
    BARS: Sequence[Bar]

    @staticmethod
    def run(options: Options) -> Report: ...


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark in this process, or all of them, each in its own process."""
    chosen = _parser().parse_args(arguments)
    if chosen.name is None:
        codes = [subprocess.call([sys.executable, "-m", "bench", name, *arguments]) for name in NAMES]
        return max(code for code in codes if code != LEFT_OUT)
    options = Options(chosen.rounds, chosen.scale, chosen.pending, chosen.keep)
    benchmark = cast(Benchmark, importlib.import_module(f"bench.{chosen.name}"))
    try:
        report = benchmark.run(options)
    except Missing as missing:
        note(f"{chosen.name}: skipped, because it needs a real server. {missing}")
        return LEFT_OUT
    print(to_json(report) if chosen.json else table(report, benchmark.BARS, benchmark.TITLE), flush=True)
    if chosen.save:
        label = chosen.name if chosen.pending is None else f"{chosen.name}_{chosen.pending}"
        note(f"saved as {save(report, benchmark.BARS, label)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Benchmarks of Tidings, compared with limits of the machine and with other schedulers.",
    )
    parser.add_argument("name", nargs="?", choices=NAMES, help="the benchmark to run (default: all)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object for each benchmark instead of a table"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"number of rounds, of which the median is shown (default: {ROUNDS})"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for sizes and times, such as 0.01 for a quick trial"
    )
    parser.add_argument("--save", action="store_true", help="save the result in bench/results")
    parser.add_argument(
        "--pending", type=int, help="number of pending rows (default: 3,000,000 for intake, 1,000,000 for backlog)"
    )
    parser.add_argument(
        "--keep", metavar="FOLDER", help="keep the filled store of `backlog` in this folder, and reuse it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
