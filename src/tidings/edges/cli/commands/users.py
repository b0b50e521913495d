"""`users`, `suppressions` and `inbox`: the recipients of notifications, and their in-app messages."""

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
from tidings.edges.cli.client import Retries, read_events, segment
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

TYPES = {"csv": "text/csv", "ndjson": NDJSON}
ENDINGS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson"}

ERASED = "(erased)"

SILENCE_S = 60.0
READ_IDS_MAX = 500
KNOWN_MAX = 1_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `users`."""
    verbs = parser.add_subparsers(metavar="put|change|get|list|delete|import|erase", required=True)
    _add_profile(add_verb(verbs, "put", "create or replace a user", put, "user"))
    changing = add_verb(verbs, "change", "change some fields of a user, and keep the rest", change, "user")
    _add_profile(changing)
    changing.add_argument(
        "--remove",
        action="append",
        default=[],
        choices=FIELDS,
        metavar="FIELD",
        help=f"remove a field: {', '.join(FIELDS)}; repeatable",
    )
    add_verb(verbs, "get", "show a user", get, "user")
    listing = add_verb(verbs, "list", "list users by id", index)
    listing.add_argument("--prefix", help="only ids with this prefix")
    add_paging(listing)
    add_verb(verbs, "delete", "delete a user, and keep their notifications", delete, "user")
    bulk = add_verb(verbs, "import", "import users from a file: CSV, or one JSON object per line", import_file)
    bulk.add_argument("source", metavar="FILE", help="the file, - for standard input")
    bulk.add_argument(
        "--format", choices=("csv", "ndjson"), help="the format (default: detected from the name or the content)"
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
        help="a device for push messages; repeatable",
    )
    parser.add_argument(
        "--prefer",
        action="append",
        default=[],
        type=pair,
        metavar="WHAT=yes|no",
        help="a preference by channel, category or channel/category: sms=no, news=no, sms/news=yes; repeatable",
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
    """The profile that the options describe, as the HTTP API accepts it."""
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
    """Create or replace a user."""
    document = profile_of(arguments)
    if "quiet" in document and "hours" not in document["quiet"]:
        raise Failure(Exit.USAGE, "--quiet is missing: give the hours, such as --quiet 22:00-07:00")
    return _show_outcome(client_of(arguments).call("PUT", _path(arguments), body=document), arguments, screen)


def change(arguments: Arguments, screen: Screen) -> int:
    """Change some fields of a user."""
    document = profile_of(arguments)
    if both := [name for name in arguments.remove if name in document]:
        raise Failure(Exit.USAGE, f"{both[0]}: give it or --remove it, not both")
    document |= dict.fromkeys(arguments.remove)
    if not document:
        raise Failure(Exit.USAGE, "nothing to change: give an option such as --email, or --remove FIELD")
    return _show_outcome(client_of(arguments).call("PATCH", _path(arguments), body=document), arguments, screen)


def get(arguments: Arguments, screen: Screen) -> int:
    """Show one user."""
    document = client_of(arguments).call("GET", _path(arguments))
    if arguments.json:
        screen.json(document)
    else:
        screen.facts((name, _value(name, value)) for name, value in document.items())
    return Exit.DONE


def index(arguments: Arguments, screen: Screen) -> int:
    """List users by id."""
    query, empty = {"prefix": arguments.prefix}, "no users: `users put ID` creates one, `users import FILE` many"
    if arguments.prefix:
        empty = "no users match"
    return show_pages(arguments, screen, "/v1/users", "users", partial(_show_rows, screen=screen), query, empty)


def delete(arguments: Arguments, screen: Screen) -> int:
    """Delete the profile of a user."""
    return _show_outcome(client_of(arguments).call("DELETE", _path(arguments)), arguments, screen)


def erase(arguments: Arguments, screen: Screen) -> int:
    """Erase all data of a user, and show what was removed."""
    document = client_of(arguments).call("POST", f"{_path(arguments)}/erase")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    counts = [(KINDS.get(kind, kind), f"{count:,}") for kind, count in document["removed"].items()]
    screen.say(f"erased {screen.paint(arguments.which, 'bold')}")
    screen.facts([*counts, ("cancelled", document["cancelled"]), ("kept as a digest", document["suppressions"] or "")])
    if document["providers"]:
        screen.say(f"{', '.join(document['providers'])} may still store messages to this user: ask them to erase those")
    return Exit.DONE


def _path(arguments: Arguments) -> str:
    return f"/v1/users/{segment(arguments.which)}"


def _show_outcome(document: dict[str, Any], arguments: Arguments, screen: Screen) -> int:
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
            return ", ".join(f"{what}={'yes' if wanted else 'no'}" for what, wanted in value.items())
        case "variables":
            return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
        case "quiet" if isinstance(value, dict):
            notes = [*(["drop"] if value.get("then") == "drop" else []), *(["high too"] if _holds_high(value) else [])]
            return value["hours"] + (f" ({', '.join(notes)})" if notes else "")
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
        raise Failure(Exit.USAGE, f"--prefer {name}={text}: give yes or no")
    return YES_OR_NO[text.lower()]


def import_file(arguments: Arguments, screen: Screen) -> int:
    """Import the users of a file. Bad lines are reported and left out; if there are any, the exit code is 1."""
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
    """The format by the name of the file, else by the first character: `{` starts a JSON object."""
    if known := ENDINGS.get(PurePath(name).suffix.lower()):
        return known
    return "ndjson" if first.lstrip().startswith(b"{") else "csv"


def _summarise(document: dict[str, Any], elapsed_us: int, arguments: Arguments, screen: Screen) -> None:
    listed = document["bad_lines"][:BAD_LINES_SHOWN]
    for line in listed:
        screen.note(f"line {line.get('line')}: {shown(line.get('field'))}: {shown(line.get('reason'))}")
    if hidden := document["bad"] - len(listed):
        screen.note(f"... and {hidden:,} more; --json shows the first thousand")
    counts = f"{document['created']:,} created, {document['replaced']:,} replaced, {document['bad']:,} bad"
    rate = document["lines"] * 1_000_000 // max(elapsed_us, 1)
    text = f"{counts} in {elapsed_us / 1_000_000:,.1f} s ({rate:,}/s)"
    if arguments.json:
        screen.json(document)
        screen.note(text)
    else:
        screen.say(text)


def configure_suppressions(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `suppressions`."""
    verbs = parser.add_subparsers(metavar="list|add|remove", required=True)
    listing = add_verb(verbs, "list", "list suppressions, the latest first", list_suppressions)
    listing.add_argument("--channel", choices=tuple(PARTS), help="only of this channel")
    add_paging(listing)
    adding = add_verb(verbs, "add", "suppress an address", add)
    _add_target(adding, "only this category (default: everything)")
    adding.add_argument("--reason", default="by hand", help="why (default: by hand)")
    _add_target(add_verb(verbs, "remove", "remove a suppression", remove), "only the suppression of this category")


