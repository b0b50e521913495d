"""`serve`, `version` and `bench`."""

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tidings import __version__
from tidings.edges.cli.arguments import Arguments, pair
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen

# Options for the most common settings; `--set` sets any of them.
FLAGS = {
    "--host": ("server.host", "the address to listen on (default: 127.0.0.1); others than this machine need API keys"),
    "--port": ("server.port", "the port to listen on (default: 8460); 0 for any free port"),
    "--store": (
        "store.path",
        "the database: a file (default: tidings.db), or postgres://user@host/database to share it",
    ),
    "--roles": (
        "node.roles",
        "what this node does: api, intake, dispatch, deliver, separated by commas (default: all)",
    ),
    "--channels": (
        "node.channels",
        "the channels that this node delivers to: email, sms, push, webhook, in_app, with commas (default: all)",
    ),
    "--processes": ("node.processes", "how many processes share the work and the port; needs PostgreSQL (default: 1)"),
    "--kafka": ("kafka.servers", "read requests from Kafka and release to it: host:port, more separated by commas"),
    "--log-format": ("logs.format", "auto, human or json"),
    "--log-level": ("logs.level", "debug, info, warning or error"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    for flag, (_, purpose) in FLAGS.items():
        parser.add_argument(flag, help=purpose)
    parser.add_argument(
        "--config", metavar="FILE", help="the settings file (or TIDINGS_CONFIG; default: tidings.toml if it exists)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=pair,
        metavar="SECTION.KEY=VALUE",
        help="a setting, as in the settings file; repeatable",
    )
    parser.add_argument("--member", help=argparse.SUPPRESS)  # given by the supervisor of several processes
    parser.add_argument("--print-config", action="store_true", help="print every setting and its source, and exit")
    parser.set_defaults(run=serve)


def serve(arguments: Arguments, screen: Screen) -> int:
    """Run a node until a signal stops it."""
    from tidings.config import ConfigError, load, render

    try:
        loaded = load(arguments.config, os.environ, flags_of(arguments))
    except ConfigError as error:
        raise Failure(Exit.USAGE, "the settings are not valid\n" + "\n".join(error.problems)) from None
    arguments.hooks.check_channels(loaded.config)
    if arguments.print_config:
        screen.say(render(loaded).rstrip("\n"))
        return Exit.DONE
    code: int = arguments.hooks.run_node(loaded.config, arguments.member)
    return code


def flags_of(arguments: Arguments) -> dict[str, tuple[str, str]]:
    """The settings given as options: for each name, the option and the value."""
    given: dict[str, tuple[str, str]] = {}
    for name, value in arguments.set:
        given[name] = f"--set {name}", value
    for flag, (name, _) in FLAGS.items():
        value = getattr(arguments, flag.strip("-").replace("-", "_"))
        if value is not None:
            given[name] = flag, value
    return given


def configure_version(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `version`."""
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of text for people")
    parser.set_defaults(run=version)


def version(arguments: Arguments, screen: Screen) -> int:
    """Print the version of Tidings and of Python."""
    if arguments.json:
        screen.json({"version": __version__, "python": platform.python_version()})
    else:
        screen.say(f"tidings {__version__} (Python {platform.python_version()})")
    return Exit.DONE


def configure_bench(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench`."""
    parser.add_argument("--all", action="store_true", help="run all of them, one after the other")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="passed on: a benchmark's name, then --json or --help"
    )
    parser.set_defaults(run=bench)


def bench(arguments: Arguments, _screen: Screen) -> int:
    """Run `python -m bench` in the checkout of this file, or in the current folder."""
    for root in (Path.cwd(), *Path(__file__).resolve().parents):
        if (root / "bench" / "__main__.py").is_file() and (root / "pyproject.toml").is_file():
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
