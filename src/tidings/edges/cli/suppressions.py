"""`suppressions`: addresses that nothing is sent to, because they do not exist or somebody does not want it."""

import argparse
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_verb, client_of
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.pages import Rows, add_paging, show_pages
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.templates import PARTS

FORGOTTEN = "(a digest)"


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the three."""
    verbs = parser.add_subparsers(metavar="list|add|remove", required=True)
    listing = add_verb(verbs, "list", "list them, the latest first", index)
    listing.add_argument("--channel", choices=tuple(PARTS), help="only of this channel")
    add_paging(listing)
    adding = add_verb(verbs, "add", "suppress an address", add)
    _add_place(adding, "only this category; left out: everything")
    adding.add_argument("--reason", default="by hand", help="why (by hand)")
    _add_place(add_verb(verbs, "remove", "remove a suppression", remove), "only the suppression of this category")


def _add_place(parser: argparse.ArgumentParser, category: str) -> None:
    parser.add_argument("channel", choices=tuple(PARTS), metavar="CHANNEL", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("address", metavar="ADDRESS", help="the address; for push apns:TOKEN or fcm:TOKEN")
    parser.add_argument("--category", help=category)


def index(arguments: Arguments, screen: Screen) -> int:
    """Those of a channel, or all."""
    query, rows = {"channel": arguments.channel}, partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/suppressions", "suppressions", rows, query, "no address is suppressed")


def add(arguments: Arguments, screen: Screen) -> int:
    """Suppress an address."""
    body = {"reason": arguments.reason, "category": arguments.category}
    given = {name: value for name, value in body.items() if value is not None}
    answer = client_of(arguments).call("PUT", _path(arguments), body=given)
    return _tell(answer, arguments, screen)


def remove(arguments: Arguments, screen: Screen) -> int:
    """Let messages go there again."""
    answer = client_of(arguments).call("DELETE", _path(arguments), query={"category": arguments.category})
    return _tell(answer, arguments, screen)


def _path(arguments: Arguments) -> str:
    return f"/v1/suppressions/{arguments.channel}/{segment(arguments.address)}"


def _tell(answer: dict[str, Any], arguments: Arguments, screen: Screen) -> int:
    if arguments.json:
        screen.json(answer)
    else:
        of = f" for {shown(arguments.category)}" if arguments.category else ""
        word = screen.word(answer["outcome"])
        screen.say(f"{word} {arguments.channel} {screen.paint(shown(arguments.address), 'bold')}{of}")
    return Exit.DONE


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    cells = [
        (
            row["channel"],
            row.get("address") or FORGOTTEN,
            row.get("category") or "all",
            row.get("reason"),
            screen.moment(row.get("since")),
        )
        for row in rows
    ]
    screen.table(("channel", "address", "for", "why", "since"), cells, heading=first, states=False)
