"""Problems with request topics: an invalid record or topic does not affect others."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaProducer

from tests.kafka.site import READ_S_MAX, Header, Site, headers_of, opened, read_all
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tests.servers.kafka import Broker
from tests.servers.transactions import commit, transactional
from tidings.domain.schedules.iso8601 import format_instant
from tidings.edges.kafka import intake as intaking
from tidings.edges.kafka import request_reader as reading
from tidings.edges.kafka.intake import KafkaIntake
from tidings.edges.kafka.start_position import StartPosition
from tidings.testing import eventually

pytestmark = pytest.mark.slow

SOON: list[Header] = [("intervals-schedule", b"PT0.1S")]
NEWCOMERS = 60
UNNOTICED_S = 2.0


def intake_of(site: Site) -> KafkaIntake:
    return next(service for service in site.engine._services if isinstance(service, StartPosition))._intake


class NotText(str):
    """A header name that is not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        return b"\xff\xfe-name"


async def test_a_header_name_that_is_not_utf8_is_refused_and_the_next_record_accepted(site: Site) -> None:
    requests = f"assignments.{site.name}"
    site.broker.create_topic(requests)
    producer = KafkaProducer(bootstrap_servers=site.broker.bootstrap)
    try:
        for _ in range(20):  # Python calls what it calls often in a way of its own
            producer.send(requests, b"good", headers=[("intervals-schedule", b"PT0.1S")])
        wrong = [("intervals-schedule", b"PT0.1S"), (NotText("x"), b"v")]
        producer.send(requests, b"bad", b"k", headers=wrong).get(READ_S_MAX)
        producer.send(requests, b"good", headers=[("intervals-schedule", b"PT0.1S")]).get(READ_S_MAX)
    finally:
        producer.close()
    records = await site.read(f"executions.{site.name}", 21)
    assert {record.value() for record in records} == {b"good"}
    (rejection,) = await site.read(f"rejections.{site.name}", 1)
    assert (rejection.key(), rejection.value()) == (b"k", b"bad")
    headers_by_name = dict(headers_of(rejection))
    assert headers_by_name["tidings-source-offset"] == b"20"
    assert b"not UTF-8" in bytes(headers_by_name["tidings-reject-reason"] or b"")  # type: ignore[arg-type]
    assert "intervals-schedule" not in headers_by_name


