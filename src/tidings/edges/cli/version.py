"""`version`: which Tidings this is."""

import argparse
import platform

from tidings import __version__
from tidings.edges.cli.arguments import Arguments
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of text for people")
    parser.set_defaults(run=version)


def version(arguments: Arguments, screen: Screen) -> int:
    """The version, and that of Python beside it."""
    if arguments.json:
        screen.json({"version": __version__, "python": platform.python_version()})
    else:
        screen.say(f"tidings {__version__} (Python {platform.python_version()})")
    return Exit.DONE
