"""`python -m bench NAME [--json] [--rounds N] [--scale F] [--save]`: run one benchmark; without a name list them."""

import argparse
import ast
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from types import FrameType
from typing import Protocol, cast

from bench.options import ROUNDS, Options
from bench.report import Bar, Report, save, table, to_json
from bench.screen import note
from tests.servers.downloads import Missing
from tidings.edges.cli.commands.serve import call

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
    "code_path",
    "notification_path",
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
    "http_clients",
    "deliver_webhook",
    "deliver_smtp",
    "deliver_in_app",
    "deliver_latency",
    "deliver_priority",
    "deliver_scale_out",
    "users",
    "accept",
    "tables",
    "migration",
    "peers",
)
LINE_CHARS = 80
LEFT_OUT = 3  # the exit code of a benchmark whose requirements are not installed


class Benchmark(Protocol):
    """The interface of a benchmark module."""

    TITLE: str
    BARS: Sequence[Bar]

    @staticmethod
    def run(options: Options) -> Report: ...


def main(arguments: Sequence[str]) -> int:
    """List the benchmarks, run one here, or with `--all` run each in a process of its own."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.name is not None and chosen.all:
        parser.error("give either a name or --all, not both")
    if chosen.name is None and not chosen.all:
        print(_listing())
        return 0
    if chosen.name is not None and chosen.name not in NAMES:
        print(f"there is no benchmark {chosen.name!r}. {_listing()}", file=sys.stderr)
        return 2
    if chosen.all:
        return _run_all([argument for argument in arguments if argument != "--all"])
    _clean_up_on_signals()
    try:
        return _run(chosen)
    except KeyboardInterrupt:
        note(f"{chosen.name}: stopped, its temporary data is removed")
        return 128 + _stopped_by[-1]


def _run_all(options: Sequence[str]) -> int:
    codes = []
    for name in NAMES:
        code = call([sys.executable, "-m", "bench", name, *options])
        if code > 128:  # stopped by a signal, and the others with it
            return code
        codes.append(code)
    return max(code for code in codes if code != LEFT_OUT)


def _run(chosen: argparse.Namespace) -> int:
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


_stopped_by = [int(signal.SIGINT)]


def _clean_up_on_signals() -> None:
    """Let SIGTERM end a run in the way of SIGINT: every `with` block is left, which removes the temporary data."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        _stopped_by.append(number)
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    signal.signal(signal.SIGTERM, interrupt)


def _listing() -> str:
    """Every benchmark with the first line of its file. The files are not imported: some need servers' clients."""
    width = max(map(len, NAMES))
    indent = " " * (width + 4)
    lines = [
        fill(_summary(name), LINE_CHARS, initial_indent=f"  {name:{width}}  ", subsequent_indent=indent)
        for name in NAMES
    ]
    return "\n".join(["Benchmarks:", *lines, "Run one with its name, or all of them with --all (hours)."])


def _summary(name: str) -> str:
    source = (Path(__file__).parent / f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Benchmarks of Tidings, compared with limits of the machine and with other schedulers.",
    )
    parser.add_argument("name", nargs="?", help="the benchmark to run; without it they are listed")
    parser.add_argument("--all", action="store_true", help="run all of them, one after the other")
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
