"""Requests as the original documents show them, each with what it asks for."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tidings.domain.schedules.schedule import Headers, Request
from tidings.wires.record import Ask, Record

TIMESTAMP = 1_784_000_000_000_000  # 2026-07-14T03:33:20Z
PARTITION, OFFSET = 3, 42


def micros(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def content(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def pairs(*headers: tuple[str, str | None]) -> Headers:
    return tuple((name, content(value)) for name, value in headers)


def examples(wire: str) -> list[Any]:
    """Each example of a wire: the record, and what it asks for."""
    found = json.loads(Path(__file__).with_name(f"{wire}.json").read_text("utf-8"))
    return [pytest.param(_record(**each["record"]), _ask(each), id=each["example"]) for each in found]


def _ask(example: dict[str, Any]) -> Ask:
    ask = Ask(**example["ask"])
    return replace(ask, request=_request(ask.id, **example["request"])) if "request" in example else ask


def _record(topic: str, headers: list[Any], timestamp: str | None = None, **message: str) -> Record:
    at = TIMESTAMP if timestamp is None else micros(timestamp)
    key, value = content(message.get("key")), content(message.get("value"))
    return Record(topic, PARTITION, OFFSET, at, key, value, pairs(*headers))


def _request(name: str, topic: str, headers: list[Any], at: str | None = None, **rest: Any) -> Request:
    key, value = content(rest.pop("key", None)), content(rest.pop("value", None))
    return Request(topic, value, key, pairs(*headers), name, None if at is None else micros(at), **rest)
