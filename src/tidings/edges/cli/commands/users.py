"""`users`: the recipients of notifications, with their addresses, preferences and quiet hours."""

import argparse
import json
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import Any

from tidings.clock import SystemClock
from tidings.edges.cli.arguments import (
    Arguments,
    Rows,
    add_field,
    add_paging,
    add_server,
    add_verb,
    client_of,
    pages,
    pair,
    positive,
    show_pages,
)
from tidings.edges.cli.client import Patience, read_events, segment
from tidings.edges.cli.commands.schedule import BAD_LINES_SHOWN, NDJSON, blocks_of, exchange, open_source
from tidings.edges.cli.commands.templates import PARTS
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Progress, Screen, clock_text, shown
from tidings.shapes.fields import fields_of, help_of
from tidings.shapes.user import Profile, QuietHours

TEXTS = ("name", "email", "phone", "webhook", "zone", "locale")
FIELDS = (*TEXTS, "devices", "preferences", "quiet", "variables")
YES_OR_NO = {"yes": True, "true": True, "no": False, "false": False}
KINDS = {
    "user": "profile",
    "notification": "notifications",
    "delivery": "deliveries",
    "inbox": "inbox lines",
    "dedupe": "dedupe keys",
    "sent": "ids at providers",
}
SPARED = {"spare": True, "hold": False}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the seven."""
    verbs = parser.add_subparsers(metavar="put|change|get|list|delete|import|erase", required=True)
    _add_profile(add_verb(verbs, "put", "create or replace a user", put, "user"))
    changing = add_verb(verbs, "change", "change some fields of a user, and keep the rest", change, "user")
    _add_profile(changing)
    changing.add_argument(
        "--remove", action="append", default=[], choices=FIELDS, metavar="FIELD", help=f"one of {', '.join(FIELDS)}"
    )
    add_verb(verbs, "get", "show a user", get, "user")
    listing = add_verb(verbs, "list", "list users by id", index)
    listing.add_argument("--prefix", help="only ids with this prefix")
    add_paging(listing)
    add_verb(verbs, "delete", "delete a user, and keep their notifications", delete, "user")
    bulk = add_verb(verbs, "import", "import users from a file: CSV, or one JSON object per line", import_users)
    bulk.add_argument("source", metavar="FILE", help="the file, - for standard input")
    bulk.add_argument(
        "--format", choices=("csv", "ndjson"), help="the format; left out: detected from the name or the content"
    )
    add_verb(verbs, "erase", "erase a user and all their data, permanently", erase, "user")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    for name in TEXTS:
        add_field(parser, Profile, name)
    add_field(parser, Profile, "quiet", metavar="HOURS")
    then = fields_of(QuietHours)["then"]
    parser.add_argument("--in-quiet", choices=then.choices, help=help_of(QuietHours, "then"))
    parser.add_argument("--high", choices=tuple(SPARED), help="whether messages of high priority are sent in them")
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="apns:TOKEN|fcm:TOKEN",
        help="a device for push messages; may be repeated",
    )
    parser.add_argument(
        "--prefer",
        action="append",
        default=[],
        type=pair,
        metavar="WHAT=yes|no",
        help="A preference by channel, category or channel/category: sms=no, news=no, sms/news=yes; may be repeated",
    )
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a variable for templates; repeatable",
    )


def profile_of(arguments: Arguments) -> dict[str, Any]:
    """The profile that the flags describe, as the HTTP API takes it."""
    document: dict[str, Any] = {name: value for name in TEXTS if (value := getattr(arguments, name)) is not None}
    quiet = {"hours": arguments.quiet, "then": arguments.in_quiet, "spares_high": SPARED.get(arguments.high)}
    if given := {name: value for name, value in quiet.items() if value is not None}:
        document["quiet"] = given
    if arguments.device:
        document["devices"] = [_device(text) for text in arguments.device]
    if arguments.prefer:
        document["preferences"] = {name: _yes_or_no(name, text) for name, text in arguments.prefer}
    if arguments.var:
        document["variables"] = dict(arguments.var)
    return document


def put(arguments: Arguments, screen: Screen) -> int:
    """Keep a user."""
    document = profile_of(arguments)
    if "quiet" in document and "hours" not in document["quiet"]:
        raise Failure(Exit.USAGE, "--quiet is missing: give the hours, such as --quiet 22:00-07:00")
    return _tell(client_of(arguments).call("PUT", _path(arguments), body=document), arguments, screen)


def change(arguments: Arguments, screen: Screen) -> int:
    """Change single fields."""
    document = profile_of(arguments)
    if both := [name for name in arguments.remove if name in document]:
        raise Failure(Exit.USAGE, f"{both[0]}: give it or --remove it, not both")
    document |= dict.fromkeys(arguments.remove)
    if not document:
        raise Failure(Exit.USAGE, "nothing to change: give a flag such as --email, or --remove FIELD")
    return _tell(client_of(arguments).call("PATCH", _path(arguments), body=document), arguments, screen)


def get(arguments: Arguments, screen: Screen) -> int:
    """One user."""
    document = client_of(arguments).call("GET", _path(arguments))
    if arguments.json:
        screen.json(document)
    else:
        screen.facts((name, _value(name, value)) for name, value in document.items())
    return Exit.DONE


def index(arguments: Arguments, screen: Screen) -> int:
    """Users by id."""
    query, empty = {"prefix": arguments.prefix}, "no users: `users put ID` creates one, `users import FILE` many"
    if arguments.prefix:
        empty = "no users match"
    return show_pages(arguments, screen, "/v1/users", "users", partial(_show_rows, screen=screen), query, empty)


def delete(arguments: Arguments, screen: Screen) -> int:
    """Remove a user alone."""
    return _tell(client_of(arguments).call("DELETE", _path(arguments)), arguments, screen)


def import_users(arguments: Arguments, screen: Screen) -> int:
    """Keep the users of a file."""

    return import_file(arguments, screen)


def erase(arguments: Arguments, screen: Screen) -> int:
    """Remove all that is known of a person, and say what that was."""
    document = client_of(arguments).call("POST", f"{_path(arguments)}/erase")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    counts = [(KINDS.get(kind, kind), f"{count:,}") for kind, count in document["removed"].items()]
    screen.say(f"erased {screen.paint(arguments.which, 'bold')}")
    screen.facts([*counts, ("cancelled", document["cancelled"]), ("kept as a digest", document["suppressions"] or "")])
    if document["providers"]:
        screen.say(
            f"What {', '.join(document['providers'])} may still store messages to this user: ask them to erase those."
        )
    return Exit.DONE


def _path(arguments: Arguments) -> str:
    return f"/v1/users/{segment(arguments.which)}"


def _tell(document: dict[str, Any], arguments: Arguments, screen: Screen) -> int:
    if arguments.json:
        screen.json(document)
    else:
        screen.say(f"{screen.word(document['outcome'])} {screen.paint(shown(document['id']), 'bold')}")
    return Exit.DONE


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    columns = ("id", "name", "email", "phone", "zone", "quiet")
    cells = [[_value(column, row.get(column)) for column in columns] for row in rows]
    screen.table(columns, cells, heading=first, states=False)


def _value(name: str, value: Any) -> Any:
    match name:
        case "devices":
            return ", ".join(f"{device['platform']}:{device['token']}" for device in value)
        case "preferences":
            return ", ".join(f"{what}={'yes' if wish else 'no'}" for what, wish in value.items())
        case "variables":
            return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
        case "quiet" if isinstance(value, dict):
            told = [*(["drop"] if value.get("then") == "drop" else []), *(["high too"] if _holds_high(value) else [])]
            return value["hours"] + (f" ({', '.join(told)})" if told else "")
        case _:
            return value


def _holds_high(quiet: dict[str, Any]) -> bool:
    return quiet.get("spares_high") is False


def _device(text: str) -> dict[str, str]:
    platform, separator, token = text.partition(":")
    if not separator or not token:
        raise Failure(Exit.USAGE, f"--device {text}: write the platform first, apns:{text} or fcm:{text}")
    return {"platform": platform, "token": token}


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in YES_OR_NO:
        raise Failure(Exit.USAGE, f"--prefer {name}={text}: say yes or no")
    return YES_OR_NO[text.lower()]


TYPES = {"csv": "text/csv", "ndjson": NDJSON}
ENDINGS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson"}


def import_file(arguments: Arguments, screen: Screen) -> int:
    """Keep each user of a file; a bad line is reported, the rest go on. The exit code is 1 if there was one."""
    clock = SystemClock()
    started = clock.elapsed()
    bad: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    with open_source(arguments.source) as (source, size), Progress(size, clock) as progress:
        blocks = blocks_of(source, progress)
        first = next(blocks, b"")
        kind = TYPES[arguments.format or _guess(arguments.source, first)]
        given = chain([first], blocks) if first else blocks  # an empty block would end the request
        for document in exchange(client_of(arguments), "/v1/users/import", given, kind):
            if "created" not in document:
                raise Failure(Exit.FAILED, shown(document.get("detail") or document), document)
            last = document
            bad += document.get("bad_lines") or []
            progress.answered(document["lines"])
    if last is None or not last.pop("done", False):
        raise Failure(Exit.FAILED, "the server stopped before the end: run the import again, it is safe to repeat")
    _summarise({**last, "bad_lines": bad}, clock.elapsed() - started, arguments, screen)
    return Exit.FAILED if last["bad"] else Exit.DONE


def _guess(name: str, first: bytes) -> str:
    """By the file's name, else by its beginning: a JSON object begins like one."""
    if known := ENDINGS.get(PurePath(name).suffix.lower()):
        return known
    return "ndjson" if first.lstrip().startswith(b"{") else "csv"


