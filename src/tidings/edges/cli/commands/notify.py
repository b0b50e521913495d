"""`notify` and `notifications`: send notifications, and show what happened to them."""

import argparse
from functools import partial
from typing import Any

from tidings.domain.notifications.notification import InlineContent
from tidings.edges.cli.arguments import (
    Arguments,
    Rows,
    add_bare_verb,
    add_field,
    add_paging,
    add_server,
    client_of,
    is_missed,
    missed_line,
    show_outcome,
    show_pages,
)
from tidings.edges.cli.client import faults, segment
from tidings.edges.cli.commands.deliveries import SPARE, STATES, heads, row_of
from tidings.edges.cli.commands.schedule import add_timing, text_of, timing_of
from tidings.edges.cli.commands.templates import PARTS, add_variables, variables_of
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen, clock_text, shown
from tidings.shapes.fields import fields_of, lowered, names_of
from tidings.shapes.notification import NewNotification
from tidings.shapes.schedule import When

CONTENT = ("title", "text", "html")
# Fields with an option of another name or form; every other field has an option of its own name.
SPECIAL_FIELDS = {
    *names_of(When),
    *("user", "users", "to", "channel", "channels", "version", "variables", "content", "words", "count"),
}
OPTIONS = tuple(name for name in names_of(NewNotification) if name not in SPECIAL_FIELDS)
CODES = {"rejected": Exit.USAGE, "conflict": Exit.CONFLICT}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `notify`."""
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
        content = lowered(fields_of(InlineContent)[name].description.rstrip("."))
        parser.add_argument(
            f"--{name}", metavar="TEXT", help=f"{content}, instead of a template; @FILE for a file, - for stdin"
        )
    for name in OPTIONS:
        add_field(parser, NewNotification, name)
    add_timing(parser, NewNotification)
    add_server(parser)
    parser.set_defaults(run=notify)


def notify(arguments: Arguments, screen: Screen) -> int:
    """Send the request, and print an outcome for each user."""
    document = {**_recipient(arguments), **_content(arguments), **timing_of(arguments)}
    given = {name: getattr(arguments, name) for name in ("count", *OPTIONS)}
    document |= {name: value for name, value in given.items() if value is not None}
    answer = client_of(arguments).call("POST", "/v1/notifications", body=document)
    if len(arguments.users) < 2:
        return _show_outcome(answer, arguments, screen)
    codes = {_show_outcome(each, arguments, screen) for each in answer["notifications"]} - {Exit.DONE}
    return Exit.FAILED if len(codes) > 1 or Exit.USAGE in codes else max(codes, default=Exit.DONE)


def _recipient(arguments: Arguments) -> dict[str, Any]:
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
    """The address; for push a device, written as `apns:TOKEN`."""
    if channels != ["push"]:
        return text
    platform, separator, token = text.partition(":")
    if not separator:
        raise Failure(Exit.USAGE, f"--to {text}: write the platform first, apns:{text} or fcm:{text}")
    return {"platform": platform, "token": token}


def _content(arguments: Arguments) -> dict[str, Any]:
    content = {name: text_of(text, f"--{name}") for name in CONTENT if (text := getattr(arguments, name)) is not None}
    if arguments.template is not None and content:
        raise Failure(Exit.USAGE, f"give either --template or a literal text (--{next(iter(content))}), not both")
    if arguments.template is None and not content:
        raise Failure(Exit.USAGE, "nothing to send: give a --template, or the text as --text")
    if content:
        if "text" not in content:
            raise Failure(Exit.USAGE, "--text is missing: give it too")
        if arguments.version is not None or arguments.var or arguments.vars is not None:
            raise Failure(Exit.USAGE, "a literal text is sent as it is: --var, --vars and --version need --template")
        return {"content": content}
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


def _show_outcome(answer: dict[str, Any], arguments: Arguments, screen: Screen) -> Exit:
    """Print the outcome for one recipient on one line."""
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
    note = answer.get("note")
    if is_missed(note):
        screen.say(missed_line(answer, screen))
        return code
    screen.say(" ".join(words) + end)
    if note:
        screen.note(f"note: {shown(note)}")
    return code


def configure_notifications(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `notifications`. Without one it lists, with the options of `list`."""
    _add_search(parser)
    add_server(parser)
    parser.set_defaults(run=index)
    verbs = parser.add_subparsers(metavar="list|show|explain|cancel")
    for name, purpose, run in (
        ("list", "list notifications, the latest first", index),
        ("show", "show a notification and its deliveries", show),
        ("explain", "show the history of a notification, from acceptance to the receipt", explain),
        ("cancel", "cancel notifications that have not been sent", cancel),
    ):
        verb = add_bare_verb(verbs, name, purpose, run)
        if name == "list":
            _add_search(verb)
        elif name == "cancel":
            verb.add_argument("ids", metavar="NOTIFICATION", nargs="+", help="the notifications")
        else:
            verb.add_argument("which", metavar="NOTIFICATION", help="the notification")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", help="only to this user")
    parser.add_argument("--to", metavar="ADDRESS", help="only to this bare address")
    parser.add_argument("--state", choices=STATES, help="only in this state")
    parser.add_argument("--channel", choices=tuple(PARTS), help="only by this channel")
    parser.add_argument("--template", metavar="NAME", help="only of this template")
    parser.add_argument("--batch", metavar="NAME", help="only of this batch")
    parser.add_argument("--category", help="only of this category")
    parser.add_argument("--priority", choices=("high", "normal", "low"), help="only of this priority")
    parser.add_argument("--since", metavar="TIME", help="accepted at or after: -1h, or a time")
    parser.add_argument("--until", metavar="TIME", help="accepted before, likewise")
    add_paging(parser)


