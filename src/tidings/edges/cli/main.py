"""The entrance: finds the command, loads only its file, and ends with a message and an exit code."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from tidings import __version__
from tidings.domain.errors import Invalid, NotFound, TidingsError
from tidings.edges.cli.arguments import Parser, sentence
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.hooks import Hooks
from tidings.edges.cli.program import program
from tidings.edges.cli.screen import ReaderGone, Screen

# Each command: the file that holds it, and what it does.
COMMANDS = {
    "serve": ("serve", "start a Tidings server"),
    "schedule": ("schedule", "schedule a message, or a file of messages"),
    "publish": ("schedule", "publish a message to a topic now"),
    "replace": ("schedule", "replace a schedule"),
    "show": ("reading", "show a schedule"),
    "explain": ("reading", "show what happened to a schedule, and when"),
    "list": ("reading", "list schedules"),
    "cancel": ("changes", "cancel schedules"),
    "pause": ("changes", "pause schedules until they are resumed"),
    "resume": ("changes", "resume paused schedules"),
    "fire": ("changes", "release schedules now"),
    "notify": ("notify", "send a notification, now or at a local time"),
    "notifications": ("notifications", "what became of notifications: list, show, explain, cancel"),
    "deliveries": ("deliveries", "what was sent, through what and how late: list, show, retry"),
    "inbox": ("inbox", "what a person was told inside the product"),
    "users": ("users", "who can be told something: put, change, get, list, delete, import, erase"),
    "templates": ("templates", "what is said: put, get, list, versions, delete, preview"),
    "suppressions": ("suppressions", "addresses that nothing is sent to: list, add, remove"),
    "channels": ("channels", "which providers send, in which order, and how they are"),
    "tail": ("tail", "follow a topic"),
    "rejections": ("rejections", "show requests on Kafka that were rejected, and why"),
    "topics": ("topics", "list topics and their sizes"),
    "forecast": ("forecast", "show how much is pending, by time"),
    "preview": ("preview", "show when a recurrence would occur; nothing is stored"),
    "calendars": ("calendars", "manage calendars of days off: list, show, put, drop"),
    "tzdata": ("tzdata", "show the version of the time zone rules, and what a change of them moved"),
    "keys": ("keys", "create, list and revoke API keys"),
    "nodes": ("nodes", "show the nodes that share the store, their lanes and their lateness"),
    "migrate": ("migrate", "migrate a store to the layout of this version"),
    "copy": ("copy", "move everything from one store to another"),
    "bench": ("bench", "list the benchmarks, or run one"),
    "version": ("version", "print the version"),
}


_TIMES = ("from", "to", "after", "since", "until", "at", "expires-after", "dedupe-window")
_DURATIONS = ("jitter", "late-grace", "late-max")
_SIGNED = frozenset(f"--{name}" for name in (*_TIMES, *_DURATIONS))
_BEFORE_NOW = re.compile(r"-P?T?[0-9]")


def main(argv: Sequence[str], hooks: Hooks) -> int:
    """Run one command; answers its exit code."""
    screen = Screen()
    try:
        if not argv:
            screen.say(build_parser(argv).format_help().rstrip())
            return Exit.DONE
        arguments = parse(argv)
        arguments.hooks = hooks
        return int(arguments.run(arguments, screen))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except ReaderGone:
        # Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Failure as failure:
        return _failed(failure, "--json" in argv, screen)
    except TidingsError as error:
        screen.note(f"tidings: {error}")
        return {NotFound: Exit.NOT_FOUND, Invalid: Exit.USAGE}.get(type(error), Exit.FAILED)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; raises `Failure` with what is wrong."""
    arguments, unknown = build_parser(argv).parse_known_args(list(_joined(argv)))
    if unknown:
        command = getattr(arguments, "verb", f"{program()} {arguments.command}")
        text = f"unrecognized arguments: {' '.join(unknown)}\nsee `{command} --help`"
        raise Failure(Exit.USAGE, text)
    return arguments


def _joined(argv: Sequence[str]) -> Iterator[str]:
    """The words, with `--from -1h` as `--from=-1h`: the parser would take the time for a flag."""
    words = iter(argv)
    for word in words:
        following = next(words, None) if word in _SIGNED else None
        if following is None:
            yield word
        elif _BEFORE_NOW.match(following):
            yield f"{word}={following}"
        else:
            yield from (word, following)


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands; only the one in use is filled in, so that nothing else is loaded."""
    parser = Parser(
        prog=program(),
        description="Schedules messages and notifications, and releases each one on time, once.",
        epilog=f"`{program()} COMMAND --help` describes a command. Exit codes: 0 done, 1 failed, 2 wrong usage, "
        "3 not found, 4 conflict, 5 cannot reach the server.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tidings {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=sentence(summary), allow_abbrev=False)
        command.set_defaults(command=name)
        if name in argv:
            import_module(f"tidings.edges.cli.{module}").configure(command)
    return parser


def _failed(failure: Failure, as_json: bool, screen: Screen) -> int:
    if as_json and failure.document is not None:
        screen.json(failure.document)
    screen.note(f"tidings: {failure}")
    return failure.code
