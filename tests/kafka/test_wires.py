"""Clients of all wires on a real broker: messages arrive at their time, unchanged."""

import time
import uuid
from pathlib import Path

import pytest

from tests.kafka.site import Header, Site, headers_of, opened
from tests.servers.kafka import Broker
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import Message, pack
from tidings.domain.schedules.when import Once

pytestmark = pytest.mark.slow

SECOND_US = 1_000_000


def in_us(seconds: float) -> int:
    return int(time.time() * SECOND_US + seconds * SECOND_US)


async def test_requests_of_intervals(site: Site) -> None:
    due = in_us(3)
    schedule = format_instant(due).encode()
    headers: list[Header] = [("intervals-schedule", schedule), ("a", b"1"), ("a", None), ("b", b"\xff\x00")]
    site.send(f"assignments.{site.name}", b"\x00binary", None, headers)
    (record,) = await site.read(f"executions.{site.name}", 1)
    assert record.value() == b"\x00binary"
    assert record.key() is None
    found = headers_of(record)
    assert found[:4] == headers
    headers_by_name = dict(found[4:])
    assert headers_by_name["tidings-id"] == f"assignments.{site.name}/0/0".encode()
    assert headers_by_name["tidings-due-at"] == format_instant(due).encode()
    assert record.timestamp()[1] * 1_000 >= due - 1_000


async def test_a_refused_record_is_rejected_and_the_next_accepted(site: Site) -> None:
    requests = f"assignments.{site.name}"
    site.send(requests, b"bad", b"k", [("intervals-schedule", b"next tuesday")])
    site.send(requests, b"good", b"k", [("intervals-schedule", b"PT0.2S")])
    (record,) = await site.read(f"executions.{site.name}", 1)
    assert record.value() == b"good"
    (rejection,) = await site.read(f"rejections.{site.name}", 1)
    assert (rejection.key(), rejection.value()) == (b"k", b"bad")
    headers_by_name = dict(headers_of(rejection))
    assert headers_by_name["tidings-source-topic"] == requests.encode()
    assert "next tuesday" in str(headers_by_name["tidings-reject-reason"])


async def test_kaspr_adds_replaces_and_cancels(site: Site) -> None:
    requests, out = f"{site.name}-schedule-requests", f"{site.name}-out"
    at = format_instant(in_us(3))

    def ask(action: str, name: str, value: bytes) -> None:
        headers: list[Header] = [
            ("x-scheduler-action", action),
            ("x-scheduler-request-id", name),
            ("x-scheduler-deliver-at", at),
            ("x-scheduler-deliver-to", out),
            ("trace", "t"),
        ]
        site.send(requests, value, b"key", headers)

    ask("ADD", "one", b"first")
    ask("ADD", "two", b"second")
    ask("REPLACE", "one", b"instead")
    ask("CANCEL", "two", b"")
    ask("ADD", "three", b"third")
    ask("ADD", "three", b"other")
    records = await site.read(out, 2)
    assert sorted(record.value() or b"" for record in records) == [b"instead", b"third"]
    assert {name for name, _ in headers_of(records[0])} >= {"trace", "tidings-id"}
    assert not any(name.startswith("x-scheduler") for name, _ in headers_of(records[0]))
    (rejection,) = await site.read(f"{site.name}-schedule-rejections", 1)
    assert b"other" in (rejection.value() or b"")


async def test_native_requests_to_kafka_and_to_the_log(site: Site) -> None:
    requests, out = f"tidings.requests.{site.name}", f"{site.name}-native"
    site.send(requests, b"a", b"k", [("tidings-to", out), ("tidings-at", "+1s"), ("mine", b"x")])
    site.send(requests, b"b", b"k", [("tidings-to", "orders"), ("tidings-bus", "log")])
    (record,) = await site.read(out, 1)
    assert record.value() == b"a"
    async with site.engine.follow(site.name, "orders") as batches:
        async for records, _ in batches:
            assert len(records) == 1
            break


async def test_a_finished_id_is_rejected(site: Site) -> None:
    """A finished id is not used again unless the wire allows it; the client gets a rejection."""
    requests, later = f"assignments.{site.name}", [("intervals-id", b"one"), ("intervals-schedule", b"PT1H")]
    site.send(requests, b"first", None, later)
    site.send(requests, b"first", None, later)  # a repeat
    site.send(requests, b"", None, [("intervals-id", b"one"), ("intervals-action", b"CANCEL")])
    site.send(requests, b"second", None, later)
    site.send(requests, b"third", None, [*later, ("intervals-action", b"REPLACE")])
    rejections = await site.read(f"rejections.{site.name}", 2)
    assert [rejection.value() for rejection in rejections] == [b"second", b"third"]
    reasons = {dict(headers_of(rejection))["tidings-reject-reason"] for rejection in rejections}
    assert reasons == {b"the schedule with this id was cancelled: use another id"}


async def test_headers_cannot_forge_the_identity_of_a_record(site: Site) -> None:
    """A released record that is scheduled again keeps its headers, except those that identify it."""
    headers: list[Header] = [
        ("intervals-schedule", b"PT0.1S"),
        ("tidings-id", b"forged"),
        ("tidings-occurrence", b"forged/1/1"),
        ("other", b"1"),
    ]
    site.send(f"assignments.{site.name}", b"x", None, headers)
    (record,) = await site.read(f"executions.{site.name}", 1)
    names = [name for name, _ in headers_of(record)]
    assert names[:2] == ["intervals-schedule", "other"]
    assert (names.count("tidings-id"), names.count("tidings-occurrence")) == (1, 1)
    assert dict(headers_of(record))["tidings-id"] != b"forged"


