"""`schedule`, `publish`, `replace` and `change`: one message from arguments, or many from a file."""

import argparse
import base64
import os
import shlex
import sys
import threading
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import msgspec

from tidings.clock import SystemClock
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.timezone import check_zone
from tidings.domain.schedules.iso8601 import is_relative_day, resolve_relative_day
from tidings.edges.cli.arguments import (
    FINISHED_STATES,
    Arguments,
    add_bus,
    add_field,
    add_server,
    client_of,
    pair,
    positive,
    show_outcome,
)
from tidings.edges.cli.client import Client, faults, in_commands, reason_of, segment
from tidings.edges.cli.exit_codes import Exit, Failure, code_of_outcome, program
from tidings.edges.cli.screen import Progress, Screen, shown
from tidings.shapes.fields import fields_of, help_of, lowered, names_of
from tidings.shapes.schedule import NewSchedule, Preview, When

# Fields with an option of another name or form; every other field has an option of its own name.
SPECIAL_FIELDS = {
    *names_of(When),
    *("topic", "bus", "id", "key", "key_base64", "value", "value_base64", "headers", "labels", "count"),
}
OPTIONS = tuple(name for name in names_of(NewSchedule) if name not in SPECIAL_FIELDS)

WHEN = ("at", "every", "rrule", "cron")
LISTS = ("rdates", "exdates")
BESIDE = tuple(name for name in names_of(When) if name not in {*WHEN, *LISTS, "scheduled_at"})
METAVARS = {"at": "TIME", "every": "INTERVAL", "rrule": "RULE", "cron": "EXPRESSION", "start": "TIME", "until": "TIME"}

# Where a relative day is resolved here and not by the server.
BY_THIS_MACHINE = (NewSchedule, Preview)
RELATIVE_DAYS = "; also 'tomorrow 09:00' or 'monday 8:30', in --zone or this machine's time zone"

BLOCK_BYTES = 256 * 1024
TIMEOUT_S = 120.0
PRECONDITION_FAILED = 412
BAD_LINES_SHOWN = 20
NDJSON = "application/x-ndjson"

LINE_FIELDS = (
    "at", "every", "key", "header", "headers", "priority", "expires_after", "late", "late_grace", "late_max", "jitter",
    "past", "label", "labels", "bus",
)  # fmt: skip


def add_message(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add the arguments for value, key, headers and bus."""
    parser.add_argument(
        "value",
        nargs=None if needed else "?",
        metavar="VALUE",
        help="the value: text, @FILE for the bytes of a file (@@ for text that begins with @), - for standard input",
    )
    add_field(parser, NewSchedule, "key")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header; repeatable. NAME alone has the value null",
    )
    add_bus(parser)


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Add the options for the due time, the lateness policy and labels."""
    add_timing(parser)
    for name in OPTIONS:
        add_field(parser, NewSchedule, name)
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a label, for `list --label`; repeatable",
    )


def message_of(arguments: Arguments) -> dict[str, Any]:
    """Key, value, headers and bus, as the HTTP API accepts them."""
    if arguments.value is None:
        raise Failure(Exit.USAGE, "VALUE is missing: give text, @FILE, or - for standard input")
    return _message_of(arguments)


def _message_of(arguments: Arguments) -> dict[str, Any]:
    document = {} if arguments.value is None else _bytes("value", content_of(arguments.value))
    if arguments.key is not None:
        document |= _bytes("key", os.fsencode(arguments.key))
    if arguments.header:
        document["headers"] = [_header(text) for text in arguments.header]
    if arguments.bus is not None:
        document["bus"] = arguments.bus
    return document


def schedule_of(arguments: Arguments, screen: Screen) -> dict[str, Any]:
    """A schedule, as the HTTP API accepts it."""
    return {"topic": arguments.to, **message_of(arguments), **_timed_of(arguments, screen)}


