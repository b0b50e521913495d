"""`topics`, `tail` and `rejections`: list topics, follow one, and show rejected Kafka requests."""

import argparse
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from tidings.domain.errors import Invalid
from tidings.edges.advice import wrong_tenant
from tidings.edges.cli.arguments import Arguments, add_bus, add_server, client_of, positive, tenant_of
from tidings.edges.cli.client import Client, Retries, read_events, segment
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen, clock_text, dump, late, shown
from tidings.wires.wire import is_rejections
from tidings.wires.wire import rejections as rejections_of

LAST_DEFAULT = 10
PAGE_ROWS = 1_000
SILENCE_S = 60.0
NO_PARTITIONS = b"id: kafka.kA"  # the first position of a stream of a Kafka topic that does not exist

BATCH_RECORDS = 100
WAIT = "1s"

Show = Callable[[dict[str, Any]], bool]

COUNT_DEFAULT = 20
POLL_S = 1.0
KEY_CHARS_MAX = 60


def configure_topics(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `topics`."""
    add_bus(parser)
    add_server(parser)
    parser.set_defaults(run=topics)


def topics(arguments: Arguments, screen: Screen) -> int:
    """List topics by name, with their sizes."""
    document = client_of(arguments).call("GET", "/v1/topics", query={"bus": arguments.bus})
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    if document.get("bus") == "kafka":
        screen.table(("topic", "partitions"), [(t["name"], len(t["partitions"])) for t in document["topics"]])
        return Exit.DONE
    rows = [(t["name"], f"{t.get('records', 0):,}", size(t.get("bytes", 0))) for t in document["topics"]]
    if rows:
        screen.table(("topic", "records", "size"), rows)
    else:
        screen.note("there are no topics yet: a topic is created by the first release to it")
    return Exit.DONE


def size(count: int) -> str:
    """A number of bytes in a readable unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def configure_tail(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tail`."""
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
        _check_start(arguments.start)
        last = arguments.count or LAST_DEFAULT
        for record in follow(client, arguments.topic, arguments.start, screen, last, arguments.bus):
            if not show(record):
                break
    return Exit.DONE


def _check_start(start: str | None) -> None:
    """Refuse a `--from` that is neither a word nor a cursor, such as Kafka's `earliest`."""
    if start in {None, "beginning", "latest"} or str(start).startswith("kafka."):
        return
    from tidings.bus.log_reader import positions_of

    try:
        positions_of(str(start))
    except Invalid:
        raise Failure(Exit.USAGE, f"--from {start}: use --from beginning, latest or a cursor") from None


class Printer:
    """Prints records until there are `--count` of them."""

    def __init__(self, arguments: Arguments, screen: Screen) -> None:
        self._screen = screen
        self._as_json = arguments.json
        self._left = arguments.count

    def show(self, record: dict[str, Any]) -> bool:
        """Print one record; False if it was the last one wanted."""
        if self._as_json:
            self._screen.json(record)
        else:
            self._screen.say(line_of(record, self._screen))
        if self._left is not None:
            self._left -= 1
        return self._left != 0


class Follower:
    """Reads a topic from a position on."""

    def __init__(self, client: Client, topic: str, bus: str | None = None) -> None:
        self._client = client
        self._bus = bus
        self._path = f"/v1/topics/{segment(topic)}"
        self._topic = topic
        self._position: str | None = None
        self._is_missing_noted = False

    def begin(self, start: str | None, last: int) -> list[dict[str, Any]]:
        """Set the position to follow from; returns the records to show first: without a start, the last few."""
        if start is None:
            return self.last(last)
        if start == "latest":
            self._position = self._page(start)["cursor"]
        elif start != "beginning":
            self._position = start
        return []

    def stream(self, screen: Screen) -> Iterator[dict[str, Any]]:
        """Records as they appear, until the connection ends."""
        headers = {"Accept": "text/event-stream"}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        path, query = f"{self._path}/stream", {"bus": self._bus}
        with self._client.request("GET", path, query=query, headers=headers, timeout_s=SILENCE_S) as response:
            for event in read_events(self._with_notice(response, screen)):
                self._position = event.position or self._position
                yield json.loads(event.data)

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest `count` records; the position is then behind them."""
        topics = self._client.call("GET", "/v1/topics", query={"bus": self._bus})
        return self._last_on_kafka(count) if topics.get("bus") == "kafka" else self._last_on_log(count, topics)

    def more(self) -> list[dict[str, Any]]:
        """The records since the last call, at most a page."""
        page = self._page(self._position)
        self._position = page["cursor"]
        found: list[dict[str, Any]] = page["records"]
        return found

    def _with_notice(self, lines: Iterable[bytes], screen: Screen) -> Iterator[bytes]:
        """The lines of the stream; notes once that the topic does not exist yet, because nothing else would show it."""
        for line in lines:
            if not self._is_missing_noted and line.rstrip() == NO_PARTITIONS:
                self._is_missing_noted = True
                screen.note(f"the topic {self._topic} does not exist on Kafka yet: waiting for it")
            yield line

    def _last_on_log(self, count: int, topics: dict[str, Any]) -> list[dict[str, Any]]:
        """The newest records are among the newest `count` of each partition."""
        from tidings.bus.log_reader import encode

        ends = self._ends(topics)
        starts = [max(first, following - count) for first, following in ends]
        self._position = encode(tuple(starts)) if ends else None
        available = sum(following for _, following in ends) - sum(starts)
        records: list[dict[str, Any]] = []
        while len(records) < available:
            if not (found := self.more()):
                break  # retention has removed some of them
            records += found
        return sorted(records, key=itemgetter("released_at"))[-count:]

    def _last_on_kafka(self, count: int) -> list[dict[str, Any]]:
        """On Kafka not every offset is a record: go back further until there are enough, or to the beginning."""
        from tidings.bus.log_reader import encode, positions_of

        prefix, _, positions = self._page("latest")["cursor"].rpartition(".")
        ends, back = positions_of(positions), 2 * count
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
        """The oldest and the next offset of each partition; empty if the topic does not exist yet."""
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
    """Records without end. A failure at the start is raised; a connection that is lost later is reopened."""
    follower = Follower(client, topic, bus)
    yield from follower.begin(start, last)
    retries = Retries(screen)
    while True:
        try:
            for record in follower.stream(screen):
                retries.reset()
                yield record
        except Failure as failure:
            retries.check(failure)
        retries.wait()


def line_of(record: dict[str, Any], screen: Screen) -> str:
    """One record on one line: when it was released, how late, its occurrence number, key, value and headers."""
    released = clock_text(str(record.get("released_at")))
    value = record["value"] if "value" in record else f"base64:{record.get('value_base64')}"
    key = record.get("key") or record.get("key_base64")
    words = [
        screen.paint(released, "dim"),
        screen.paint(f"{late(record):>9}", "cyan"),
        *([screen.paint(number, "dim")] if (number := _occurrence(record)) else []),
        *([screen.paint(f"[{shown(key)}]", "bold")] if key is not None else []),
        shown(value if value is not None else "null"),
        *(screen.paint(f"{shown(name)}={_plain(item)}", "dim") for name, item in record.get("headers") or ()),
    ]
    return "  ".join(words)


def _occurrence(record: dict[str, Any]) -> str:
    """The number of an occurrence after the first, and whether it is the last one."""
    number = str(record.get("occurrence") or "").rpartition("/")[2]
    words = [f"fired {number[1:]}"] if number[:1] == "-" else [f"#{number}"] if number not in {"", "1"} else []
    return " ".join([*words, "final"] if record.get("final") else words)


def _plain(header: object) -> str:
    return "null" if header is None else shown(header if isinstance(header, str) else dump(header))


class Member:
    """One member of a consumer group of a topic."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self._client = client
        self._path = f"/v1/topics/{segment(topic)}/groups/{segment(group)}"
        self._membership: dict[str, Any] = {}
        self._must_rejoin = False

    def join(self) -> None:
        """Join the group; when joining again, under the same name, so that the member keeps its partitions."""
        self._settle(self._call("join", {"member": self._membership["member"]} if self._membership else {}))
        self._must_rejoin = False

    def fetch(self) -> list[dict[str, Any]]:
        """The next records; waits a second for the first one.

        If the answer is lost, its records count as fetched: the member joins again, and gets uncommitted records again.
        """
        if self._must_rejoin:
            self.join()
        try:
            fetched = self._call("fetch", {**self._membership, "limit": BATCH_RECORDS, "wait": WAIT})
        except Failure as failure:
            self._must_rejoin = failure.code != Exit.CONFLICT
            raise
        records: list[dict[str, Any]] = fetched["records"]
        if not records:
            self.heartbeat()
        return records

    def heartbeat(self) -> None:
        """Stay a member, and learn the current generation."""
        self._settle(self._call("heartbeat", self._membership))

    def commit(self, offsets: dict[int, int]) -> None:
        """Commit how far the records are processed."""
        self._call("commit", {**self._membership, "offsets": offsets})

    def leave(self) -> None:
        """Leave the group, so that other members take over at once."""
        self._call("leave", self._membership)

    def _settle(self, membership: dict[str, Any]) -> None:
        self._membership = {name: membership[name] for name in ("member", "generation")}

    def _call(self, verb: str, body: dict[str, Any]) -> Any:
        return self._client.call("POST", f"{self._path}/{verb}", body=body)


def consume(client: Client, topic: str, group: str, show: Show, screen: Screen) -> None:
    """Show the records of one member of a group until `show` returns False."""
    member = Member(client, topic, group)
    member.join()
    retries = Retries(screen)
    try:
        while _consume_batch(member, show, retries):
            pass
    finally:
        _ignore_failure(member.leave)


def _consume_batch(member: Member, show: Show, retries: Retries) -> bool:
    """Fetch, show and commit one batch; False if `show` returned False."""
    try:
        records = member.fetch()
    except Failure as failure:
        _recover(member, failure, retries)
        return True
    retries.reset()
    offsets: dict[int, int] = {}
    try:
        for record in records:
            more = show(record)
            offsets[record["partition"]] = record["offset"] + 1
            if not more:
                return False
    finally:
        if offsets:
            _ignore_failure(lambda: member.commit(offsets))
    return True


def _recover(member: Member, failure: Failure, retries: Retries) -> None:
    """Adapt to the group after a conflict; wait if the server is unavailable."""
    if failure.code != Exit.CONFLICT:
        retries.check(failure)
        retries.wait()
        return
    try:
        member.heartbeat()
    except Failure as refused:
        if refused.code != Exit.CONFLICT:
            return
        member.join()


def _ignore_failure(action: Callable[[], None]) -> None:
    """Ignore a failure: its only effect is that uncommitted records are delivered again."""
    try:
        action()
    except Failure:
        return


def configure_rejections(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rejections`."""
    parser.add_argument(
        "tenant", metavar="TENANT", nargs="?", help="the tenant; default: every tenant that the key may read"
    )
    parser.add_argument(
        "--count", type=positive, default=COUNT_DEFAULT, metavar="N", help=f"show the last N (default: {COUNT_DEFAULT})"
    )
    parser.add_argument("--follow", action="store_true", help="then wait for new ones")
    add_server(parser)
    parser.set_defaults(run=rejections)


def rejections(arguments: Arguments, screen: Screen) -> int:
    """Show the newest rejections, oldest first, and with `--follow` new ones as they appear."""
    tenant = arguments.tenant or tenant_of(arguments)
    if tenant is not None and (wrong := wrong_tenant(tenant)):
        raise Failure(Exit.USAGE, f"{tenant!r} {wrong}")
    rejected = Rejections(client_of(arguments), tenant)
    found = rejected.last(arguments.count)
    for record in found:
        show(record, screen, arguments.json)
    if not rejected.has_topics and tenant is not None:
        text = f"{tenant} has no rejection topic: none of its requests was rejected yet, or the name is wrong"
        if not arguments.follow:
            raise Failure(Exit.NOT_FOUND, text)
        screen.note(text)
    elif not found and not arguments.follow:
        screen.note("nothing was rejected")
    retries = Retries(screen)
    while arguments.follow:
        threading.Event().wait(POLL_S)
        try:
            for record in rejected.more():
                show(record, screen, arguments.json)
            retries.reset()
        except Failure as failure:
            retries.check(failure)
            retries.wait()
    return Exit.DONE


class Rejections:
    """The rejection topics of one tenant, or of all; each is read on from its last position."""

    def __init__(self, client: Client, tenant: str | None) -> None:
        self._client = client
        self._tenant = tenant
        self._followers: dict[str, Follower] = {}

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest `count` records of all topics. Raises `Failure` if the topics of the tenant may not be read."""
        found = [record for topic in self._topics() for record in self._follower(topic).last(count)]
        if not self.has_topics and self._tenant is not None:
            Follower(self._client, rejections_of(self._tenant)[0], "kafka").more()
        return sorted(found, key=lambda record: str(record.get("released_at")))[-count:]

    @property
    def has_topics(self) -> bool:
        """Whether there are any rejection topics."""
        return bool(self._followers)

    def more(self) -> Iterator[dict[str, Any]]:
        """The records since the last call, also of new topics."""
        for topic in self._topics():
            while found := self._follower(topic).more():
                yield from found

    def _follower(self, topic: str) -> Follower:
        return self._followers.setdefault(topic, Follower(self._client, topic, "kafka"))

    def _topics(self) -> list[str]:
        topics = self._client.call("GET", "/v1/topics", query={"bus": "kafka"})["topics"]
        mine = None if self._tenant is None else rejections_of(self._tenant)
        return [
            topic["name"]
            for topic in topics
            if (is_rejections(topic["name"]) if mine is None else topic["name"] in mine)
        ]


def show(record: dict[str, Any], screen: Screen, as_json: bool) -> None:
    """Print one rejection on one line: when, which record, its key, and why."""
    refusal = refusal_of(record)
    if as_json:
        screen.json(refusal)
        return
    source = "/".join(str(refusal[name]) for name in ("source_topic", "source_partition", "source_offset"))
    if refusal["source_topic"] is None:  # the request was accepted, and its destination refused the record
        source = f"{refusal.get('source_id')} to {refusal.get('to')}"
    key = refusal.get("key") or refusal.get("key_base64")
    words = [
        screen.paint(clock_text(str(refusal["at"])), "dim"),
        screen.paint(shown(source), "cyan"),
        *([screen.paint(f"[{_short(shown(key))}]", "bold")] if key is not None else []),
        shown("; ".join(refusal["reasons"])),
    ]
    screen.say("  ".join(words))


def refusal_of(record: dict[str, Any]) -> dict[str, Any]:
    """The rejection that a record describes; the last one if it was rejected repeatedly."""
    headers = [(name, value) for name, value in record["headers"] if name.startswith("tidings-")]
    names = [name for name, _ in headers]
    last = len(names) - 1 - names[::-1].index("tidings-source-topic") if "tidings-source-topic" in names else 0
    last_headers = dict(headers[last:])
    refusal = {
        "at": record.get("released_at"),
        "source_topic": last_headers.get("tidings-source-topic"),
        "source_partition": _number(last_headers.get("tidings-source-partition")),
        "source_offset": _number(last_headers.get("tidings-source-offset")),
        "reasons": [str(value) for name, value in headers[last:] if name == "tidings-reject-reason"],
    }
    if refusal["source_topic"] is None:
        refusal |= {"source_id": last_headers.get("tidings-source-id"), "to": last_headers.get("tidings-to")}
    kept = ("key", "key_base64", "value", "value_base64", "topic", "partition", "offset")
    return refusal | {name: record[name] for name in kept if name in record}


def _short(text: str) -> str:
    """A key, shortened to fit on the line; `--json` shows all of it."""
    return text if len(text) <= KEY_CHARS_MAX else f"{text[: KEY_CHARS_MAX - 3]}..."


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None
