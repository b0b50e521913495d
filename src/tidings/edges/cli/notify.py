"""`notify`: notify users, with a template or with content of your own, now or later."""

import argparse
from typing import Any

from tidings.domain.notification import InlineContent
from tidings.edges.cli.arguments import Arguments, add_field, add_server, client_of
from tidings.edges.cli.client import faults
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.message import text_of
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.templates import PARTS, add_variables, variables_of
from tidings.edges.cli.timing import add_timing, timing_of
from tidings.shapes.fields import fields_of, names_of
from tidings.shapes.notification import NewNotification
from tidings.shapes.schedule import When

CONTENT = ("title", "text", "html")
# Fields that the command line takes in another form, or by another name; every other one has an option of its name.
OTHERWISE = {
    *names_of(When),
    *("user", "users", "to", "channel", "channels", "version", "variables", "content", "words", "count"),
}
OPTIONS = tuple(name for name in names_of(NewNotification) if name not in OTHERWISE)
CODES = {"rejected": Exit.USAGE, "conflict": Exit.CONFLICT}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument(
        "users", metavar="USER", nargs="*", help="the recipients; local times are in each user's own time zone"
    )
    parser.add_argument("--to", metavar="ADDRESS", help="a bare address instead, with its --channel")
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        choices=(*PARTS, "all"),
        help="channel to use; repeated: in order of preference; all: each of them "
        f"(default: {fields_of(NewNotification)['channel'].absent})",
    )
    add_field(parser, NewNotification, "version", metavar="N")
    add_variables(parser)
    for name in CONTENT:
        content = fields_of(InlineContent)[name].description.rstrip(".")
        parser.add_argument(
            f"--{name}", metavar="TEXT", help=f"{content}, instead of a template; @FILE for a file, - for stdin"
        )
    for name in OPTIONS:
        add_field(parser, NewNotification, name)
    add_timing(parser, NewNotification)
    add_server(parser)
    parser.set_defaults(run=notify)


def notify(arguments: Arguments, screen: Screen) -> int:
    """Send the request; each user has an answer of their own."""
    document = {**_whom(arguments), **_what(arguments), **timing_of(arguments)}
    given = {name: getattr(arguments, name) for name in ("count", *OPTIONS)}
    document |= {name: value for name, value in given.items() if value is not None}
    answer = client_of(arguments).call("POST", "/v1/notifications", body=document)
    if len(arguments.users) < 2:
        return _tell(answer, arguments, screen)
    codes = {_tell(each, arguments, screen) for each in answer["notifications"]} - {Exit.DONE}
    return Exit.FAILED if len(codes) > 1 or Exit.USAGE in codes else max(codes, default=Exit.DONE)


def _whom(arguments: Arguments) -> dict[str, Any]:
    if arguments.users and arguments.to is not None:
        raise Failure(Exit.USAGE, "give either a USER (or several) or --to ADDRESS, not both")
    if not arguments.users and arguments.to is None:
        raise Failure(
            Exit.USAGE, "no recipient: give a USER (or several), or an address with --to ADDRESS and its --channel"
        )
    channels: dict[str, Any] = {}
    if "all" in arguments.channel:
        if len(arguments.channel) > 1:
            raise Failure(Exit.USAGE, "--channel all means every channel: leave the others out")
        channels = {"channels": "all"}
    elif arguments.channel:
        one = len(arguments.channel) == 1
        channels = {"channel": arguments.channel[0]} if one else {"channels": arguments.channel}
    if arguments.to is not None:
        return {"to": _address(arguments.to, arguments.channel), **channels}
    if len(arguments.users) == 1:
        return {"user": arguments.users[0], **channels}
    return {"users": arguments.users, **channels}


def _address(text: str, channels: list[str]) -> Any:
    """An address of push is a device: `apns:TOKEN`."""
    if channels != ["push"]:
        return text
    platform, separator, token = text.partition(":")
    if not separator:
        raise Failure(Exit.USAGE, f"--to {text}: write the platform first, apns:{text} or fcm:{text}")
    return {"platform": platform, "token": token}


def _what(arguments: Arguments) -> dict[str, Any]:
    words = {name: text_of(text, f"--{name}") for name in CONTENT if (text := getattr(arguments, name)) is not None}
    if arguments.template is not None and words:
        raise Failure(Exit.USAGE, f"give either --template or a literal text (--{next(iter(words))}), not both")
    if arguments.template is None and not words:
        raise Failure(Exit.USAGE, "nothing to send: give a --template, or the text as --text")
    if words:
        if "text" not in words:
            raise Failure(Exit.USAGE, "--text is missing: give it too")
        if arguments.version is not None or arguments.var or arguments.vars is not None:
            raise Failure(Exit.USAGE, "a literal text is sent as it is: --var, --vars and --version need --template")
        return {"content": words}
    document: dict[str, Any] = {}
    if variables := variables_of(arguments):
        document["variables"] = variables
    if arguments.version is not None:
        document["version"] = _version(arguments.version)
    return document


def _version(text: str) -> int | str:
    if text == "current":
        return text
    if not (text.isascii() and text.isdigit() and int(text)):
        raise Failure(Exit.USAGE, f"--version {text}: give a number from 1 on, or current")
    return int(text)


def _tell(answer: dict[str, Any], arguments: Arguments, screen: Screen) -> Exit:
    """One answer in one line."""
    outcome, state = str(answer.get("outcome")), answer.get("state")
    code = Exit.CONFLICT if state == "cancelled" else CODES.get(outcome, Exit.DONE)
    if arguments.json:
        screen.json(answer)
        return code
    whom = shown(answer.get("user") or arguments.to)
    words = [screen.word(outcome), screen.paint(shown(answer.get("id")), "bold"), f"to {whom}"]
    if channels := answer.get("channels"):
        words.append(f"by {', '.join(channels)}")
    local = str(answer.get("due_at_local") or "").replace("T", " ")
    due = " = ".join(text for text in (local, screen.moment(answer.get("due_at"))) if text)
    end = f", due {due}" if due else ""
    if state not in {None, "pending", "processing"}:
        end = f": it is already {shown(state)}, and nothing new will be sent"
    if reason := answer.get("reason") or "; ".join(faults(answer)):
        first = f" of {shown(answer['first'])}" if answer.get("first") else ""
        end = f": {shown(reason)}{first}"
    screen.say(" ".join(words) + end)
    if note := answer.get("note"):
        screen.note(f"note: {note}")
    return code
