"""Lists that come in pages: how many are wanted, and page after page until there are enough."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidings.edges.cli.arguments import Arguments, client_of, positive
from tidings.edges.cli.client import Client
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen

PAGE_ROWS = 500
LIMIT_DEFAULT = 50

Rows = list[dict[str, Any]]
ShowRows = Callable[[Rows, bool], None]


def add_paging(parser: argparse.ArgumentParser) -> None:
    """How many, and from where on."""
    parser.add_argument(
        "--limit", type=positive, default=LIMIT_DEFAULT, help=f"the most to list (default: {LIMIT_DEFAULT})"
    )
    parser.add_argument("--all", action="store_true", help="list all of them")
    parser.add_argument("--cursor", help="continue from the cursor that an earlier list printed")


def show_pages(
    arguments: Arguments,
    screen: Screen,
    path: str,
    noun: str,
    show_rows: ShowRows,
    query: Mapping[str, object] | None = None,
    empty: str = "nothing matches",
) -> int:
    """Show what a path lists under a noun; `show_rows` is told whether these are the first, which need a heading."""
    cursor, found = None, 0
    for page in pages(client_of(arguments), path, noun, query or {}, arguments):
        cursor, rows = page.get("cursor"), page[noun]
        if arguments.json:
            for row in rows:
                screen.json(row)
        elif rows:
            show_rows(rows, found == 0)
        found += len(rows)
    if not found:
        screen.note(empty)
    if cursor is not None:
        screen.note(f"there are more: use --all, or continue with --cursor {cursor}")
    return Exit.DONE


def pages(
    client: Client, path: str, noun: str, query: Mapping[str, object], arguments: Arguments
) -> Iterator[dict[str, Any]]:
    """Page after page until there are enough. A page may be short, or empty, while there is more."""
    cursor, left = arguments.cursor, None if arguments.all else arguments.limit
    while left is None or left > 0:
        limit = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page = client.call("GET", path, query={**query, "cursor": cursor, "limit": limit})
        cursor = page.get("cursor")
        left = None if left is None else left - len(page[noun])
        yield page
        if cursor is None:
            return
