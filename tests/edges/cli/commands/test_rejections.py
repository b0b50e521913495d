"""Records on rejection topics, as `rejections` shows them."""

import json
from typing import Any

import pytest

from tidings.edges.cli.commands.topics import refusal_of, show
from tidings.edges.cli.screen import Screen


def record(*headers: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "released_at": "2026-11-20T09:00:00.000000Z",
        "topic": "rejections.acme",
        "partition": 0,
        "offset": 3,
        "key": "k",
        "value": "v",
        "headers": [list(header) for header in headers],
    }


def source(topic: str, offset: str, *reasons: str) -> list[tuple[str, str]]:
    place = [("tidings-source-topic", topic), ("tidings-source-partition", "1"), ("tidings-source-offset", offset)]
    return place + [("tidings-reject-reason", reason) for reason in reasons]


def test_the_last_rejection_headers_are_shown() -> None:
    found = refusal_of(record(("trace", "x"), *source("a", "1", "old"), *source("b", "2", "one", "two")))
    assert (found["source_topic"], found["source_partition"], found["source_offset"]) == ("b", 1, 2)
    assert found["reasons"] == ["one", "two"]
    assert (found["at"], found["key"], found["value"]) == ("2026-11-20T09:00:00.000000Z", "k", "v")


def test_a_rejection_is_one_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(record(*source("assignments.acme", "7", "one", "two\x1b[2J")), Screen(), False)
    [line] = capsys.readouterr().out.splitlines()
    assert line == "2026-11-20 09:00:00Z  assignments.acme/1/7  [k]  one; two\\x1b[2J"


def test_a_record_refused_by_its_destination(capsys: pytest.CaptureFixture[str]) -> None:
    headers = [("tidings-source-id", "order-1"), ("tidings-to", "orders"), ("tidings-reject-reason", "too large")]
    show(record(*headers), Screen(), False)
    assert "order-1 to orders  [k]  too large" in capsys.readouterr().out


def test_a_long_key_is_cut_for_people_only(capsys: pytest.CaptureFixture[str]) -> None:
    rejection = record(*source("assignments.acme", "7", "one")) | {"key": "k" * 17_000}
    show(rejection, Screen(), False)
    assert f"  [{'k' * 57}...]  one" in capsys.readouterr().out
    show(rejection, Screen(), True)
    assert json.loads(capsys.readouterr().out)["key"] == "k" * 17_000


def test_a_foreign_record_does_no_harm() -> None:
    found = refusal_of(record(("tidings-source-partition", "x")))
    assert (found["source_topic"], found["source_partition"], found["reasons"]) == (None, None, [])