async def test_offsets_without_records_are_no_lag(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transaction markers use offsets, and deleted records cannot be read."""
    monkeypatch.setattr(intaking, "COMMIT_US", 100_000)
    name = f"lag-{uuid.uuid4().hex[:8]}"
    in_transactions, emptied = f"assignments.{name}-tx", f"assignments.{name}-old"
    broker.create_topic(in_transactions)
    broker.create_topic(emptied)
    producer = transactional(broker)
    for _ in range(3):
        commit(producer, in_transactions, b"x", headers=[("intervals-schedule", b"PT0.1S")])
    plain = Producer(broker.client(linger_ms=0))
    for _ in range(100):
        plain.produce(emptied, b"x", headers=SOON)
    assert plain.flush(READ_S_MAX) == 0
    admin = AdminClient(broker.client())
    for deleted in admin.delete_records([TopicPartition(emptied, 0, 100)]).values():
        deleted.result(READ_S_MAX)
    async with opened(broker, tmp_path) as site:
        await site.read(f"executions.{name}-tx", 3)
        group = Consumer(broker.client(group_id=f"{site.name}-intake"))
        places = [TopicPartition(in_transactions, 0), TopicPartition(emptied, 0)]

        async def headers_by_name() -> bool:
            found = await asyncio.to_thread(group.committed, places, READ_S_MAX)
            return [place.offset for place in found] == [6, 100]

        try:
            await eventually(headers_by_name, READ_S_MAX, poll_s=0.1)
            assert intake_of(site).lag == 0
        finally:
            group.close()


async def test_a_position_that_was_deleted_is_skipped(broker: Broker, tmp_path: Path) -> None:
    """Requests deleted before they were read are lost; later ones are accepted."""
    async with opened(broker, tmp_path) as site:
        requests = f"assignments.{site.name}"
        site.send(requests, b"first", None, SOON)
        await site.read(f"executions.{site.name}", 1)
    for _ in range(5):
        site.send(requests, b"never read", None, SOON)
    admin = AdminClient(broker.client())
    for deleted in admin.delete_records([TopicPartition(requests, 0, 6)]).values():
        deleted.result(READ_S_MAX)
    site.send(requests, b"second", None, SOON)
    async with opened(broker, tmp_path):
        records = await site.read(f"executions.{site.name}", 2)
    assert [record.value() for record in records] == [b"first", b"second"]


async def test_a_recreated_topic_makes_schedules_beside_pending_ones(site: Site) -> None:
    requests, executions = f"assignments.{site.name}", f"executions.{site.name}"
    at = format_instant(int(time.time() * 1_000_000) + 20_000_000)
    headers: list[Header] = [("intervals-schedule", at)]
    for value in (b"old", b"the same"):
        site.send(requests, value, None, headers)
    await eventually(lambda: site.engine.find(site.name, f"{requests}/0/1"), READ_S_MAX, poll_s=0.1)
    admin = AdminClient(site.broker.client())
    await asyncio.to_thread(admin.delete_topics([requests])[requests].result, READ_S_MAX)
    site.broker.create_topic(requests)
    await eventually(lambda: is_empty(site.broker, requests), READ_S_MAX, poll_s=0.1)
    for value in (b"new", b"the same", b"behind", b"what was read"):
        site.send(requests, value, None, headers)
    records = await site.read(executions, 6)
    values = sorted(record.value() or b"" for record in records)
    assert values == [b"behind", b"new", b"old", b"the same", b"the same", b"what was read"]
    assert read_all(site.broker, f"rejections.{site.name}") == []
    names = sorted(bytes(dict(headers_of(record))["tidings-id"] or b"").decode() for record in records)  # type: ignore[arg-type]
    places = [name.removeprefix(requests).partition("@") for name in names]
    assert [place for place, _, life in places if not life] == ["/0/0", "/0/1"], places
    assert [place for place, _, life in places if life] == ["/0/0", "/0/1", "/0/2", "/0/3"], places


def is_empty(broker: Broker, topic: str) -> bool:
    """The broker deletes and creates topics asynchronously: until then a record goes to the old one."""
    consumer = Consumer(broker.client(group_id="looking"))
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), READ_S_MAX)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return end == 0


async def test_new_tenants_delay_nothing(site: Site) -> None:
    requests, out = f"assignments.{site.name}", f"executions.{site.name}"
    site.send(requests, b"first", None, SOON)
    await site.read(out, 1)
    newcomers = [f"new-{uuid.uuid4().hex[:8]}" for _ in range(NEWCOMERS)]
    admin = AdminClient(site.broker.client())
    topics = [NewTopic(f"assignments.{name}", 1, 1) for name in newcomers]
    for made in admin.create_topics(topics).values():
        await asyncio.to_thread(made.result, READ_S_MAX)
    longest = 0.0
    names = {f"executions.{name}" for name in newcomers} | {f"rejections.{name}" for name in newcomers}
    number = 0
    while not names <= site.broker.topics():
        number += 1
        begun = time.monotonic()
        site.send(requests, b"x", None, [("intervals-id", f"n{number}"), ("intervals-schedule", "PT1H")])
        await eventually(found(site, f"n{number}"), READ_S_MAX, poll_s=0.02)
        longest = max(longest, time.monotonic() - begun)
        assert number < 1_000
    assert longest < UNNOTICED_S


def found(site: Site, schedule_id: str) -> Callable[[], Awaitable[Any]]:
    return lambda: site.engine.find(site.name, schedule_id)


async def test_a_failed_reader_leaves_no_thread(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def intakes() -> set[int | None]:
        return {thread.ident for thread in threading.enumerate() if "kafka-intake" in thread.name}

    broker.create_topic(f"assignments.any-{uuid.uuid4().hex[:8]}")
    before = intakes()

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(reading.Reader, "commit", fail)
    async with opened(broker, tmp_path) as site:
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await asyncio.wait_for(site.engine.wait(), READ_S_MAX)
        await eventually(lambda: intakes() <= before, READ_S_MAX, poll_s=0.1)


# Topics that may not be read


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker with access control."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    properties = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    try:
        started = Broker.start(properties=properties | {"super.users": "User:admin"})
    except Missing as missing:
        leave_out(missing)
    with started:
        yield started


@contextlib.contextmanager
def forbidden(broker: Broker, topic: str) -> Iterator[None]:
    """A topic that is visible but not readable."""
    broker.create_topic(topic)
    admin = AdminClient(broker.client())
    name = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
    allowed = [AclOperation.DESCRIBE, AclOperation.WRITE]
    rules = [AclBinding(*name, "User:*", "*", operation, AclPermissionType.ALLOW) for operation in allowed]
    for made in admin.create_acls(rules).values():
        made.result(READ_S_MAX)
    try:
        yield
    finally:
        every = AclBindingFilter(*name, "User:*", "*", AclOperation.ANY, AclPermissionType.ANY)
        for deleted in admin.delete_acls([every]).values():
            deleted.result(READ_S_MAX)


def send(broker: Broker, topic: str, value: bytes) -> None:
    producer = Producer(broker.client(linger_ms=0))
    producer.produce(topic, value, headers=SOON)
    assert producer.flush(READ_S_MAX) == 0


async def test_a_forbidden_topic_is_suspended(
    guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "UNREADABLE_US", 1_000_000)
    name = f"left-{uuid.uuid4().hex[:8]}"
    requests, secret = f"assignments.{name}", f"assignments.{name}-secret"

    attempts: list[str] = []
    leave_out = reading.Reader._mark_unreadable

    def noted(reader: reading.Reader, topic: str, reason: str) -> None:
        attempts.append(topic)
        leave_out(reader, topic, reason)

    monkeypatch.setattr(reading.Reader, "_mark_unreadable", noted)

    def complaints() -> list[str]:
        said = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        return [text for text in said if text.startswith(f"cannot read {secret}")]

    async with opened(guarded, tmp_path) as site:
        with forbidden(guarded, secret):
            send(guarded, secret, b"secret")
            # As long as there is no other
            await eventually(lambda: any(secret in text for text in site.engine.problems()), READ_S_MAX, poll_s=0.1)
            guarded.create_topic(requests)
            await eventually(lambda: not site.engine.problems(), READ_S_MAX, poll_s=0.1)
            for number in range(10):
                send(guarded, requests, b"%d" % number)
                await site.read(f"executions.{name}", number + 1)
                assert site.engine.problems() == []
            tried = len(attempts)
            await eventually(lambda: len(attempts) >= tried + 2, READ_S_MAX, poll_s=0.1)  # in silence
            assert len(complaints()) == 1
        (record,) = await site.read(f"executions.{name}-secret", 1)
        assert record.value() == b"secret"