def index(arguments: Arguments, screen: Screen) -> int:
    """List the notifications that match."""
    names = ("user", "to", "state", "channel", "template", "batch", "category", "priority", "since", "until")
    query = {name: getattr(arguments, name) for name in names}
    rows = partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/notifications", "notifications", rows, query)


def show(arguments: Arguments, screen: Screen) -> int:
    """Show a notification and its deliveries."""
    document = client_of(arguments).call("GET", _path(arguments.which))
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    deliveries = document.pop("deliveries", None) or []
    screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    if deliveries:
        screen.say("")
        screen.table(heads(), [row_of(delivery) for delivery in deliveries], spare=SPARE)
    return Exit.DONE


def explain(arguments: Arguments, screen: Screen) -> int:
    """Show the history of a notification, oldest first."""
    document = client_of(arguments).call("GET", f"{_path(arguments.which)}/explain")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    state = screen.word(document["state"]) if "state" in document else ""
    screen.say(f"{screen.paint(shown(document.get('id')), 'bold')} {state}".rstrip())
    names = ("when", "what", "try", "channel", "provider", "its id", "due", "late", "why")
    spare = ("its id", "due", "provider", "channel")
    screen.table(names, [_event(event, screen) for event in document["history"]], spare=spare)
    return Exit.DONE


def cancel(arguments: Arguments, screen: Screen) -> int:
    """Cancel each, and continue if one cannot be cancelled; returns the highest exit code."""
    client, worst = client_of(arguments), Exit.DONE
    for name in arguments.ids:
        try:
            show_outcome(client.call("DELETE", _path(name)), "", arguments, screen)
        except Failure as failure:
            if failure.code == Exit.UNREACHABLE:
                raise
            if arguments.json and failure.document is not None:
                screen.json(failure.document)
            screen.note(f"tidings: {name}: {failure}")
            worst = max(worst, failure.code)
    return worst


def _path(name: str) -> str:
    return f"/v1/notifications/{segment(name)}"


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    cells = [
        (
            row["id"],
            row.get("user") or _value("to", row.get("to"), screen),
            ", ".join(row.get("channels") or ()),
            row.get("template"),
            row["state"],
            screen.moment(row.get("due_at")),
            row.get("reason"),
        )
        for row in rows
    ]
    names = ("id", "to", "channels", "template", "state", "due", "why")
    screen.table(names, cells, heading=first, spare=("channels", "template"))


def _event(event: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    late = event.get("late_ms")
    return (
        screen.moment(event.get("at")),
        event.get("event"),
        event.get("attempt"),
        event.get("channel"),
        event.get("provider"),
        event.get("provider_id"),
        clock_text(str(event["due_at"])) if event.get("due_at") else "",
        "" if late is None else f"{late:,.1f} ms",
        event.get("reason"),
    )


def _value(name: str, value: Any, screen: Screen) -> Any:
    if name.endswith("_at"):
        return screen.moment(value) or value
    if name == "to" and isinstance(value, dict):
        return f"{value['platform']}:{value['token']}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
    return ", ".join(map(shown, value)) if isinstance(value, list) else value
