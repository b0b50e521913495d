"""`inbox`: what a person was told inside the product, and what comes."""

import argparse
import json
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.pages import add_paging, pages
from tidings.edges.cli.patience import Patience
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.sse import read_events
from tidings.edges.cli.times import clock_text

SILENCE_S = 60.0
READ_IDS_MAX = 500
KNOWN_MAX = 1_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("user", metavar="USER", help="whose")
    parser.add_argument("--follow", action="store_true", help="then follow new messages")
    parser.add_argument("--unread", action="store_true", help="only unread messages")
    parser.add_argument("--read", action="store_true", help="mark the messages shown as read")
    parser.add_argument("--count", type=positive, metavar="N", help="with --follow: stop after N messages")
    add_paging(parser)
    add_server(parser)
    parser.set_defaults(run=inbox)


def inbox(arguments: Arguments, screen: Screen) -> int:
    """Her lines, the latest last; then those to come."""
    box = Box(arguments, screen)
    if not arguments.follow:
        if arguments.count is not None:
            raise Failure(Exit.USAGE, "--count needs --follow; use --limit for how many messages to show")
        box.show(box.there())
        return Exit.DONE
    with closing(box.follow()) as coming:
        next(coming)  # it listens from here on, so that nothing comes between what is there and what follows
        found = box.there()
        left = len(found) if arguments.count is None else arguments.count
        box.show(found[:left])
        left -= len(found)
        known = deque((line["id"] for line in found), KNOWN_MAX)
        while arguments.count is None or left > 0:
            line = next(coming)
            if line is not None and line["id"] not in known:  # what came just before may come once more
                known.append(line["id"])
                box.show([line])
                left -= 1
    return Exit.DONE


class Box:
    """One person's inbox."""

    def __init__(self, arguments: Arguments, screen: Screen) -> None:
        self._arguments = arguments
        self._screen = screen
        self._client = client_of(arguments)
        self._path = f"/v1/inbox/{segment(arguments.user)}"
        self._position: str | None = None

    def there(self) -> list[dict[str, Any]]:
        """What is there, as much of it as is asked for, the latest last."""
        query = {"unread": "true" if self._arguments.unread else None}
        found, cursor = list[dict[str, Any]](), None
        for page in pages(self._client, self._path, "lines", query, self._arguments):
            found += page["lines"]
            cursor = page.get("cursor")
        if not found:
            self._client.call("GET", f"/v1/users/{segment(self._arguments.user)}")  # says so if there is no such user
        if not found and not self._arguments.follow:
            self._screen.note("the inbox is empty" if not self._arguments.unread else "no unread messages")
        if cursor is not None:
            self._screen.note(f"there is more: --all, or go on with --cursor {cursor}")
        return found[::-1]

    def show(self, lines: list[dict[str, Any]]) -> None:
        """Show them, and mark them as read if that is asked for."""
        for line in lines:
            if self._arguments.json:
                self._screen.json(line)
            else:
                self._screen.say(line_of(line, self._screen))
        unread = [line["id"] for line in lines if not line.get("read_at")]
        for start in range(0, len(unread) if self._arguments.read else 0, READ_IDS_MAX):
            self._client.call("POST", f"{self._path}/read", body={"ids": unread[start : start + READ_IDS_MAX]})

    def follow(self) -> Generator[dict[str, Any] | None, None, None]:
        """None once it listens, then lines without end. A connection that is lost later is made again."""
        patience = Patience(self._screen)
        while True:
            try:
                for line in self._stream():
                    patience.renew()
                    yield line
            except Failure as failure:
                if self._position is None:
                    raise
                patience.check(failure)
            patience.wait()

    def _stream(self) -> Iterator[dict[str, Any] | None]:
        headers = {"Accept": "text/event-stream"}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        with self._client.request("GET", f"{self._path}/stream", headers=headers, timeout_s=SILENCE_S) as response:
            if self._position is None:
                yield None
            for event in read_events(self._noted(response)):
                yield json.loads(event.data)

    def _noted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The lines as they come; where to go on is said before the first line, too."""
        for line in lines:
            if line.startswith(b"id:"):
                self._position = line[3:].decode("utf-8", "replace").strip()
            yield line


def line_of(line: dict[str, Any], screen: Screen) -> str:
    """When it came, whether it is unread, and what it says."""
    words = [
        screen.paint(clock_text(str(line.get("at"))), "dim"),
        screen.paint("read" if line.get("read_at") else "new ", "dim" if line.get("read_at") else "green"),
        screen.paint(shown(line.get("title")), "bold"),
        shown(line.get("body")),
    ]
    return "  ".join(word for word in words if word)
