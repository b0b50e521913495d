"""`rejections`: what was refused of the requests on Kafka, and why."""

import argparse
import threading
from collections.abc import Iterator
from typing import Any

from tidings.edges.advice import wrong_tenant
from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive, tenant_of
from tidings.edges.cli.client import Client
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.patience import Patience
from tidings.edges.cli.screen import Screen, shown
from tidings.edges.cli.tail import Follower
from tidings.edges.cli.times import clock_text
from tidings.wires.destinations import is_rejections
from tidings.wires.destinations import rejections as rejections_of

COUNT_DEFAULT = 20
LOOK_AGAIN_S = 1.0
KEY_CHARS_MAX = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
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
    """The newest refusals, oldest first; then those to come."""
    tenant = arguments.tenant or tenant_of(arguments)
    if tenant is not None and (wrong := wrong_tenant(tenant)):
        raise Failure(Exit.USAGE, f"{tenant!r} {wrong}")
    desk = Desk(client_of(arguments), tenant)
    found = desk.last(arguments.count)
    for record in found:
        show(record, screen, arguments.json)
    if not desk.has_topics and tenant is not None:
        text = f"{tenant} has no rejection topic: none of its requests was rejected yet, or the name is wrong"
        if not arguments.follow:
            raise Failure(Exit.NOT_FOUND, text)
        screen.note(text)
    elif not found and not arguments.follow:
        screen.note("nothing was rejected")
    patience = Patience(screen)
    while arguments.follow:
        threading.Event().wait(LOOK_AGAIN_S)
        try:
            for record in desk.more():
                show(record, screen, arguments.json)
            patience.renew()
        except Failure as failure:
            patience.check(failure)
            patience.wait()
    return Exit.DONE


class Desk:
    """The rejection topics of one tenant, or of all; each is read from where it was left."""

    def __init__(self, client: Client, tenant: str | None) -> None:
        self._client = client
        self._tenant = tenant
        self._followers: dict[str, Follower] = {}

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest so many of all topics together. Of what does not show the server says whether one may look."""
        found = [record for topic in self._topics() for record in self._follower(topic).last(count)]
        if not self.has_topics and self._tenant is not None:
            Follower(self._client, rejections_of(self._tenant)[0], "kafka").more()
        return sorted(found, key=lambda record: str(record.get("released_at")))[-count:]

    @property
    def has_topics(self) -> bool:
        """Whether there was anything to read."""
        return bool(self._followers)

    def more(self) -> Iterator[dict[str, Any]]:
        """What has come since, also on topics that are new."""
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
    """One refusal on one line: when, which record, why, and its key."""
    refusal = refusal_of(record)
    if as_json:
        screen.json(refusal)
        return
    place = "/".join(str(refusal[name]) for name in ("source_topic", "source_partition", "source_offset"))
    if refusal["source_topic"] is None:  # it was taken, and then its destination refused it
        place = f"{refusal.get('source_id')} to {refusal.get('to')}"
    key = refusal.get("key") or refusal.get("key_base64")
    words = [
        screen.paint(clock_text(str(refusal["at"])), "dim"),
        screen.paint(shown(place), "cyan"),
        *([screen.paint(f"[{_short(shown(key))}]", "bold")] if key is not None else []),
        shown("; ".join(refusal["reasons"])),
    ]
    screen.say("  ".join(words))


def refusal_of(record: dict[str, Any]) -> dict[str, Any]:
    """What a record on a rejection topic tells. Where it was refused before, what counts follows the last source."""
    headers = [(name, value) for name, value in record["headers"] if name.startswith("tidings-")]
    names = [name for name, _ in headers]
    last = len(names) - 1 - names[::-1].index("tidings-source-topic") if "tidings-source-topic" in names else 0
    told = dict(headers[last:])
    refusal = {
        "at": record.get("released_at"),
        "source_topic": told.get("tidings-source-topic"),
        "source_partition": _number(told.get("tidings-source-partition")),
        "source_offset": _number(told.get("tidings-source-offset")),
        "reasons": [str(value) for name, value in headers[last:] if name == "tidings-reject-reason"],
    }
    if refusal["source_topic"] is None:
        refusal |= {"source_id": told.get("tidings-source-id"), "to": told.get("tidings-to")}
    kept = ("key", "key_base64", "value", "value_base64", "topic", "partition", "offset")
    return refusal | {name: record[name] for name in kept if name in record}


def _short(text: str) -> str:
    """As much of a key as fits beside the rest; `--json` has all of it."""
    return text if len(text) <= KEY_CHARS_MAX else f"{text[: KEY_CHARS_MAX - 3]}..."


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None
