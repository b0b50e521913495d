"""`notifications`: what became of what people were to be told, and why."""

import argparse
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_bare_verb, add_server, client_of
from tidings.edges.cli.client import segment
from tidings.edges.cli.deliveries import STATES, heads, row_of
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.pages import Rows, add_paging, show_pages
from tidings.edges.cli.schedule import tell
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.templates import PARTS
from tidings.edges.cli.times import clock_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the four. `notifications` alone lists, so what `list` takes may follow it directly."""
    _add_search(parser)
    add_server(parser)
    parser.set_defaults(run=index)
    verbs = parser.add_subparsers(metavar="list|show|explain|cancel")
    for name, purpose, run in (
        ("list", "list notifications, the latest first", index),
        ("show", "the state of a notification, with its deliveries", show),
        ("explain", "what happened to it, from acceptance to the provider's receipt", explain),
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
    """Those that fit."""
    names = ("user", "to", "state", "channel", "template", "batch", "category", "priority", "since", "until")
    query = {name: getattr(arguments, name) for name in names}
    rows = partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/notifications", "notifications", rows, query)


def show(arguments: Arguments, screen: Screen) -> int:
    """One, and what was sent of it."""
    document = client_of(arguments).call("GET", _path(arguments.which))
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    deliveries = document.pop("deliveries", None) or []
    screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    if deliveries:
        screen.say("")
        screen.table(heads(), [row_of(delivery) for delivery in deliveries])
    return Exit.DONE


def explain(arguments: Arguments, screen: Screen) -> int:
    """Its story, oldest first."""
    document = client_of(arguments).call("GET", f"{_path(arguments.which)}/explain")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    state = screen.word(document["state"]) if "state" in document else ""
    screen.say(f"{screen.paint(shown(document.get('id')), 'bold')} {state}".rstrip())
    names = ("when", "what", "try", "channel", "provider", "its id", "due", "late", "why")
    screen.table(names, [_event(event, screen) for event in document["history"]])
    return Exit.DONE


def cancel(arguments: Arguments, screen: Screen) -> int:
    """Cancel each, and go on when one cannot be; the exit code is the worst."""
    client, worst = client_of(arguments), Exit.DONE
    for name in arguments.ids:
        try:
            tell(client.call("DELETE", _path(name)), "", arguments, screen)
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
    screen.table(("id", "to", "channels", "template", "state", "due", "why"), cells, heading=first)


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