async def test_the_schedule_of_a_notification_is_not_changed_by_any_wire(broker: Broker, tmp_path: Path) -> None:
    etf1 = f"etf1-{uuid.uuid4().hex[:8]}"
    name = f"site-{uuid.uuid4().hex[:8]}"
    async with opened(broker, tmp_path, name=name, schedules={etf1: name}) as site:
        await site.engine.submit([notification(name, "tea")])
        later = str(in_us(3_600) // SECOND_US)
        native: list[Header] = [("tidings-id", b"tea"), ("tidings-to", b"out"), ("tidings-at", b"+1h")]
        site.send(f"tidings.requests.{name}", b"1", None, [*native, ("tidings-action", b"REPLACE")])
        site.send(f"tidings.requests.{name}", b"2", None, [("tidings-id", b"tea"), ("tidings-action", b"CANCEL")])
        intervals: list[Header] = [("intervals-id", b"tea"), ("intervals-schedule", b"PT1H")]
        site.send(f"assignments.{name}", b"3", None, [*intervals, ("intervals-action", b"REPLACE")])
        kaspr: list[Header] = [
            ("x-scheduler-action", "REPLACE"),
            ("x-scheduler-request-id", "tea"),
            ("x-scheduler-deliver-at", format_instant(in_us(3_600))),
            ("x-scheduler-deliver-to", "out"),
        ]
        site.send(f"{name}-schedule-requests", b"4", None, kaspr)
        site.send(etf1, b"5", b"tea", [("scheduler-epoch", later), ("scheduler-target-topic", "out")])
        site.send(etf1, None, b"tea")
        for topic, count in (
            (f"tidings.rejections.{name}", 2),
            (f"rejections.{name}", 3),  # of Intervals, and of etf1
            (f"{name}-schedule-rejections", 1),
        ):
            for rejection in await site.read(topic, count):
                reason = str(dict(headers_of(rejection))["tidings-reject-reason"])
                assert "this schedule belongs to notification 'tea': cancel the notification" in reason
        found = await site.engine.find(name, "tea")
        assert found is not None
        assert (found.topic, found.state, found.generation) == ("notify.email", "pending", 1)


async def test_no_wire_writes_to_the_topics_of_deliveries(broker: Broker, tmp_path: Path) -> None:
    """A record there could name a pending notification, which would be sent early."""
    etf1 = f"etf1-{uuid.uuid4().hex[:8]}"
    name = f"site-{uuid.uuid4().hex[:8]}"
    async with opened(broker, tmp_path, name=name, schedules={etf1: name}) as site:
        forged, later = b'{"notification":"tea"}', in_us(3_600)
        to_log: list[Header] = [("tidings-bus", b"log"), ("tidings-to", b"notify.email")]
        site.send(f"tidings.requests.{name}", forged, None, to_log)
        site.send(f"tidings.requests.{name}", forged, None, [("tidings-to", b"notify.sms.high")])
        kaspr: list[Header] = [
            ("x-scheduler-action", "ADD"),
            ("x-scheduler-request-id", "forged"),
            ("x-scheduler-deliver-at", format_instant(later)),
            ("x-scheduler-deliver-to", "notify.email"),
        ]
        site.send(f"{name}-schedule-requests", forged, None, kaspr)
        target = ("scheduler-target-topic", "notify.email")
        site.send(etf1, forged, b"forged", [("scheduler-epoch", str(later // SECOND_US)), target])
        for topic, count in (
            (f"tidings.rejections.{name}", 2),
            (f"rejections.{name}", 1),
            (f"{name}-schedule-rejections", 1),
        ):
            for rejection in await site.read(topic, count):
                reason = str(dict(headers_of(rejection))["tidings-reject-reason"])
                assert "is reserved for the deliveries of notifications: choose another topic" in reason
        assert await site.engine.store.topics_by_prefix("notify.") == []


def notification(tenant: str, name: str) -> Add:
    """The schedule of a notification, as delivery submits it."""
    due, value = in_us(3_600), f'{{"notification":"{name}"}}'.encode()
    return Add(tenant, name, "notify.email", Once(due), pack(Message(None, value)), b"n" * 16, due)


async def test_a_time_in_the_past_is_refused_if_a_record_requests_it(site: Site) -> None:
    requests, out = f"tidings.requests.{site.name}", f"{site.name}-past"
    headers: list[Header] = [("tidings-to", out), ("tidings-past", "refuse")]
    hour_ago = in_us(-3_600)
    site.send(requests, b"late", None, [*headers, ("tidings-at", format_instant(hour_ago))])
    in_time = hour_ago // 1_000 - 1_000  # it was sent in time, and is read late
    site.send(requests, b"read late", None, [*headers, ("tidings-at", format_instant(hour_ago))], in_time)
    (record,) = await site.read(out, 1)
    assert record.value() == b"read late"
    (rejection,) = await site.read(f"tidings.rejections.{site.name}", 1)
    assert rejection.value() == b"late"
    assert "tidings-at: is 60 minutes in the past" in str(dict(headers_of(rejection))["tidings-reject-reason"])
