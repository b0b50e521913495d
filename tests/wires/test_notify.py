"""Notifications from Kafka: what they become on the log, and why some are refused."""

from typing import Any

import msgspec
import pytest

from tidings.domain.command import Priority
from tidings.domain.notification import Errand
from tidings.wires.notify import Notify
from tidings.wires.record import Ask, Record, Refusal

WORDS = {"text": "Tea at nine.", "title": "Tea"}
TEA: dict[str, Any] = {"id": "tea", "user": "ada", "channels": ["email", "sms"], "words": WORDS}


def read(value: object, **more: Any) -> Ask | Refusal:
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Notify().read(Record("tidings.notify.acme", 3, 7, 0, value=raw, **more))


def test_a_notification_is_an_errand_on_the_log_due_now() -> None:
    ask = read({**TEA, "priority": "high"})
    assert isinstance(ask, Ask)
    assert (ask.tenant, ask.verb, ask.id) == ("acme", "add", "tea")
    assert ask.request is not None
    assert (ask.request.topic, ask.request.bus, ask.request.at) == ("notify.email.high", "log", None)
    assert ask.request.priority is Priority.HIGH
    errand = msgspec.json.decode(ask.request.value or b"", type=Errand)
    assert errand.inline is not None
    assert (errand.inline.tenant, errand.inline.user, errand.inline.channels) == ("acme", "ada", ("email", "sms"))
    assert errand.notification is None


def test_without_an_id_the_place_is_the_id() -> None:
    first, second = (read({name: TEA[name] for name in TEA if name != "id"}, life=life) for life in ("", "b"))
    assert isinstance(first, Ask)
    assert isinstance(second, Ask)
    assert first.id == "tidings.notify.acme.3.7"
    assert second.id != first.id


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "the record's value: is not JSON"),
        (b"tea", "the record's value: is not JSON"),
        ([], "is not a notification: write an object"),
        ({**TEA, "tenant": "globex"}, "tenant: is not a field of a notification: it knows id, channels"),
        ({**TEA, "created": 1}, "created: is not a field"),
        ({**TEA, "channels": ["pigeon"]}, "Invalid enum value 'pigeon'"),
        ({**TEA, "channels": []}, "channels: is empty"),
        ({**TEA, "to": "ada@example.com"}, "user: or to: give one of them"),
        ({**TEA, "template": "tea"}, "template: or words: give one of them"),
        ({**TEA, "user": None, "to": "ada@example.com"}, "channels: has several"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_reason(value: object, said: str) -> None:
    refusal = read(value)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.tenant == "acme"
    assert said in refusal.reasons[0]
