"""`notify`: tell somebody something, in the words of a template or in your own, now or at her hour."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.client import faults
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.message import add_past, text_of
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.templates import PARTS, add_variables, variables_of
from tidings.edges.cli.timing import add_timing, timing_of

WORDS = ("title", "text", "html")
PLAIN = ("id", "template", "priority", "category", "dedupe_key", "dedupe_window", "expires_after", "locale")
MORE = ("collapse", "batch", "late", "late_grace", "late_max", "jitter", "past", "count", "spread")
CODES = {"rejected": Exit.USAGE, "conflict": Exit.CONFLICT}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("users", metavar="USER", nargs="*", help="whom; of several each at her own hour")
    parser.add_argument("--to", metavar="ADDRESS", help="a bare address instead, with its --channel")
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        choices=(*PARTS, "all"),
        help="by which; repeated: in this order until one works; all: by each; left out: where she has an address",
    )
    parser.add_argument("--spread", choices=("first", "all"), help="of several channels the first that works (first)")
    parser.add_argument("--template", metavar="NAME", help="what is said")
    parser.add_argument(
        "--version", metavar="N", help="that of the template; current: as it is now; left out: as it is then"
    )
    add_variables(parser)
    for name, meaning in (
        ("title", "a title (an e-mail without one takes the first line)"),
        ("text", "your own words"),
        ("html", "the same as HTML"),
    ):
        parser.add_argument(f"--{name}", metavar="TEXT", help=f"{meaning}, instead of a template; @FILE, - for stdin")
    parser.add_argument("--id", help="your own name for it; left out: one is made")
    _add_policy(parser)
    add_timing(parser, hers=True)
    add_server(parser)
    parser.set_defaults(run=notify)


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--priority", choices=("high", "normal", "low"), help="high never waits behind the others")
    parser.add_argument("--category", help="what it is, for people's wishes (transactional, which nobody can refuse)")
    parser.add_argument("--dedupe-key", metavar="KEY", help="a second one under this key is skipped")
    parser.add_argument("--dedupe-window", metavar="DURATION", help="for how long (24h)")
    parser.add_argument("--expires-after", metavar="DURATION", help="not worth sending when later than this")
    parser.add_argument("--locale", metavar="TAG", help="in this language instead of hers")
    parser.add_argument("--collapse", metavar="KEY", help="of those with one key a device shows the latest")
    parser.add_argument("--batch", metavar="NAME", help="a name to find many by")
    parser.add_argument("--late", choices=("fire_all", "fire_latest", "skip"), help="what was missed while down")
    parser.add_argument("--late-grace", metavar="DURATION", help="how late `skip` still lets pass")
    parser.add_argument("--late-max", metavar="DURATION", help="missed when later than this, under any policy")
    parser.add_argument("--jitter", metavar="DURATION", help="spread the due time over this long")
    add_past(parser)


def notify(arguments: Arguments, screen: Screen) -> int:
    """Ask for it; each person has an answer of her own."""
    document = {**_whom(arguments), **_what(arguments), **timing_of(arguments)}
    given = {name: getattr(arguments, name) for name in (*PLAIN, *MORE)}
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
        raise Failure(Exit.USAGE, "whom? Give a USER (or several), or an address with --to ADDRESS and its --channel")
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
        raise Failure(Exit.USAGE, f"--to {text}: write the platform before it, apns:{text} or fcm:{text}")
    return {"platform": platform, "token": token}


def _what(arguments: Arguments) -> dict[str, Any]:
    words = {name: text_of(text, f"--{name}") for name in WORDS if (text := getattr(arguments, name)) is not None}
    if arguments.template is not None and words:
        raise Failure(Exit.USAGE, f"give either --template or your own words (--{next(iter(words))}), not both")
    if arguments.template is None and not words:
        raise Failure(Exit.USAGE, "what is to be said? Give a --template, or your own words as --text")
    if words:
        if "text" not in words:
            raise Failure(Exit.USAGE, "what is to be said? Give the words as --text beside it")
        if arguments.version is not None or arguments.var or arguments.vars is not None:
            raise Failure(
                Exit.USAGE, "your own words are sent as they are: --var, --vars and --version go with --template"
            )
        return {"words": words}
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
        end = f": it is {shown(state)} already, and nothing new will be sent"
    if reason := answer.get("reason") or "; ".join(faults(answer)):
        first = f" of {shown(answer['first'])}" if answer.get("first") else ""
        end = f": {shown(reason)}{first}"
    screen.say(" ".join(words) + end)
    if note := answer.get("note"):
        screen.note(f"note: {note}")
    return code
