"""`bench`: the benchmarks, which live in the repository and not in the package."""

import argparse
import subprocess
import sys
from pathlib import Path

from tidings.edges.cli.arguments import Arguments
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on: a benchmark's name, --json, --help")
    parser.set_defaults(run=bench)


def bench(arguments: Arguments, screen: Screen) -> int:
    """Run `python -m bench` in the checkout that this is, or that we stand in."""
    for root in (Path.cwd(), *Path(__file__).resolve().parents):
        if (root / "bench" / "__main__.py").is_file() and (root / "pyproject.toml").is_file():
            screen.note(f"the benchmarks of {root}")
            command = [sys.executable, "-m", "bench", *arguments.arguments]
            return subprocess.run(command, cwd=root, check=False).returncode
    raise Failure(
        Exit.FAILED,
        "the benchmarks are not in the installed package: clone the repository and run `make bench`",
    )
