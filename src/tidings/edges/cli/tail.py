"""`tail`: follow a topic; goes on by itself after a lost connection, without a gap and without a repeat."""

import argparse
import json
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_bus, add_server, client_of, positive
from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.patience import Patience
from tidings.edges.cli.screen import Screen, dump, late, shown
from tidings.edges.cli.sse import read_events
from tidings.edges.cli.times import clock_text

LAST_DEFAULT = 10
PAGE_ROWS = 1_000
SILENCE_S = 60.0
NOWHERE = b"id: kafka.kA"  # where a stream of Kafka begins whose topic has no partitions


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("topic", metavar="TOPIC", help="the topic to follow; it need not exist yet")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        help=f"beginning, latest, or a cursor; default: the last {LAST_DEFAULT} records, then new ones",
    )
    parser.add_argument(
        "--count",
        type=positive,
        metavar="N",
        help="exit after N records; without --from, the last N (and new ones until there are N)",
    )
    add_bus(parser)
    parser.add_argument("--group", help="consume as a member of this consumer group")
    add_server(parser)
    parser.set_defaults(run=tail)


def tail(arguments: Arguments, screen: Screen) -> int:
    """Print each record as it appears, with its lateness."""
    client = client_of(arguments)
    show = Printer(arguments, screen).show
    if arguments.group is not None:
        from tidings.edges.cli.member import consume

        if arguments.start is not None:
            raise Failure(
                Exit.USAGE, "--from and --group exclude each other: a group continues from its committed offsets"
            )
        if arguments.bus == "kafka":
            raise Failure(
                Exit.USAGE,
                "--group works on the log only: on Kafka use a consumer of Kafka, such as kafka-console-consumer",
            )
        consume(client, arguments.topic, arguments.group, show, screen)
    else:
        last = arguments.count or LAST_DEFAULT
        for record in follow(client, arguments.topic, arguments.start, screen, last, arguments.bus):
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

    def __init__(self, client: Client, topic: str, bus: str | None = None) -> None:
        self._client = client
        self._bus = bus
        self._path = f"/v1/topics/{segment(topic)}"
        self._topic = topic
        self._position: str | None = None
        self._is_awaited = False

    def begin(self, start: str | None, last: int) -> list[dict[str, Any]]:
        """Find the position to follow from; answers what is to be shown before that: without a start the last few."""
        if start is None:
            return self.last(last)
        if start == "latest":
            self._position = self._page(start)["cursor"]
        elif start != "beginning":
            self._position = start
        return []

    def stream(self, screen: Screen) -> Iterator[dict[str, Any]]:
        """Records as they come, until the connection ends."""
        headers = {"Accept": "text/event-stream"}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        path, query = f"{self._path}/stream", {"bus": self._bus}
        with self._client.request("GET", path, query=query, headers=headers, timeout_s=SILENCE_S) as response:
            for event in read_events(self._noticed(response, screen)):
                self._position = event.position or self._position
                yield json.loads(event.data)

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest so many, and stand behind them."""
        topics = self._client.call("GET", "/v1/topics", query={"bus": self._bus})
        return self._last_on_kafka(count) if topics.get("bus") == "kafka" else self._last_on_log(count, topics)

    def more(self) -> list[dict[str, Any]]:
        """What has come since, a page at most."""
        page = self._page(self._position)
        self._position = page["cursor"]
        found: list[dict[str, Any]] = page["records"]
        return found

    def _noticed(self, lines: Iterable[bytes], screen: Screen) -> Iterator[bytes]:
        """The lines as they come; that the topic is not there yet is told once, for nothing else would be."""
        for line in lines:
            if not self._is_awaited and line.rstrip() == NOWHERE:
                self._is_awaited = True
                screen.note(f"the topic {self._topic} does not exist on Kafka yet: waiting for it")
            yield line

    def _last_on_log(self, count: int, topics: dict[str, Any]) -> list[dict[str, Any]]:
        """They are among the newest so many of each partition."""
        from tidings.bus.cursor import encode

        ends = self._ends(topics)
        starts = [max(first, following - count) for first, following in ends]
        self._position = encode(tuple(starts)) if ends else None
        there = sum(following for _, following in ends) - sum(starts)
        records: list[dict[str, Any]] = []
        while len(records) < there:
            if not (found := self.more()):
                break  # retention was faster
            records += found
        return sorted(records, key=itemgetter("released_at"))[-count:]

    def _last_on_kafka(self, count: int) -> list[dict[str, Any]]:
        """Not every offset of Kafka is a record: go back further until there are enough, or to the beginning."""
        from tidings.bus.cursor import encode, positions_of

        prefix, _, place = self._page("latest")["cursor"].rpartition(".")
        ends, back = positions_of(place), 2 * count
        while True:
            starts = tuple(max(0, end - back) for end in ends)
            self._position = f"{prefix}.{encode(starts)}"
            records: list[dict[str, Any]] = []
            while found := self.more():
                records += found
            if len(records) >= count or not any(starts):
                return sorted(records, key=lambda record: str(record.get("released_at")))[-count:]
            back *= 8

    def _page(self, cursor: str | None) -> dict[str, Any]:
        query = {"cursor": cursor, "limit": PAGE_ROWS, "bus": self._bus}
        page: dict[str, Any] = self._client.call("GET", f"{self._path}/records", query=query)
        return page

    def _ends(self, topics: dict[str, Any]) -> list[tuple[int, int]]:
        """Of each partition the oldest offset and the one to come; nothing of a topic to come."""
        found = (topic for topic in topics["topics"] if topic["name"] == self._topic)
        return [(part["first"], part["next"]) for topic in found for part in topic["partitions"]]


def follow(
    client: Client,
    topic: str,
    start: str | None,
    screen: Screen,
    last: int = LAST_DEFAULT,
    bus: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Records without end. A failure to begin is the caller's; a connection lost later is made again."""
    follower = Follower(client, topic, bus)
    yield from follower.begin(start, last)
    patience = Patience(screen)
    while True:
        try:
            for record in follower.stream(screen):
                patience.renew()
                yield record
        except Failure as failure:
            patience.check(failure)
        patience.wait()


def line_of(record: dict[str, Any], screen: Screen) -> str:
    """One record on one line: when it left, how late, which of several it is, its key, value and headers."""
    released = clock_text(str(record.get("released_at")))
    value = record["value"] if "value" in record else f"base64:{record.get('value_base64')}"
    key = record.get("key") or record.get("key_base64")
    words = [
        screen.paint(released, "dim"),
        screen.paint(f"{late(record):>9}", "cyan"),
        *([screen.paint(which, "dim")] if (which := _which(record)) else []),
        *([screen.paint(f"[{shown(key)}]", "bold")] if key is not None else []),
        shown(value if value is not None else "null"),
        *(screen.paint(f"{shown(name)}={_plain(item)}", "dim") for name, item in record.get("headers") or ()),
    ]
    return "  ".join(words)


def _which(record: dict[str, Any]) -> str:
    """The number of a later occurrence, and whether it is the last; nothing of what may be the only one."""
    number = str(record.get("occurrence") or "").rpartition("/")[2]
    words = [f"fired {number[1:]}"] if number[:1] == "-" else [f"#{number}"] if number not in {"", "1"} else []
    return " ".join([*words, "final"] if record.get("final") else words)


def _plain(header: object) -> str:
    return "null" if header is None else shown(header if isinstance(header, str) else dump(header))