def _add_target(parser: argparse.ArgumentParser, category: str) -> None:
    parser.add_argument("channel", choices=tuple(PARTS), metavar="CHANNEL", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("address", metavar="ADDRESS", help="the address; for push apns:TOKEN or fcm:TOKEN")
    parser.add_argument("--category", help=category)


def list_suppressions(arguments: Arguments, screen: Screen) -> int:
    """List the suppressions of a channel, or all."""
    query, rows = {"channel": arguments.channel}, partial(_show_suppressions, screen=screen)
    return show_pages(arguments, screen, "/v1/suppressions", "suppressions", rows, query, "no address is suppressed")


def add(arguments: Arguments, screen: Screen) -> int:
    """Suppress an address."""
    body = {"reason": arguments.reason, "category": arguments.category}
    given = {name: value for name, value in body.items() if value is not None}
    answer = client_of(arguments).call("PUT", _suppression_path(arguments), body=given)
    return _show_suppression(answer, arguments, screen)


def remove(arguments: Arguments, screen: Screen) -> int:
    """Remove a suppression: messages are sent there again."""
    answer = client_of(arguments).call("DELETE", _suppression_path(arguments), query={"category": arguments.category})
    return _show_suppression(answer, arguments, screen)


def _suppression_path(arguments: Arguments) -> str:
    return f"/v1/suppressions/{arguments.channel}/{segment(arguments.address)}"


def _show_suppression(answer: dict[str, Any], arguments: Arguments, screen: Screen) -> int:
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
            row.get("address") or ERASED,
            row.get("category") or "all",
            row.get("reason"),
            screen.moment(row.get("since")),
        )
        for row in rows
    ]
    screen.table(("channel", "address", "for", "why", "since"), cells, heading=first, states=False)


