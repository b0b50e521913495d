"""Notifications from Kafka: their tenant and their id."""

from typing import Any

import pytest

from tidings.wires.native import Notify
from tidings.wires.record import Ask, Nothing, NotifyAsk, Record, Refusal

TOPIC = "tidings.notify.acme"


def read(topic: str = TOPIC, **more: Any) -> Ask | NotifyAsk | Nothing | Refusal:
    return Notify().read(Record(topic, 3, 7, **{"timestamp_us": 5, "value": b"{}", **more}))


def test_a_notification_is_passed_on_unchanged() -> None:
    assert read(value=b'{"user": "ada"}') == NotifyAsk("acme", f"{TOPIC}.3.7", b'{"user": "ada"}', 5)
    assert read(value=None) == NotifyAsk("acme", f"{TOPIC}.3.7", b"", 5)


def test_without_a_timestamp_durations_count_from_now() -> None:
    assert read(timestamp_us=-1) == NotifyAsk("acme", f"{TOPIC}.3.7", b"{}")


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, f"{TOPIC}.3.7"),
        ({"life": "b"}, f"{TOPIC}.3.7@b"),
        ({"headers": (("Tidings-Id", b"tea"),)}, "tea"),
        ({"headers": (("tidings-id", b"tea"), ("tidings-id", b"cake"))}, "cake"),
        ({"headers": (("tidings-id", None),)}, f"{TOPIC}.3.7"),
    ],
)
def test_the_id_is_that_of_the_header_or_the_position(more: dict[str, Any], name: str) -> None:
    asked = read(**more)
    assert isinstance(asked, NotifyAsk)
    assert asked.id == name


def test_the_id_of_a_long_tenant_is_short_enough_and_its_own() -> None:
    found = [read(f"tidings.notify.{'t' * 200}{end}", life="x" * 8) for end in "ab"]
    first, second = (each.id for each in found if isinstance(each, NotifyAsk))
    assert first != second
    assert len(first) <= 90


def test_a_header_that_is_not_text_is_refused() -> None:
    refused = read(headers=(("tidings-id", b"\xff"),))
    assert refused == Refusal("acme", ("tidings-id: is not UTF-8: send it as text",))
