"""`tail`: follow a topic; goes on by itself after a lost connection, without a gap and without a repeat."""

import argparse
import json
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive
from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.patience import Patience
from tidings.edges.cli.screen import Screen, dump, late, shown
from tidings.edges.cli.sse import read_events
from tidings.edges.cli.times import clock_text

LAST_DEFAULT = 10
PAGE_ROWS = 1_000
SILENCE_S = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("topic", metavar="TOPIC", help="what to follow; it need not exist yet")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        help=f"beginning, latest, or a cursor; left out: the last {LAST_DEFAULT} records, then what comes",
    )
    parser.add_argument(
        "--count",
        type=positive,
        metavar="N",
        help="end after N records; without --from the last N, or what comes where there are fewer",
    )
    parser.add_argument("--group", help="share the topic with the other members of this consumer group")
    add_server(parser)
    parser.set_defaults(run=tail)


def tail(arguments: Arguments, screen: Screen) -> int:
    """Print each record as it appears, with its lateness."""
    client = client_of(arguments)
    show = Printer(arguments, screen).show
    if arguments.group is not None:
        from tidings.edges.cli.member import consume

        if arguments.start is not None:
            raise Failure(Exit.USAGE, "a group goes on where it stands: give --from or --group, not both")
        consume(client, arguments.topic, arguments.group, show, screen)
    else:
        last = arguments.count or LAST_DEFAULT
        for record in follow(client, arguments.topic, arguments.start, screen, last):
            if not show(record):
                break
    return Exit.DONE


class Printer:
    """Prints records until there are enough."""

    def __init__(self, arguments: Arguments, screen: Screen) -> None:
        self._screen = screen
        self._as_json = arguments.json
        self._left = arguments.count

    def show(self, record: dict[str, Any]) -> bool:
        """Print one; False if that was the last."""
        if self._as_json:
            self._screen.json(record)
        else:
            self._screen.say(line_of(record, self._screen))
        if self._left is not None:
            self._left -= 1
        return self._left != 0


class Follower:
    """One topic from one position on."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._path = f"/v1/topics/{segment(topic)}"
        self._topic = topic
        self._position: str | None = None

    def begin(self, start: str | None, last: int) -> list[dict[str, Any]]:
        """Find the position to follow from; answers what is to be shown before that: without a start the last few."""
        if start is None:
            return self._last(last)
        if start == "latest":
            self._position = self._page(start)["cursor"]
        elif start != "beginning":
            self._position = start
        return []

    def stream(self) -> Iterator[dict[str, Any]]:
        """Records as they come, until the connection ends."""
        headers = {"Accept": "text/event-stream"}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        with self._client.request("GET", f"{self._path}/stream", headers=headers, timeout_s=SILENCE_S) as response:
            for event in read_events(response):
                self._position = event.position or self._position
                yield json.loads(event.data)

    def _last(self, count: int) -> list[dict[str, Any]]:
        """The newest so many: they are among the newest so many of each partition."""
        from tidings.bus.cursor import encode

        ends = self._ends()
        starts = [max(first, following - count) for first, following in ends]
        self._position = encode(tuple(starts)) if ends else None
        there = sum(following for _, following in ends) - sum(starts)
        records: list[dict[str, Any]] = []
        while len(records) < there:
            page = self._page(self._position)
            self._position = page["cursor"]
            if not page["records"]:
                break  # retention was faster
            records += page["records"]
        return sorted(records, key=itemgetter("released_at"))[-count:]

    def _page(self, cursor: str | None) -> dict[str, Any]:
        query = {"cursor": cursor, "limit": PAGE_ROWS}
        page: dict[str, Any] = self._client.call("GET", f"{self._path}/records", query=query)
        return page

    def _ends(self) -> list[tuple[int, int]]:
        """Of each partition the oldest offset and the one to come; nothing of a topic to come."""
        topics = self._client.call("GET", "/v1/topics")["topics"]
        found = (topic for topic in topics if topic["name"] == self._topic)
        return [(part["first"], part["next"]) for topic in found for part in topic["partitions"]]


def follow(
    client: Client, topic: str, start: str | None, screen: Screen, last: int = LAST_DEFAULT
) -> Iterator[dict[str, Any]]:
    """Records without end. A failure to begin is the caller's; a connection lost later is made again."""
    follower = Follower(client, topic)
    yield from follower.begin(start, last)
    patience = Patience(screen)
    while True:
        try:
            for record in follower.stream():
                patience.renew()
                yield record
        except Failure as failure:
            patience.check(failure)
        patience.wait()


def line_of(record: dict[str, Any], screen: Screen) -> str:
    """One record on one line: when it left, how late, its key, value and headers."""
    released = clock_text(str(record.get("released_at")))
    value = record["value"] if "value" in record else f"base64:{record.get('value_base64')}"
    key = record.get("key") or record.get("key_base64")
    words = [
        screen.paint(released, "dim"),
        screen.paint(f"{late(record):>9}", "cyan"),
        *([screen.paint(f"[{shown(key)}]", "bold")] if key is not None else []),
        shown(value if value is not None else "null"),
        *(screen.paint(f"{shown(name)}={_plain(item)}", "dim") for name, item in record.get("headers") or ()),
    ]
    return "  ".join(words)


def _plain(header: object) -> str:
    return "null" if header is None else shown(header if isinstance(header, str) else dump(header))
