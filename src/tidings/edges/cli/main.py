"""The main function: parses the arguments, loads only the module of the command, and returns its exit code."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from tidings import __version__
from tidings.domain.errors import Invalid, NotFound, TidingsError
from tidings.edges.cli.arguments import Hooks, Parser, sentence
from tidings.edges.cli.exit_codes import Exit, Failure, program
from tidings.edges.cli.screen import ReaderGone, Screen

# Each command: the function in `commands/` that adds its arguments, and what the command does.
COMMANDS = {
    "serve": ("serve.configure", "start a Tidings server"),
    "schedule": ("schedule.configure", "schedule a message, or a file of messages"),
    "publish": ("schedule.configure", "publish a message to a topic now"),
    "replace": ("schedule.configure", "replace a schedule"),
    "change": ("schedule.configure", "change single fields of a schedule"),
    "show": ("schedules.configure", "show a schedule"),
    "explain": ("schedules.configure", "show what happened to a schedule, and when"),
    "list": ("schedules.configure", "list schedules"),
    "cancel": ("schedules.configure_change", "cancel schedules"),
    "pause": ("schedules.configure_change", "pause schedules until they are resumed"),
    "resume": ("schedules.configure_change", "resume paused schedules"),
    "fire": ("schedules.configure_change", "release schedules now"),
    "notify": ("notify.configure", "send a notification, now or at a local time"),
    "notifications": (
        "notify.configure_notifications",
        "list, explain, change, pause and cancel notifications",
    ),
    "deliveries": ("deliveries.configure", "show what was sent, by which provider and how late: list, show, retry"),
    "inbox": ("users.configure_inbox", "show the in-app notifications of a user"),
    "users": ("users.configure", "manage users: put, change, get, list, delete, import, erase"),
    "templates": ("templates.configure", "manage templates: put, get, list, versions, delete, preview"),
    "suppressions": ("users.configure_suppressions", "manage addresses that nothing is sent to: list, add, remove"),
    "channels": (
        "deliveries.configure_channels",
        "show the providers, the order in which they are tried, and their state",
    ),
    "tail": ("topics.configure_tail", "follow a topic"),
    "rejections": ("topics.configure_rejections", "show requests on Kafka that were rejected, and why"),
    "topics": ("topics.configure_topics", "list topics and their sizes"),
    "forecast": ("schedules.configure_forecast", "show how much is pending, by time"),
    "preview": ("schedules.configure_preview", "show when a recurrence would occur; nothing is stored"),
    "calendars": ("calendars.configure", "manage calendars of days off: list, show, put, drop"),
    "tzdata": (
        "calendars.configure_tzdata",
        "show the version of the time zone rules, and what a change of them moved",
    ),
    "keys": ("admin.configure_keys", "create, list and revoke API keys"),
    "nodes": ("admin.configure_nodes", "show the nodes that share the store, their lanes and their lateness"),
    "migrate": ("admin.configure_migrate", "migrate a store to the layout of this version"),
    "copy": ("admin.configure_copy", "move everything from one store to another"),
    "bench": ("serve.configure_bench", "list the benchmarks, or run one"),
    "version": ("serve.configure_version", "print the version"),
}


_TIMES = ("from", "to", "after", "since", "until", "at", "expires-after", "dedupe-window")
_DURATIONS = ("jitter", "late-grace", "late-max")
_SIGNED = frozenset(f"--{name}" for name in (*_TIMES, *_DURATIONS))
_SERVER_OPTIONS = frozenset({"--url", "--api-key", "--tenant"})
_API_KEY_MISNAMED = "--key"
_BEFORE_NOW = re.compile(r"-P?T?[0-9]")


def main(argv: Sequence[str], hooks: Hooks) -> int:
    """Run one command; returns its exit code."""
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
        # Otherwise Python reports the closed pipe again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Failure as failure:
        return _failed(failure, "--json" in argv, screen)
    except TidingsError as error:
        screen.note(f"tidings: {error}")
        return {NotFound: Exit.NOT_FOUND, Invalid: Exit.USAGE}.get(type(error), Exit.FAILED)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a command; raises `Failure` for wrong usage."""
    argv = _command_first(argv)
    arguments, unknown = build_parser(argv).parse_known_args(list(_joined(argv)))
    if unknown:
        command = getattr(arguments, "verb", f"{program()} {arguments.command}")
        text = f"unrecognized arguments: {' '.join(unknown)}\nsee `{command} --help`"
        raise Failure(Exit.USAGE, text)
    return arguments


def _command_first(argv: Sequence[str]) -> list[str]:
    """The arguments, with the options of the server that precede the command moved behind all others."""
    words, moved = list(argv), list[str]()
    while words and (name := words[0].partition("=")[0]) in {*_SERVER_OPTIONS, _API_KEY_MISNAMED, "--json"}:
        if name == _API_KEY_MISNAMED:
            raise Failure(Exit.USAGE, "--key is the key of a record, behind the command: an API key is --api-key KEY")
        has_value_behind = name in _SERVER_OPTIONS and "=" not in words[0]
        if has_value_behind and len(words) == 1:
            raise Failure(Exit.USAGE, f"{name} needs a value\nsee `{program()} --help`")
        count = 2 if has_value_behind else 1
        moved += words[:count]
        del words[:count]
    if words and words[0].startswith("--") and words[0] not in {"--", "--help", "--version"}:
        name = words[0].partition("=")[0]
        raise Failure(Exit.USAGE, f"{name} goes behind the command: `{program()} COMMAND ... {name}`")
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *moved, *words[end:]]


def _joined(argv: Sequence[str]) -> Iterator[str]:
    """The arguments, with `--from -1h` joined to `--from=-1h`: argparse would read the time as an option."""
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
    """The parser of all commands. Only the module of the command in use is loaded, to add its arguments."""
    parser = Parser(
        prog=program(),
        description="Schedules messages and notifications, and releases each one on time, once.",
        epilog=f"`{program()} COMMAND --help` describes a command. Exit codes: 0 done, 1 failed, 2 wrong usage, "
        "3 not found, 4 conflict, 5 cannot reach the server.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tidings {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (function, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=sentence(summary), allow_abbrev=False)
        command.set_defaults(command=name)
        if name in argv:
            module, _, configure = function.partition(".")
            getattr(import_module(f"tidings.edges.cli.commands.{module}"), configure)(command)
    return parser


def _failed(failure: Failure, as_json: bool, screen: Screen) -> int:
    if as_json and failure.document is not None:
        screen.json(failure.document)
    screen.note(f"tidings: {failure}")
    return failure.code
