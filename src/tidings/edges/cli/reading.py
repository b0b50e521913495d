"""`show`, `explain` and `list`: what the timeline holds and what became of it."""

import argparse
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, pair
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.pages import add_paging, show_pages
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.times import clock_text

STATES = ("pending", "paused", "in_flight", "released", "missed", "cancelled", "ended")
TIMES = ("due_at", "accepted_at", "released_at", "finished_at", "at")


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser of one of these commands."""
    name = parser.get_default("command")
    if name == "list":
        _configure_list(parser)
        parser.set_defaults(run=show_list)
    else:
        parser.add_argument("id", metavar="ID", help="the id of the schedule")
        parser.set_defaults(run=show if name == "show" else explain)
    add_server(parser)


def _configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="only schedules of this topic")
    parser.add_argument("--state", choices=STATES, help="only schedules in this state")
    parser.add_argument("--from", dest="due_from", metavar="TIME", help="due at or after this: a time, +1h or -1h")
    parser.add_argument("--to", dest="due_to", metavar="TIME", help="due before this")
    parser.add_argument("--prefix", help="only ids that begin with this")
    parser.add_argument("--label", type=pair, metavar="NAME=VALUE", help="only with this label")
    add_paging(parser)


def show(arguments: Arguments, screen: Screen) -> int:
    """One schedule."""
    document = client_of(arguments).call("GET", f"/v1/schedules/{segment(arguments.id)}")
    if arguments.json:
        screen.json(document)
    else:
        screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    return Exit.DONE


def explain(arguments: Arguments, screen: Screen) -> int:
    """The history of one schedule."""
    document = client_of(arguments).call("GET", f"/v1/schedules/{segment(arguments.id)}/explain")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    events = document["history"]
    kept = f", held: {shown(document['reason'])}" if _is_kept_back(document) else ""
    screen.say(f"{screen.paint(shown(document.get('id')), 'bold')} {screen.word(document.get('state'))}{kept}")
    if note := document.get("note"):
        screen.note(shown(note))
    heads = ("when", "what", "occurrence", "due", "late", "why")
    screen.table(heads, [_event(event, screen) for event in events], spare=("due",))
    return Exit.DONE


def show_list(arguments: Arguments, screen: Screen) -> int:
    """Schedules: what is to come, the next due first, then what is finished."""
    query = {
        "topic": arguments.topic,
        "state": arguments.state,
        "from": arguments.due_from,
        "to": arguments.due_to,
        "prefix": arguments.prefix,
        "label": None if arguments.label is None else "=".join(arguments.label),
    }
    show_rows = partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/schedules", "schedules", show_rows, query)


def _show_rows(rows: list[dict[str, Any]], first: bool, screen: Screen) -> None:
    columns = ("id", "topic", "state", "priority")
    cells = [[*map(row.get, columns), screen.moment(row.get("due_at"))] for row in rows]
    screen.table((*columns, "due"), cells, heading=first, spare=("priority",))


def _value(name: str, value: Any, screen: Screen) -> Any:
    if name in TIMES:
        return screen.moment(value) or value
    if name == "headers":
        return ", ".join("=".join(map(shown, header)) for header in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
    return value


def _is_kept_back(document: dict[str, Any]) -> bool:
    """Whether its destination does not take it; one that is in flight without a reason is on its way."""
    return document.get("state") == "in_flight" and bool(document.get("reason"))


def _event(event: dict[str, Any], screen: Screen) -> list[object]:
    late = event.get("late_ms")
    why = event.get("reason") or ""
    if (count := event.get("count") or 1) > 1:
        why = f"{why} ({count} occurrences)".strip()
    return [
        screen.moment(event.get("at")),
        event.get("event"),
        event.get("occurrence"),
        clock_text(str(event["due_at"])) if "due_at" in event else "",
        "" if late is None else f"{late:,.1f} ms",
        why,
    ]