def configure_inbox(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inbox`."""
    parser.add_argument("user", metavar="USER", help="the user")
    parser.add_argument("--follow", action="store_true", help="then follow new messages")
    parser.add_argument("--unread", action="store_true", help="only unread messages")
    parser.add_argument("--read", action="store_true", help="mark the messages shown as read")
    parser.add_argument("--count", type=positive, metavar="N", help="with --follow: stop after N messages")
    add_paging(parser)
    add_server(parser)
    parser.set_defaults(run=inbox)


def inbox(arguments: Arguments, screen: Screen) -> int:
    """Show the messages of an inbox, the latest last, and with `--follow` new ones as they arrive."""
    box = Box(arguments, screen)
    if not arguments.follow:
        if arguments.count is not None:
            raise Failure(Exit.USAGE, "--count needs --follow; use --limit for how many messages to show")
        box.show(box.stored())
        return Exit.DONE
    with closing(box.follow()) as stream:
        next(stream)  # listens from here on, so that no message is lost between the list and the stream
        found = box.stored()
        left = len(found) if arguments.count is None else arguments.count
        box.show(found[:left])
        left -= len(found)
        known = deque((line["id"] for line in found), KNOWN_MAX)
        while arguments.count is None or left > 0:
            line = next(stream)
            if line is not None and line["id"] not in known:  # the stream may repeat a message of the list
                known.append(line["id"])
                box.show([line])
                left -= 1
    return Exit.DONE


class Box:
    """The inbox of one user."""

    def __init__(self, arguments: Arguments, screen: Screen) -> None:
        self._arguments = arguments
        self._screen = screen
        self._client = client_of(arguments)
        self._path = f"/v1/inbox/{segment(arguments.user)}"
        self._position: str | None = None

    def stored(self) -> list[dict[str, Any]]:
        """The messages in the inbox, at most as many as asked for, the latest last."""
        query = {"unread": "true" if self._arguments.unread else None}
        found, cursor = list[dict[str, Any]](), None
        for page in pages(self._client, self._path, "lines", query, self._arguments):
            found += page["lines"]
            cursor = page.get("cursor")
        if not found:
            self._client.call("GET", f"/v1/users/{segment(self._arguments.user)}")  # fails if there is no such user
        if not found and not self._arguments.follow:
            self._screen.note("the inbox is empty" if not self._arguments.unread else "no unread messages")
        if cursor is not None:
            self._screen.note(f"there are more: use --all, or continue with --cursor {cursor}")
        return found[::-1]

    def show(self, lines: list[dict[str, Any]]) -> None:
        """Print messages, and mark them as read with `--read`."""
        for line in lines:
            if self._arguments.json:
                self._screen.json(line)
            else:
                self._screen.say(line_of(line, self._screen))
        unread = [line["id"] for line in lines if not line.get("read_at")]
        for start in range(0, len(unread) if self._arguments.read else 0, READ_IDS_MAX):
            self._client.call("POST", f"{self._path}/read", body={"ids": unread[start : start + READ_IDS_MAX]})

    def follow(self) -> Generator[dict[str, Any] | None, None, None]:
        """None once it is connected, then messages without end. A connection that is lost later is reopened."""
        retries = Retries(self._screen)
        while True:
            try:
                for line in self._stream():
                    retries.reset()
                    yield line
            except Failure as failure:
                if self._position is None:
                    raise
                retries.check(failure)
            retries.wait()

    def _stream(self) -> Iterator[dict[str, Any] | None]:
        headers = {"Accept": "text/event-stream"}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        with self._client.request("GET", f"{self._path}/stream", headers=headers, timeout_s=SILENCE_S) as response:
            if self._position is None:
                yield None
            for event in read_events(self._with_position(response)):
                yield json.loads(event.data)

    def _with_position(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The lines of the stream; remembers the position of each event, and the one before the first."""
        for line in lines:
            if line.startswith(b"id:"):
                self._position = line[3:].decode("utf-8", "replace").strip()
            yield line


def line_of(line: dict[str, Any], screen: Screen) -> str:
    """One message on one line: when it arrived, whether it is unread, its title and its text."""
    words = [
        screen.paint(clock_text(str(line.get("at"))), "dim"),
        screen.paint("read" if line.get("read_at") else "new ", "dim" if line.get("read_at") else "green"),
        screen.paint(shown(line.get("title")), "bold"),
        shown(line.get("body")),
    ]
    return "  ".join(word for word in words if word)
