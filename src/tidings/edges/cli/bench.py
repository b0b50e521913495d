"""`bench`: the benchmarks, which live in the repository and not in the package."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tidings.edges.cli.arguments import Arguments
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("--all", action="store_true", help="run all of them, one after the other")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="passed on: a benchmark's name, then --json or --help"
    )
    parser.set_defaults(run=bench)


def bench(arguments: Arguments, screen: Screen) -> int:
    """Run `python -m bench` in the checkout that this is, or that is the current directory."""
    for root in (Path.cwd(), *Path(__file__).resolve().parents):
        if (root / "bench" / "__main__.py").is_file() and (root / "pyproject.toml").is_file():
            screen.note(f"the benchmarks of {root}")
            every = ["--all"] if arguments.all else []
            return call([sys.executable, "-m", "bench", *arguments.arguments, *every], root)
    raise Failure(
        Exit.FAILED,
        "the benchmarks are not in the installed package: clone the repository and run `make bench`",
    )


def call(command: Sequence[str], folder: Path | None = None) -> int:
    """Run a command to its end and answer its exit code. SIGINT and SIGTERM are passed on to it, to clean up."""
    process = subprocess.Popen(command, cwd=folder)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
