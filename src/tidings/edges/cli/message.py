"""What is sent: the arguments of a message and a schedule, and the document that they make."""

import argparse
import base64
import os
import sys
from pathlib import Path
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_bus, pair
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.timing import add_timing, timing_of

POLICIES = ("expires_after", "late", "late_grace", "late_max", "jitter", "past")


def add_message(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """What a record carries."""
    parser.add_argument(
        "value",
        nargs=None if needed else "?",
        metavar="VALUE",
        help="the text, @FILE for a file's bytes (@@ for a text with @), - for stdin",
    )
    parser.add_argument("--key", help="the record's key: same key, same partition")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header, as often as needed; NAME alone: null",
    )
    add_bus(parser)


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """When it leaves, and under which policy."""
    add_timing(parser)
    parser.add_argument("--priority", choices=("high", "normal", "low"), help="who goes first when much is due")
    parser.add_argument("--expires-after", metavar="DURATION", help="missed when later than this, such as 1h")
    parser.add_argument(
        "--late",
        choices=("fire_all", "fire_latest", "skip"),
        help="what becomes of occurrences missed while down",
    )
    parser.add_argument("--late-grace", metavar="DURATION", help="how late `skip` still lets pass")
    parser.add_argument("--late-max", metavar="DURATION", help="missed when later than this, under any policy")
    parser.add_argument("--jitter", metavar="DURATION", help="spread the due time over this long")
    add_past(parser)
    parser.add_argument(
        "--label", action="append", default=[], type=pair, metavar="NAME=VALUE", help="a label to search by"
    )


def add_past(parser: argparse.ArgumentParser) -> None:
    """What becomes of a time that has passed."""
    parser.add_argument("--past", choices=("send", "refuse"), help="an --at more than a minute ago (send: now)")


def message_of(arguments: Arguments) -> dict[str, Any]:
    """Key, value, headers and bus as the HTTP API takes them."""
    if arguments.value is None:
        raise Failure(Exit.USAGE, "what should be sent? Give a VALUE, @FILE, or - for standard input")
    document = _bytes("value", content_of(arguments.value))
    if arguments.key is not None:
        document |= _bytes("key", os.fsencode(arguments.key))
    if arguments.header:
        document["headers"] = [_header(text) for text in arguments.header]
    if arguments.bus is not None:
        document["bus"] = arguments.bus
    return document


def schedule_of(arguments: Arguments) -> dict[str, Any]:
    """A schedule as the HTTP API takes it."""
    document: dict[str, Any] = {"topic": arguments.to, **message_of(arguments)}
    document |= timing_of(arguments)
    for name in ("count", "priority", *POLICIES):
        if (value := getattr(arguments, name)) is not None:
            document[name] = value
    if arguments.label:
        document["labels"] = dict(arguments.label)
    return document


def content_of(text: str) -> bytes:
    """What `TEXT`, `@FILE`, `@@TEXT` or `-` stands for."""
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@@"):
        return os.fsencode(text[1:])
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise Failure(Exit.USAGE, f"{text[1:]}: cannot be read: {error.strerror}") from None


def text_of(text: str, flag: str) -> str:
    """The same as text; raises `Failure` for bytes that are none."""
    try:
        return content_of(text).decode()
    except UnicodeDecodeError as error:
        raise Failure(Exit.USAGE, f"{flag} is not text in UTF-8: {error}") from None


def _bytes(name: str, content: bytes) -> dict[str, Any]:
    """Text as text, other bytes as base64: either way they leave as they came."""
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