def changes_of(arguments: Arguments, screen: Screen) -> dict[str, Any]:
    """The fields that change, as the HTTP API accepts them; those that are removed are null."""
    document = {} if arguments.to is None else {"topic": arguments.to}
    return with_removed(document | _message_of(arguments) | _timed_of(arguments, screen), arguments.unset)


def add_unset(parser: argparse.ArgumentParser) -> None:
    """Add the option that removes fields."""
    parser.add_argument("--unset", action="append", default=[], metavar="FIELD", help="remove this field; repeatable")


def with_removed(document: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The changes, with null for the fields that are removed; raises `Failure` if there are none."""
    removed = {name.replace("-", "_"): None for name in fields}
    if both := document.keys() & removed.keys():
        raise Failure(Exit.USAGE, f"--unset {min(both)} removes what another flag gives: leave one of them out")
    if not document and not removed:
        raise Failure(Exit.USAGE, "nothing to change: give the fields that change, or --unset FIELD")
    return document | removed


def _timed_of(arguments: Arguments, screen: Screen) -> dict[str, Any]:
    """When it is due, its lateness policy and labels."""
    document = local_timing_of(arguments, screen)
    for name in ("count", *OPTIONS):
        if (value := getattr(arguments, name)) is not None:
            document[name] = value
    if arguments.label:
        document["labels"] = dict(arguments.label)
    return document


def content_of(text: str) -> bytes:
    """The bytes that `TEXT`, `@FILE`, `@@TEXT` or `-` stands for."""
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@@"):
        return os.fsencode(text[1:])
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise Failure(Exit.USAGE, f"cannot read {text[1:]}: {error.strerror}") from None


def text_of(text: str, flag: str) -> str:
    """The same as text; raises `Failure` for bytes that are not UTF-8."""
    try:
        return content_of(text).decode()
    except UnicodeDecodeError as error:
        raise Failure(Exit.USAGE, f"{flag} is not valid UTF-8: {error}") from None


def _bytes(name: str, content: bytes) -> dict[str, Any]:
    """The field for these bytes: text as it is, other bytes as base64."""
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _header(text: str) -> list[Any]:
    name, separator, value = text.partition("=")
    if not separator:
        return [name, None]
    content = os.fsencode(value)
    try:
        return [name, content.decode()]
    except UnicodeDecodeError:
        return [name, {"base64": base64.b64encode(content).decode()}]


def add_timing(
    parser: argparse.ArgumentParser, shape: type[When] = NewSchedule, *, required: bool = False, ends: bool = True
) -> None:
    """Add the options for the fields of `shape` that say when. `ends`: with `--count`, which ends a rule."""
    when = parser.add_mutually_exclusive_group(required=required)
    for name in WHEN:
        more = {"help": f"{help_of(shape, name)}{RELATIVE_DAYS}"} if name == "at" and shape in BY_THIS_MACHINE else {}
        add_field(when, shape, name, metavar=METAVARS[name], **more)
    group = parser.add_argument_group("recurring and local times")
    for name in BESIDE:
        add_field(group, shape, name, **({"metavar": METAVARS[name]} if name in METAVARS else {}))
    if ends:
        add_field(group, shape, "count", type=positive, metavar="N")
    for name in LISTS:
        help_text = f"{lowered(fields_of(shape)[name].description.rstrip('.'))}; repeatable"
        group.add_argument(
            f"--{name.removesuffix('s')}", action="append", default=[], dest=name, metavar="TIME", help=help_text
        )


def timing_of(arguments: Arguments) -> dict[str, Any]:
    """The fields that say when, as the HTTP API accepts them."""
    given = {name: getattr(arguments, name) for name in (*WHEN, *BESIDE)}
    document = {name: value for name, value in given.items() if value is not None}
    return document | {name: value for name in LISTS if (value := getattr(arguments, name))}


def local_timing_of(arguments: Arguments, screen: Screen) -> dict[str, Any]:
    """The same, with `tomorrow 09:00` or `monday 8:30` resolved: in the time zone given, else in that of this machine.

    The server does that itself for notifications, because each recipient has a time zone.
    """
    document = timing_of(arguments)
    at = document.get("at")
    if not isinstance(at, str) or not is_relative_day(at):
        return document
    zone = document.get("zone")
    if zone is None:
        zone = machine_zone()
        screen.note(f"note: {at!r} is read in {zone}, the time zone of this machine; --zone gives another")
    check_zone(zone)
    return document | {"at": resolve_relative_day(at, zone, SystemClock().now()), "zone": zone}


def machine_zone() -> str:
    """The IANA name of this machine's time zone: by the variable TZ, or as the system is set; UTC if it has none."""
    if (named := os.environ.get("TZ", "").lstrip(":")) and not named.startswith("/"):
        return _zone(named, "TZ")
    file = named or "/etc/localtime"
    _, found, name = os.path.realpath(file).rpartition("/zoneinfo/")
    if found:
        return _zone(name.removeprefix("posix/").removeprefix("right/"), file)
    with suppress(OSError):
        if text := Path("/etc/timezone").read_text().strip():
            return _zone(text, "/etc/timezone")
    return "UTC"


def _zone(name: str, source: str) -> str:
    try:
        check_zone(name)
    except Invalid:
        text = f"the time zone of this machine, {name!r} in {source}, is not known: give one with --zone"
        raise Failure(Exit.USAGE, text) from None
    return name


class Tally:
    """Counts the outcomes of the lines so far."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.bad: list[dict[str, Any]] = []
        self.noted: list[dict[str, Any]] = []
        self.lines = self.refused = self.notes = 0
        self.worst = Exit.DONE

    def add(self, document: dict[str, Any]) -> None:
        """Count one answer; they arrive in the order of the lines."""
        self.lines += 1
        outcome, state = str(document.get("outcome")), document.get("state")
        label = f"{outcome} ({state} already)" if outcome == "unchanged" and state in FINISHED_STATES else outcome
        self.outcomes[label] += 1
        if document.get("note"):
            self.notes += 1
            if len(self.noted) < BAD_LINES_SHOWN:
                self.noted.append(document)
        code = code_of_outcome(outcome)
        if code != Exit.DONE:
            self.worst = Exit.FAILED if Exit.FAILED in {code, self.worst} else code
            self.refused += 1
            if len(self.bad) < BAD_LINES_SHOWN:
                self.bad.append(document)


def send_file(arguments: Arguments, screen: Screen) -> int:
    """Schedule each line of a file or of standard input."""
    if arguments.value is not None or arguments.id is not None:
        raise Failure(Exit.USAGE, "with --from, each line has its own id and value: leave out --id and VALUE")
    if given := [name for name in LINE_FIELDS if getattr(arguments, name, None)]:
        flag = "--" + given[0].replace("_", "-")
        raise Failure(Exit.USAGE, f"with --from, each line has its own {given[0]}: leave out {flag}")
    return send_lines(arguments, screen, "/v1/schedules", arguments.to)


def send_lines(arguments: Arguments, screen: Screen, path: str, topic: str | None = None) -> int:
    """Send each line of the source, and print the outcomes in sum; returns the highest exit code."""
    clock = SystemClock()
    started = clock.elapsed()
    tally = Tally()
    with open_source(arguments.source) as (source, size), Progress(size, clock) as progress:
        blocks = blocks_of(source, progress, topic)
        for document in exchange(client_of(arguments), path, blocks):
            if "outcome" not in document:
                raise Failure(Exit.FAILED, shown(document.get("detail") or document), document)
            tally.add(document)
            progress.answered(tally.lines)
            if arguments.json:
                screen.json(document)
    _summarise(tally, clock.elapsed() - started, path, arguments, screen)
    return tally.worst


def exchange(client: Client, path: str, blocks: Iterator[bytes], kind: str = NDJSON) -> Iterator[dict[str, Any]]:
    """Send blocks and read the answers at the same time, so that neither side blocks on a full buffer."""
    with client.connect(TIMEOUT_S) as connection:
        connection.putrequest("POST", client.target(path), skip_accept_encoding=True)
        headers = {**client.headers, "Accept": NDJSON, "Content-Type": kind, "Transfer-Encoding": "chunked"}
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        sender = _Sender(connection.sock, blocks)
        sender.start()
        response = connection.getresponse()
        client.check(response, path)
        yield from (msgspec.json.decode(line) for line in response if line.strip())
        sender.join()
        if sender.error is not None:
            raise sender.error


class _Sender(threading.Thread):
    """Sends blocks as chunks. If the server closes the connection, the reader of the answers reports it."""

    def __init__(self, sock: Any, blocks: Iterator[bytes]) -> None:
        super().__init__(daemon=True)
        self._sock = sock
        self._blocks = blocks
        self.error: Failure | None = None

    def run(self) -> None:
        try:
            for block in self._blocks:
                self._sock.sendall(b"%x\r\n%b\r\n" % (len(block), block))
        except Failure as failure:
            self.error = failure
        except OSError:
            return
        try:
            self._sock.sendall(b"0\r\n\r\n")
        except OSError:
            return


@contextmanager
def open_source(name: str) -> Iterator[tuple[BufferedReader, int | None]]:
    """Open a file or standard input; yields it and its size, if it has one."""
    if name == "-":
        yield cast(BufferedReader, sys.stdin.buffer), None
        return
    path = Path(name)
    try:
        with path.open("rb") as file:
            yield file, path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise Failure(Exit.USAGE, f"cannot read {name}: {error.strerror}") from None


def blocks_of(source: BufferedReader, progress: Progress, topic: str | None = None) -> Iterator[bytes]:
    """Blocks of whole lines, sent as they become available, also from a slow pipe. A byte order mark is removed."""
    rest, mark = b"", BOM_UTF8
    while block := source.read1(BLOCK_BYTES):
        progress.sent(block)
        lines, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield _with_topics(lines.removeprefix(mark) + newline, topic)
            mark = b""
    if rest:
        yield _with_topics(rest.removeprefix(mark) + b"\n", topic)


def _with_topics(lines: bytes, topic: str | None) -> bytes:
    """The lines, with the topic added to those without one."""
    if topic is None:
        return lines
    return b"\n".join(_with_topic(line, topic) for line in lines.split(b"\n"))


def _with_topic(line: bytes, topic: str) -> bytes:
    try:
        document = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line  # the server reports what is wrong with it
    if "topic" in document:
        return line
    return msgspec.json.encode({"topic": topic, **document})


def _summarise(tally: Tally, elapsed_us: int, path: str, arguments: Arguments, screen: Screen) -> None:
    for document in tally.bad:
        reason = in_commands(reason_of(document) or "; ".join(faults(document)), path, document.get("id"))
        what = f"{shown(document.get('outcome'))} {shown(document.get('id'))}".rstrip()
        screen.note(f"line {document.get('line')}: {what}: {shown(reason)}")
    if hidden := tally.refused - len(tally.bad):
        screen.note(f"... and {hidden:,} more; --json shows each")
    for document in tally.noted:
        screen.note(f"note: line {document.get('line')}: {shown(document.get('id'))}: {shown(document.get('note'))}")
    if hidden := tally.notes - len(tally.noted):
        screen.note(f"... and {hidden:,} more notes; --json shows each")
    counts = ", ".join(f"{count:,} {word}" for word, count in tally.outcomes.most_common()) or "no lines"
    rate = tally.lines * 1_000_000 // max(elapsed_us, 1)
    text = f"{counts} in {elapsed_us / 1_000_000:,.1f} s ({rate:,}/s)"
    if arguments.json:
        screen.note(text)
    else:
        screen.say(text)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `schedule`, `replace`, `change` or `publish`."""
    name = parser.get_default("command")
    topic = help_of(NewSchedule, "topic")
    match name:
        case "schedule":
            parser.add_argument("--to", metavar="TOPIC", help=topic)
            add_field(parser, NewSchedule, "id")
            parser.add_argument(
                "--from",
                dest="source",
                metavar="FILE",
                help="schedule each line of a file of JSON lines; - for standard input",
            )
            parser.set_defaults(run=schedule)
        case "replace":
            parser.add_argument("id", metavar="ID", help="the schedule to replace")
            parser.add_argument("--to", metavar="TOPIC", required=True, help=topic)
            parser.add_argument(
                "--reuse", action="store_true", help="start a new schedule under this id if the old one is finished"
            )
            parser.add_argument("--create", action="store_true", help="create the schedule if there is none to replace")
            kept = "continue the occurrence numbers; past occurrences count against --count"
            parser.add_argument("--keep-count", action="store_true", help=kept)
            parser.set_defaults(run=replace)
        case "change":
            parser.add_argument("id", metavar="ID", help="the schedule to change")
            parser.add_argument("--to", metavar="TOPIC", help=topic)
            add_unset(parser)
            parser.set_defaults(run=change)
        case _:
            parser.add_argument("topic", metavar="TOPIC", help=topic)
            parser.set_defaults(run=publish)
    add_message(parser, needed=name not in {"schedule", "change"})
    if name != "publish":
        add_schedule(parser)
    add_server(parser)


def schedule(arguments: Arguments, screen: Screen) -> int:
    """Schedule one message, or each line of a file."""
    if arguments.source is not None:
        return send_file(arguments, screen)
    if arguments.to is None:
        raise Failure(Exit.USAGE, "--to is missing: give the topic with --to TOPIC")
    document = schedule_of(arguments, screen)
    if arguments.id is not None:
        document["id"] = arguments.id
    answer = client_of(arguments).call("POST", "/v1/schedules", body=document)
    show_outcome(answer, f"to {arguments.to}", arguments, screen)
    finished = answer.get("outcome") == "unchanged" and answer.get("state") in FINISHED_STATES
    return Exit.CONFLICT if finished else Exit.DONE


def replace(arguments: Arguments, screen: Screen) -> int:
    """Replace a schedule; one that does not exist is created only with `--create`."""
    query = {name: "true" for name in ("reuse", "keep_count") if getattr(arguments, name)} or None
    path = f"/v1/schedules/{segment(arguments.id)}"
    headers = {} if arguments.create else {"If-Match": "*"}
    body = schedule_of(arguments, screen)
    try:
        answer = client_of(arguments).call("PUT", path, query=query, body=body, headers=headers)
    except Failure as failure:
        if not isinstance(failure.document, dict) or failure.document.get("status") != PRECONDITION_FAILED:
            raise
        instead = f"`{program()} schedule --id {shlex.quote(arguments.id)}` creates it, and so does --create here"
        text = f"there is no schedule {arguments.id!r} to replace: {instead}"
        raise Failure(Exit.NOT_FOUND, text, failure.document) from None
    return show_outcome(answer, f"to {arguments.to}", arguments, screen)


def change(arguments: Arguments, screen: Screen) -> int:
    """Change only the given fields of a pending schedule."""
    path = f"/v1/schedules/{segment(arguments.id)}"
    answer = client_of(arguments).call("PATCH", path, body=changes_of(arguments, screen))
    return show_outcome(answer, "", arguments, screen)


def publish(arguments: Arguments, screen: Screen) -> int:
    """Publish a record to a topic now."""
    path = f"/v1/topics/{segment(arguments.topic)}/records"
    answer = client_of(arguments).call("POST", path, body=message_of(arguments))
    if arguments.json:
        screen.json(answer)
    else:
        screen.say(f"{screen.word('published')} {screen.paint(shown(answer.get('id')), 'bold')} to {arguments.topic}")
    return Exit.DONE
