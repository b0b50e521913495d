"""What is sent: the arguments of a message and a schedule, and the document that they make."""

import argparse
import base64
import os
import sys
from pathlib import Path
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_bus, add_field, pair
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.timing import add_timing, timing_of
from tidings.shapes.fields import names_of
from tidings.shapes.schedule import NewSchedule, When

# Fields that the command line takes in another form, or by another name; every other one has an option of its name.
OTHERWISE = {
    *names_of(When),
    *("topic", "bus", "id", "key", "key_base64", "value", "value_base64", "headers", "labels", "count"),
}
OPTIONS = tuple(name for name in names_of(NewSchedule) if name not in OTHERWISE)


def add_message(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """What a record carries."""
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
    """The options that say when it is due, and the policy."""
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
    """Key, value, headers and bus as the HTTP API takes them."""
    if arguments.value is None:
        raise Failure(Exit.USAGE, "VALUE is missing: give text, @FILE, or - for standard input")
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
    for name in ("count", *OPTIONS):
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
        raise Failure(Exit.USAGE, f"cannot read {text[1:]}: {error.strerror}") from None


def text_of(text: str, flag: str) -> str:
    """The same as text; raises `Failure` for bytes that are none."""
    try:
        return content_of(text).decode()
    except UnicodeDecodeError as error:
        raise Failure(Exit.USAGE, f"{flag} is not valid UTF-8: {error}") from None


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
