"""The JSON documents of answers: complete, and nothing that is not stored."""

import base64
import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from tidings.domain.schedules.command import Outcome, Priority
from tidings.domain.schedules.iso8601 import parse_duration, parse_interval
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import DUE_SECONDS, Event, Message, Record, Schedule, Topic, pack
from tidings.domain.schedules.when import Every, Once, Period
from tidings.wires import answers

NINE = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z
NINE_TEXT = "2026-11-20T09:00:00.000000Z"


def shown(document: Any) -> Any:
    return json.loads(answers.encode(document))


def test_an_outcome_shows_the_fields_it_has() -> None:
    assert shown(answers.outcome_document(Outcome("a", "scheduled", NINE))) == {
        "id": "a",
        "outcome": "scheduled",
        "due_at": NINE_TEXT,
    }
    full = Outcome("a", "cancelled", NINE, "pending", "why", 3, NINE)
    assert shown(answers.outcome_document(full)) == {
        "id": "a",
        "outcome": "cancelled",
        "due_at": NINE_TEXT,
        "state": "pending",
        "reason": "why",
        "in_flight": 3,
        "remembered_since": NINE_TEXT,
    }


def record(message: Message) -> Any:
    return shown(answers.record_document(Record("t", 2, 7, "a", 1, 3, NINE, NINE + 800, pack(message))))


def test_a_record_shows_text_where_it_is_text() -> None:
    document = record(Message(b"k", "grüße".encode(), (("h", b"v"), ("n", None), ("b", b"\xff"))))
    assert document == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "key": "k",
        "value": "grüße",
        "headers": [["h", "v"], ["n", None], ["b", {"base64": "/w=="}]],
        "id": "a",
        "occurrence": "a/1/3",
        "due_at": NINE_TEXT,
        "released_at": "2026-11-20T09:00:00.000800Z",
    }
    assert record(Message(None, None))["value"] is None


@given(st.none() | st.binary(), st.none() | st.binary(), st.none() | st.binary())
@example(None, None, DUE_SECONDS + b"?")
def test_any_bytes_can_be_recovered(key: bytes | None, value: bytes | None, header: bytes | None) -> None:
    assume(header != DUE_SECONDS)  # it stands for what is not known yet
    document = record(Message(key, value, (("h", header),)))

    def bytes_of(name: str) -> bytes | None:
        if f"{name}_base64" in document:
            return base64.b64decode(document[f"{name}_base64"])
        text = document[name]
        return None if text is None else text.encode()

    assert (bytes_of("key"), bytes_of("value")) == (key, value)
    [(_, sent)] = document["headers"]
    if isinstance(sent, dict):
        assert base64.b64decode(sent["base64"]) == header
    else:
        assert (None if sent is None else sent.encode()) == header


def schedule(**more: Any) -> Any:
    plain = Schedule("tenant", "a", 1, "t", "pending", NINE, NINE - 5_000_000)
    return shown(answers.schedule_document(replace(plain, **more)))


def test_a_schedule_shows_the_fields_it_has() -> None:
    assert schedule() == {
        "id": "a",
        "topic": "t",
        "bus": "log",
        "state": "pending",
        "due_at": NINE_TEXT,
        "occurrence": 1,
        "generation": 1,
        "accepted_at": "2026-11-20T08:59:55.000000Z",
        "priority": "normal",
    }
    full = schedule(
        when=Once(NINE),
        priority=Priority.HIGH,
        lateness=Lateness("skip", 5_000_000, 3_600_000_000, 86_400_000_000),
        labels='{"a":"b"}',
        message=pack(Message(b"\xff", b"\xfe")),
        finished=NINE,
        reason="expired",
        partition=0,
        offset=9,
    )
    assert (
        full.items()
        >= {
            "at": NINE_TEXT,
            "priority": "high",
            "late": "skip",
            "late_grace": "PT5S",
            "late_max": "PT1H",
            "expires_after": "P1D",
            "key_base64": "/w==",
            "value_base64": "/g==",
            "finished_at": NINE_TEXT,
            "reason": "expired",
            "partition": 0,
            "offset": 9,
        }.items()
    )
    assert full["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    "text",
    [
        "R/2026-11-20T09:00:00.000000Z/PT1H",
        "R5/2026-11-20T09:00:00.000000Z/P1M",
        "R/2026-11-20T09:00:00.000000Z/P1MT1.5S/2027-11-20T09:00:00.000000Z",
        "R5/P1M/2026-11-30T09:00:00.000000Z",
    ],
)
def test_an_interval_can_be_sent_again(text: str) -> None:
    assert schedule(when=parse_interval(text, NINE))["every"] == text


def test_months_from_an_anchor_show_the_anchor() -> None:
    document = schedule(when=parse_interval("R3/P1M", NINE))
    assert (document["every"], document["anchor_at"]) == ("R3/P1M", NINE_TEXT)
    assert "anchor_at" not in schedule(when=Every(NINE, Period(1, 0)))


@given(st.integers(0, 50), st.integers(0, 10**15))
def test_a_duration_can_be_read_again(months: int, us: int) -> None:
    text = answers.format_iso_duration(us, months)
    if us == months == 0:
        assert text == "PT0S"
    else:
        assert parse_duration(text, "x") == Period(months, us)


def test_history_says_how_late() -> None:
    released = to_builtins(answers.event_document(Event(NINE + 1_500, "released", 1, NINE)))
    assert released == {
        "at": "2026-11-20T09:00:00.001500Z",
        "event": "released",
        "occurrence": 1,
        "due_at": NINE_TEXT,
        "late_ms": 1.5,
    }
    missed = to_builtins(answers.event_document(Event(NINE, "missed", 2, NINE, "expired", 3)))
    assert (missed["reason"], missed["count"]) == ("expired", 3)
    assert "late_ms" not in missed


def test_a_topic_shows_its_size() -> None:
    assert to_builtins(answers.topic_document(Topic("t", (0, 5), (2, 6), 99))) == {
        "name": "t",
        "records": 3,
        "bytes": 99,
        "partitions": [{"partition": 0, "first": 0, "next": 2}, {"partition": 1, "first": 5, "next": 6}],
    }


def test_the_placeholder_of_the_due_time_is_not_shown() -> None:
    document = record(Message(None, None, (("x-scheduler-cron-fire", DUE_SECONDS), ("a", b"b"))))
    assert document["headers"] == [["a", "b"]]
