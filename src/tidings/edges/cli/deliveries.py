"""`deliveries`: what was sent, through what, how late, under which id of the provider's, and what became of it."""

import argparse
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.pages import Rows, add_paging, show_pages
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.templates import PARTS
from tidings.edges.cli.times import clock_text, instant, length

STATES = (
    "pending", "processing", "sent", "delivered", "bounced", "complained", "failed", "cancelled", "expired", "skipped",
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers. `deliveries` alone lists, so what `list` takes may follow it directly."""
    _add_search(parser)
    add_server(parser)
    parser.set_defaults(run=index)
    verbs = parser.add_subparsers(metavar="list|show|retry")
    for name, purpose, run in (
        ("list", "list deliveries, those due last first", index),
        ("show", "one delivery, with each attempt", show),
        ("retry", "send again what was given up", retry),
    ):
        # What is not said behind the verb may have been said before it.
        verb = verbs.add_parser(
            name,
            help=purpose,
            description=f"{purpose.capitalize()}.",
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        if name == "list":
            _add_search(verb)
        elif name == "show":
            verb.add_argument("name", metavar="DELIVERY", help="the delivery, such as order-42/1")
        else:
            verb.add_argument("names", metavar="DELIVERY", nargs="+", help="the deliveries, such as order-42/1")
        add_server(verb)
        verb.set_defaults(run=run)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", help="only to her")
    parser.add_argument("--state", choices=STATES, help="only in this state")
    parser.add_argument("--channel", choices=tuple(PARTS), help="only by this channel")
    parser.add_argument("--notification", metavar="ID", help="only of this notification")
    add_paging(parser)


def index(arguments: Arguments, screen: Screen) -> int:
    """Those that fit."""
    query = {name: getattr(arguments, name) for name in ("user", "state", "channel", "notification")}
    rows = partial(_show_rows, screen=screen)
    empty = "nothing was sent yet that fits: `notifications list` shows what is to come"
    return show_pages(arguments, screen, "/v1/deliveries", "deliveries", rows, query, empty)


def show(arguments: Arguments, screen: Screen) -> int:
    """One delivery."""
    document = client_of(arguments).call("GET", _path(arguments.name))
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    attempts = document.pop("attempts", None) or []
    news = document.pop("news", None) or []
    screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    if attempts:
        screen.say("")
        screen.table(("attempt", "channel", "provider", "begun", "took", "outcome", "why"), map(_attempt, attempts))
    if news:
        screen.say("")
        screen.table(("told at", "what", "why"), [(screen.moment(n["at"]), n["state"], n.get("reason")) for n in news])
    return Exit.DONE


def retry(arguments: Arguments, screen: Screen) -> int:
    """Send each again, and go on when one cannot be; the exit code is the worst."""
    client, worst = client_of(arguments), Exit.DONE
    for name in arguments.names:
        try:
            answer = client.call("POST", f"{_path(name)}/retry")
        except Failure as failure:
            if failure.code == Exit.UNREACHABLE:
                raise
            if arguments.json and failure.document is not None:
                screen.json(failure.document)
            screen.note(f"tidings: {name}: {failure}")
            worst = max(worst, failure.code)
            continue
        if arguments.json:
            screen.json(answer)
        else:
            screen.say(f"{screen.paint(shown(name), 'bold')} is {screen.word(answer.get('state') or 'pending')} again")
    return worst


def heads() -> tuple[str, ...]:
    """The columns of `row_of`."""
    return ("delivery", "to", "channel", "provider", "state", "late", "sent", "provider's id", "why")


def row_of(delivery: dict[str, Any]) -> tuple[object, ...]:
    """A delivery in one line."""
    return (
        delivery["name"],
        delivery.get("user") or delivery.get("address"),
        delivery.get("channel"),
        delivery.get("provider"),
        delivery["state"],
        late_text(delivery),
        _clock(delivery.get("sent_at")),
        delivery.get("provider_id"),
        delivery.get("reason"),
    )


def late_text(delivery: dict[str, Any]) -> str:
    """How long after its due time it was sent."""
    late_ms = delivery.get("late_ms")
    if late_ms is None:
        return ""
    return f"{late_ms:,.1f} ms" if late_ms < 1_000 else length(int(late_ms * 1_000))


def _path(name: str) -> str:
    return f"/v1/deliveries/{segment(name)}"


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    screen.table(heads(), [row_of(row) for row in rows], heading=first)


def _attempt(attempt: dict[str, Any]) -> tuple[object, ...]:
    begun, ended = instant(attempt.get("begun_at")), instant(attempt.get("ended_at"))
    took = "" if begun is None or ended is None else f"{(ended - begun) / 1_000:,.1f} ms"
    return (
        attempt.get("number"),
        attempt.get("channel"),
        attempt.get("provider"),
        _clock(attempt.get("begun_at")),
        took,
        attempt.get("outcome") or "under way, or cut off",
        attempt.get("detail"),
    )


def _clock(at: object) -> str:
    return "" if at is None else clock_text(str(at))


def _value(name: str, value: Any, screen: Screen) -> Any:
    return screen.moment(value) or value if name.endswith("_at") else value
