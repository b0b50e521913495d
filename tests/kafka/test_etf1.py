"""The schedule topic of kafka-message-scheduler: add, replace, delete, and reuse of keys."""

import time
from collections.abc import Sequence

import pytest
from confluent_kafka import Message, Producer

from tests.kafka.site import READ_S_MAX, Header, Site, headers_of, read_all
from tidings.testing import eventually

pytestmark = pytest.mark.slow

SCHEDULES = "schedules"


@pytest.fixture(autouse=True)
def schedules(site: Site) -> None:
    """The compacted topic of the original. All tests share it and use different keys and targets."""
    site.broker.create_topic(SCHEDULES, exist_ok=True, cleanup_policy="compact", retention_ms="-1")


class Etf1:
    """A client of kafka-message-scheduler."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._producer = Producer(site.broker.client(linger_ms=0))
        self.out = f"{site.name}-out"

    def key(self, name: str) -> bytes:
        return f"{self._site.name}/{name}".encode()

    def schedule(self, name: str, value: bytes, epoch: int, more: Sequence[Header] = ()) -> None:
        headers: list[Header] = [
            ("scheduler-epoch", str(epoch)),
            ("scheduler-target-topic", self.out),
            ("scheduler-target-key", f"to-{name}"),
        ]
        self._send(self.key(name), value, [*headers, *more])

    def delete(self, name: str) -> None:
        self._send(self.key(name), None, [])

    def _send(self, key: bytes, value: bytes | None, headers: list[Header]) -> None:
        self._producer.produce(SCHEDULES, value, key, headers=headers)
        assert self._producer.flush(READ_S_MAX) == 0


@pytest.fixture
def etf1(site: Site, schedules: None) -> Etf1:
    return Etf1(site)


def in_seconds(seconds: int) -> int:
    """A time at least this far ahead, in whole seconds since 1970."""
    return int(time.time()) + seconds + 1


def headers_by_name(record: Message) -> dict[str, bytes]:
    """The headers that are not null, by name."""
    return {name: value for name, value in headers_of(record) if isinstance(value, bytes)}


async def test_a_schedule_is_released_at_its_time_with_its_target_key(site: Site, etf1: Etf1) -> None:
    sent, epoch = int(time.time()), in_seconds(2)
    more: list[Header] = [("trace", b"1"), ("trace", b"2"), ("nothing", None)]
    etf1.schedule("one", b"\x00\xff", epoch, more)
    (record,) = await site.read(etf1.out, 1)
    assert (record.key(), record.value()) == (b"to-one", b"\x00\xff")
    assert record.timestamp()[1] >= epoch * 1_000
    headers = headers_of(record)
    assert headers[:6] == [
        ("scheduler-epoch", str(epoch).encode()),
        ("scheduler-target-topic", etf1.out.encode()),
        ("scheduler-target-key", b"to-one"),
        ("trace", b"1"),
        ("trace", b"2"),
        ("nothing", None),
    ]
    assert [name for name, _ in headers[6:9]] == ["scheduler-timestamp", "scheduler-key", "scheduler-topic"]
    assert sent <= int(headers_by_name(record)["scheduler-timestamp"]) <= sent + 1
    assert headers_by_name(record)["scheduler-key"] == etf1.key("one")
    assert headers_by_name(record)["scheduler-topic"] == SCHEDULES.encode()
    assert headers_by_name(record)["tidings-id"] == etf1.key("one")


async def test_the_same_key_replaces_the_schedule(site: Site, etf1: Etf1) -> None:
    first, later = in_seconds(2), in_seconds(4)
    etf1.schedule("one", b"first", first)
    etf1.schedule("one", b"second", later)
    (record,) = await site.read(etf1.out, 1)
    assert record.value() == b"second"
    assert record.timestamp()[1] >= later * 1_000


async def test_a_replacement_may_have_an_earlier_time(site: Site, etf1: Etf1) -> None:
    epoch = in_seconds(1)
    etf1.schedule("one", b"far", in_seconds(3_600))
    etf1.schedule("one", b"near", epoch)
    (record,) = await site.read(etf1.out, 1)
    assert record.value() == b"near"
    assert record.timestamp()[1] >= epoch * 1_000


async def test_a_null_value_deletes_the_schedule(site: Site, etf1: Etf1) -> None:
    epoch = in_seconds(2)
    etf1.schedule("one", b"deleted", epoch)
    etf1.delete("one")
    etf1.schedule("two", b"kept", epoch + 1)
    (record,) = await site.read(etf1.out, 1)
    assert record.value() == b"kept"
    found = await site.engine.find("default", etf1.key("one").decode())
    assert found is not None
    assert found.state == "cancelled"


async def test_deleting_an_unknown_schedule_is_no_error(site: Site, etf1: Etf1) -> None:
    etf1.delete("never")
    etf1.schedule("one", b"next", in_seconds(0))
    (record,) = await site.read(etf1.out, 1)
    assert record.value() == b"next"
    assert etf1.key("never") not in {found.key() for found in read_all(site.broker, "rejections.default")}


async def test_a_key_may_be_used_again_after_its_release(site: Site, etf1: Etf1) -> None:
    name = etf1.key("one").decode()
    etf1.schedule("one", b"first", in_seconds(0))
    await site.read(etf1.out, 1)
    etf1.schedule("one", b"second", in_seconds(1))
    records = await site.read(etf1.out, 2)
    assert [record.value() for record in records] == [b"first", b"second"]
    assert [headers_by_name(record)["tidings-occurrence"] for record in records] == [
        f"{name}/1/1".encode(),
        f"{name}/2/1".encode(),
    ]


async def test_a_key_may_be_used_again_after_it_was_deleted(site: Site, etf1: Etf1) -> None:
    etf1.schedule("one", b"deleted", in_seconds(3_600))
    etf1.delete("one")
    etf1.schedule("one", b"again", in_seconds(1))
    (record,) = await site.read(etf1.out, 1)
    assert record.value() == b"again"


async def test_deleting_a_released_schedule_changes_nothing(site: Site, etf1: Etf1) -> None:
    """As the original does: it deletes a schedule from its topic after the release."""
    etf1.schedule("one", b"first", in_seconds(0))
    await site.read(etf1.out, 1)
    etf1.delete("one")
    etf1.schedule("two", b"second", in_seconds(0))
    await site.read(etf1.out, 2)
    found = await site.engine.find("default", etf1.key("one").decode())
    assert found is not None
    assert found.state == "released"
    assert etf1.key("one") not in {record.key() for record in read_all(site.broker, "rejections.default")}


async def test_an_invalid_request_is_rejected(site: Site, etf1: Etf1) -> None:
    etf1._send(etf1.key("bad"), b"no time", [("scheduler-target-topic", etf1.out)])
    etf1.schedule("good", b"goes on", in_seconds(0))
    (record,) = await site.read(etf1.out, 1)
    assert record.value() == b"goes on"

    async def rejected() -> list[Message]:
        found = await site.read("rejections.default", 1)
        return [message for message in found if message.key() == etf1.key("bad")]

    (rejection,) = await eventually(rejected, READ_S_MAX)
    assert rejection.value() == b"no time"
    assert b"scheduler-epoch" in headers_by_name(rejection)["tidings-reject-reason"]
    assert headers_by_name(rejection)["tidings-source-topic"] == SCHEDULES.encode()
