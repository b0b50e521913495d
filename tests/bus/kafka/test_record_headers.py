"""Headers of released records on Kafka."""

import pytest

pytest.importorskip("confluent_kafka")

from tidings.bus.kafka.parked_topics import _rejection
from tidings.bus.kafka.producers import RecordBuilder
from tidings.domain.schedules.schedule import DUE_SECONDS, Message, Outgoing, pack, unpack

DUE = 1_795_165_200_000_000


def outgoing(headers: tuple[tuple[str, bytes | None], ...], number: int = 1, *, final: bool = False) -> Outgoing:
    return Outgoing(0, "acme", "t", "one", 1, number, DUE, DUE, pack(Message(b"k", b"v", headers)), final)


def test_a_header_that_asks_for_the_due_time_gets_it_in_seconds() -> None:
    fire = "x-scheduler-cron-fire-timestamp"
    _, _, headers = RecordBuilder().record(outgoing((("a", b"1"), (fire, DUE_SECONDS), ("b", None))))
    assert headers[:3] == [("a", b"1"), (fire, b"1795165200"), ("b", None)]


def test_the_last_occurrence_is_marked_final() -> None:
    released = RecordBuilder()
    assert ("tidings-final", b"true") in released.record(outgoing((), 3, final=True))[2]
    assert ("tidings-final", b"true") not in released.record(outgoing((), 3))[2]
    assert ("tidings-final", b"true") not in released.record(outgoing((), 1, final=True))[2]  # a one-shot


def test_a_refused_request_keeps_its_id() -> None:
    message = pack(Message(b"k", b"v", (("tidings-id", b"mine"), ("tidings-attempt", b"9"))))
    refused = Outgoing(0, "acme", "tidings.rejections.acme", "tid_1", 1, 1, DUE, DUE, message, True)
    names = [name for name, _ in RecordBuilder().record(refused)[2]]
    assert names == ["tidings-id", "tidings-occurrence", "tidings-due-at", "tidings-attempt"]
    assert ("tidings-id", b"mine") in RecordBuilder().record(refused)[2]
    elsewhere = Outgoing(0, "acme", "rejections.acme", "tid_1", 1, 1, DUE, DUE, message, True)
    assert [value for name, value in RecordBuilder().record(elsewhere)[2] if name == "tidings-id"] == ["tid_1"]


def test_the_rejection_of_a_refused_record_has_only_its_true_id() -> None:
    rejection = _rejection(outgoing((("tidings-id", b"forged"), ("a", b"1"))), "too large", DUE)
    headers = unpack(rejection.message).headers
    assert [name for name, _ in headers] == ["a", "tidings-source-id", "tidings-to", "tidings-reject-reason"]
    assert headers[1] == ("tidings-source-id", b"one")
