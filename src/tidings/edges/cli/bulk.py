"""`schedule --from`: any number of lines over one request, outcomes read while lines are still being sent."""

import sys
import threading
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import msgspec

from tidings.clock import SystemClock
from tidings.edges.cli.arguments import Arguments, client_of
from tidings.edges.cli.client import Client, faults, reason_of
from tidings.edges.cli.exits import Exit, Failure, code_of_outcome
from tidings.edges.cli.progress import Progress
from tidings.edges.cli.schedule import FINISHED_STATES
from tidings.edges.cli.screen import Screen, shown

BLOCK_BYTES = 256 * 1024
TIMEOUT_S = 120.0
BAD_LINES_SHOWN = 20
NDJSON = "application/x-ndjson"


class Tally:
    """What came of the lines so far."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.bad: list[dict[str, Any]] = []
        self.noted: list[dict[str, Any]] = []
        self.lines = self.refused = self.notes = 0
        self.worst = Exit.DONE

    def add(self, document: dict[str, Any]) -> None:
        """Count one answer; answers come in the order of the lines."""
        self.lines += 1
        outcome, state = str(document.get("outcome")), document.get("state")
        said = f"{outcome} ({state} already)" if outcome == "unchanged" and state in FINISHED_STATES else outcome
        self.outcomes[said] += 1
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


OF_THE_LINES = (
    "at", "every", "key", "header", "headers", "priority", "expires_after", "late", "late_grace", "late_max", "jitter",
    "past", "label", "labels", "bus",
)  # fmt: skip


def send_file(arguments: Arguments, screen: Screen) -> int:
    """Schedule each line of a file or of standard input."""
    if arguments.value is not None or arguments.id is not None:
        raise Failure(Exit.USAGE, "with --from, each line has its own id and value: leave out --id and VALUE")
    if given := [name for name in OF_THE_LINES if getattr(arguments, name, None)]:
        flag = "--" + given[0].replace("_", "-")
        raise Failure(Exit.USAGE, f"with --from, each line has its own {given[0]}: leave out {flag}")
    clock = SystemClock()
    started = clock.elapsed()
    tally = Tally()
    with open_source(arguments.source) as (source, size), Progress(size, clock) as progress:
        blocks = blocks_of(source, progress, arguments.to)
        for document in exchange(client_of(arguments), "/v1/schedules", blocks):
            if "outcome" not in document:
                raise Failure(Exit.FAILED, shown(document.get("detail") or document), document)
            tally.add(document)
            progress.answered(tally.lines)
            if arguments.json:
                screen.json(document)
    _summarise(tally, clock.elapsed() - started, arguments, screen)
    return tally.worst


def exchange(client: Client, path: str, blocks: Iterator[bytes], kind: str = NDJSON) -> Iterator[dict[str, Any]]:
    """Send blocks and read the answers at the same time: neither side ever waits for a full buffer."""
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
    """Sends blocks as chunks. A server that hangs up is the reader's to tell."""

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
    """The source of lines and its size, if it has one."""
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
    """Whole lines, as many as there are by now: a slow pipe's go out as they come. A byte order mark is left out."""
    rest, mark = b"", BOM_UTF8
    while block := source.read1(BLOCK_BYTES):
        progress.sent(block)
        lines, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield _addressed(lines.removeprefix(mark) + newline, topic)
            mark = b""
    if rest:
        yield _addressed(rest.removeprefix(mark) + b"\n", topic)


def _addressed(lines: bytes, topic: str | None) -> bytes:
    """The lines, with the topic where they name none."""
    if topic is None:
        return lines
    return b"\n".join(_with_topic(line, topic) for line in lines.split(b"\n"))


def _with_topic(line: bytes, topic: str) -> bytes:
    try:
        document = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line  # the server says what is wrong with it
    if "topic" in document:
        return line
    return msgspec.json.encode({"topic": topic, **document})


def _summarise(tally: Tally, elapsed_us: int, arguments: Arguments, screen: Screen) -> None:
    for document in tally.bad:
        reason = reason_of(document) or "; ".join(faults(document))
        what = f"{shown(document.get('outcome'))} {shown(document.get('id'))}".rstrip()
        screen.note(f"line {document.get('line')}: {what}: {shown(reason)}")
    if hidden := tally.refused - len(tally.bad):
        screen.note(f"... and {hidden:,} more; --json shows each")
    for document in tally.noted:
        screen.note(f"line {document.get('line')}: {shown(document.get('id'))}: {shown(document.get('note'))}")
    if hidden := tally.notes - len(tally.noted):
        screen.note(f"... and {hidden:,} more notes; --json shows each")
    counts = ", ".join(f"{count:,} {word}" for word, count in tally.outcomes.most_common()) or "no lines"
    rate = tally.lines * 1_000_000 // max(elapsed_us, 1)
    text = f"{counts} in {elapsed_us / 1_000_000:,.1f} s ({rate:,}/s)"
    if arguments.json:
        screen.note(text)
    else:
        screen.say(text)
