"""The wire of etf1/kafka-message-scheduler: its README's example, and what its source adds."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.wires.golden import TIMESTAMP, examples, pairs
from tidings.domain.schedules.schedule import Message, Origin, Outgoing, pack
from tidings.wires.etf1 import Etf1
from tidings.wires.record import Ask, Nothing, Record, Refusal
from tidings.wires.wire import Destinations

WIRE = Etf1()
EPOCH = ("scheduler-epoch", "1893456000")
TARGET = ("scheduler-target-topic", "videos")


def record(*headers: tuple[str, str | None], key: bytes | None = b"k", value: bytes | None = b"v") -> Record:
    return Record("schedules", 0, 7, TIMESTAMP, key, value, pairs(*headers))


def asked(sent: Record) -> Ask:
    ask = WIRE.read(sent)
    assert isinstance(ask, Ask), ask
    return ask


def reason(sent: Record) -> str:
    refusal = WIRE.read(sent)
    assert isinstance(refusal, Refusal), refusal
    [text] = refusal.reasons
    return text


@pytest.mark.parametrize(("sent", "ask"), examples("etf1"))
def test_the_examples_of_the_original_are_understood(sent: Record, ask: Ask) -> None:
    assert WIRE.read(sent) == ask


def test_topics() -> None:
    assert WIRE.tenant_of("schedules") == "default"
    assert WIRE.tenant_of("my-schedules") is None
    assert WIRE.topics("default") == ("rejections.default",)
    configured = Etf1({"video-schedules": "video"})
    assert configured.tenant_of("video-schedules") == "video"
    assert configured.tenant_of("schedules") is None


def test_a_configured_topic_takes_no_deliveries() -> None:
    configured = Etf1({"video-schedules": "video"})
    sent = Record("video-schedules", 0, 7, 0, b"k", b"v", pairs(EPOCH, ("scheduler-target-topic", "video-schedules")))
    assert isinstance(configured.read(sent), Refusal)
    shared = Destinations(schedules={"video-schedules", "schedules"})
    assert isinstance(Etf1({"video-schedules": "video"}, shared).read(sent), Refusal)


def test_only_null_deletes() -> None:
    assert asked(record(key=b"k", value=None)).verb == "cancel"
    ask = asked(record(EPOCH, TARGET, value=b""))
    assert ask.request is not None
    assert (ask.verb, ask.request.value) == ("replace", b"")


def test_the_key_names_the_schedule() -> None:
    assert asked(record(EPOCH, TARGET, key="vidéo 1".encode())).id == "vidéo 1"
    for blank in (None, b"", b"  "):
        for value in (b"v", None):
            assert reason(record(EPOCH, TARGET, key=blank, value=value)).startswith("the record's key: is missing")


@pytest.mark.parametrize("key", [b"\xff\x00", b"a\nb", b"x" * 201, b"tid_" + b"1" * 33])
def test_a_key_that_cannot_be_an_id_has_a_digest(key: bytes) -> None:
    ask = asked(record(EPOCH, TARGET, key=key))
    assert ask.id.startswith("sha256:")
    assert asked(record(key=key, value=None)).id == ask.id
    assert ask.request is not None
    assert ("scheduler-key", key) in ask.request.headers


def test_the_target_key_is_bytes() -> None:
    for key in (b"\xff", b"", None):
        headers = (*pairs(EPOCH, TARGET), ("Scheduler-Target-Key", key))
        ask = asked(Record("schedules", 0, 7, 0, b"k", b"v", headers))
        assert ask.request is not None
        assert ask.request.key == key


@pytest.mark.parametrize("epoch", ["", "-1", "soon", "1893456000.5", "1e9", " 1", "9" * 19])
def test_an_epoch_is_seconds(epoch: str) -> None:
    assert "scheduler-epoch" in reason(record(("scheduler-epoch", epoch), TARGET))


def test_a_past_time_is_accepted() -> None:
    ask = asked(record(("scheduler-epoch", "0"), TARGET))
    assert ask.request is not None
    assert ask.request.at == 0


def test_the_first_of_repeated_headers_counts() -> None:
    ask = asked(record(EPOCH, TARGET, ("scheduler-epoch", "1"), ("scheduler-target-topic", "other")))
    assert ask.request is not None
    assert (ask.request.topic, ask.request.at) == ("videos", 1_893_456_000_000_000)
    added = ("scheduler-timestamp", "scheduler-key", "scheduler-topic", "tidings-origin")
    assert [name for name, _ in ask.request.headers[4:]] == list(added)


def released(ask: Ask, **more: Any) -> Outgoing:
    """The record that an accepted schedule is released as."""
    assert ask.request is not None
    message = pack(Message(ask.request.key, ask.request.value, more.pop("headers", ask.request.headers)))
    return replace(Outgoing(1, ask.tenant, ask.request.topic, ask.id, 1, 1, 0, 0, message), **more)


@pytest.mark.parametrize("key", [b"k", b"\xff\x00"])
def test_a_release_goes_back_to_its_request(key: bytes) -> None:
    assert WIRE.origin_of(released(asked(record(EPOCH, TARGET, key=key)))) == Origin("schedules", 0, 7, key)


def test_headers_alone_do_not_make_a_request() -> None:
    """A consumer that forwards a released record forwards these headers too: they must not delete another schedule."""
    ask = asked(record(EPOCH, TARGET))
    assert ask.request is not None
    headers = ask.request.headers
    assert WIRE.origin_of(released(ask, tenant="other")) is None
    assert WIRE.origin_of(released(ask, id="other")) is None
    assert WIRE.origin_of(released(ask, headers=headers[:-1])) is None
    assert WIRE.origin_of(released(ask, headers=(*headers, ("trace", b"1")))) is None
    for wrong in (b"", b"1", b"1/x", b"-1/2", None):
        assert WIRE.origin_of(released(ask, headers=(*headers[:-1], ("tidings-origin", wrong)))) is None
    assert Etf1({"videos": "default"}).origin_of(released(ask)) is None


def test_a_tombstone_of_ours_asks_for_nothing() -> None:
    assert WIRE.read(record(("tidings-origin", "0/7"), value=None)) == Nothing("default")
    assert asked(record(("scheduler-key", "k"), value=None)).verb == "cancel"


def test_a_target_is_required_and_must_be_allowed() -> None:
    assert reason(record(EPOCH)) == "Missing required header `scheduler-target-topic`"
    assert reason(record(TARGET)) == "Missing required header `scheduler-epoch`"
    assert "is a request topic" in reason(record(EPOCH, ("scheduler-target-topic", "schedules")))


def test_a_rejection_goes_to_the_tenant() -> None:
    sent = record(TARGET)
    rejection = WIRE.rejection(sent, Refusal("default", ("why",)))
    assert (rejection.topic, rejection.key, rejection.value) == ("rejections.default", b"k", b"v")
    assert rejection.headers[:1] == sent.headers
    assert rejection.headers[-1] == ("tidings-reject-reason", b"why")