def _summarise(document: dict[str, Any], elapsed_us: int, arguments: Arguments, screen: Screen) -> None:
    shown_ones = document["bad_lines"][:BAD_LINES_SHOWN]
    for line in shown_ones:
        screen.note(f"line {line.get('line')}: {shown(line.get('field'))}: {shown(line.get('reason'))}")
    if hidden := document["bad"] - len(shown_ones):
        screen.note(f"... and {hidden:,} more; --json shows the first thousand")
    counts = f"{document['created']:,} created, {document['replaced']:,} replaced, {document['bad']:,} bad"
    rate = document["lines"] * 1_000_000 // max(elapsed_us, 1)
    text = f"{counts} in {elapsed_us / 1_000_000:,.1f} s ({rate:,}/s)"
    if arguments.json:
        screen.json(document)
        screen.note(text)
    else:
        screen.say(text)


FORGOTTEN = "(a digest)"


def configure_suppressions(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the three."""
    verbs = parser.add_subparsers(metavar="list|add|remove", required=True)
    listing = add_verb(verbs, "list", "list them, the latest first", list_suppressions)
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


def list_suppressions(arguments: Arguments, screen: Screen) -> int:
    """Those of a channel, or all."""
    query, rows = {"channel": arguments.channel}, partial(_show_suppressions, screen=screen)
    return show_pages(arguments, screen, "/v1/suppressions", "suppressions", rows, query, "no address is suppressed")


def add(arguments: Arguments, screen: Screen) -> int:
    """Suppress an address."""
    body = {"reason": arguments.reason, "category": arguments.category}
    given = {name: value for name, value in body.items() if value is not None}
    answer = client_of(arguments).call("PUT", _suppression_path(arguments), body=given)
    return _tell_suppression(answer, arguments, screen)


def remove(arguments: Arguments, screen: Screen) -> int:
    """Let messages go there again."""
    answer = client_of(arguments).call("DELETE", _suppression_path(arguments), query={"category": arguments.category})
    return _tell_suppression(answer, arguments, screen)


def _suppression_path(arguments: Arguments) -> str:
    return f"/v1/suppressions/{arguments.channel}/{segment(arguments.address)}"


def _tell_suppression(answer: dict[str, Any], arguments: Arguments, screen: Screen) -> int:
    if arguments.json:
        screen.json(answer)
    else:
        of = f" for {shown(arguments.category)}" if arguments.category else ""
        word = screen.word(answer["outcome"])
        screen.say(f"{word} {arguments.channel} {screen.paint(shown(arguments.address), 'bold')}{of}")
    return Exit.DONE


def _show_suppressions(rows: Rows, first: bool, screen: Screen) -> None:
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


SILENCE_S = 60.0
READ_IDS_MAX = 500
KNOWN_MAX = 1_000


def configure_inbox(parser: argparse.ArgumentParser) -> None:
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
