"""Schedules over HTTP to Kafka or to the log, and their states in the API."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.edges.http.site import VERSION
from tests.edges.http.site import Site as HttpSite
from tests.kafka.site import READ_S_MAX, Site, expect_progress, headers_of
from tests.servers.kafka import Broker
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Store
from tidings.edges.http.app import create_app
from tidings.edges.http.auth import KeyRing
from tidings.edges.http.server import running
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka, open_store
from tidings.testing import eventually

pytestmark = pytest.mark.slow


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[HttpSite]:
    """A server over a running engine; without keys all clients are the tenant `default`."""
    app = create_app(engine, keys=KeyRing(engine.store, engine.clock), version=VERSION)
    async with running(app) as (host, port), aiohttp.ClientSession() as session:
        yield HttpSite(engine, app, session, host, port)


@pytest.fixture
async def web(site: Site) -> AsyncIterator[HttpSite]:
    async with serving(site.engine) as served:
        yield served


@pytest.fixture
async def careful(broker: Broker, tmp_path: Path) -> AsyncIterator[HttpSite]:
    """A server that creates no topics: records to a missing topic stay in flight."""
    expect_progress(broker)
    kafka = Kafka(servers=broker.bootstrap, name=f"site-{uuid.uuid4().hex[:8]}", topics="expect")
    config = Config(store=Store(path=str(tmp_path / "careful.db")), kafka=kafka)
    clock = SystemClock()
    engine = build_engine(await open_store(config.store.path, config, clock), config, clock)
    join_kafka(engine, config)
    await engine.start()
    try:
        async with serving(engine) as served:
            yield served
    finally:
        await engine.stop()


async def shown(web: HttpSite, schedule_id: str, state: str) -> Any:
    """Wait until a schedule is in a state; Kafka may take longer than the log."""

    async def found() -> Any:
        document = (await web.call("GET", f"/v1/schedules/{schedule_id}")).document
        return document if document.get("state") == state else None

    return await eventually(found, READ_S_MAX)


@pytest.mark.parametrize("said", [{}, {"bus": "kafka"}], ids=["default", "kafka"])
async def test_schedule_to_kafka(site: Site, web: HttpSite, said: dict[str, str]) -> None:
    out = f"{site.name}-out"
    headers = [["trace", "1"], ["trace", None], ["bytes", {"base64": "/wA="}]]
    added = await web.add(topic=out, at="+1s", key="k", value_base64="AP8=", headers=headers, **said)
    pending = (await web.call("GET", f"/v1/schedules/{added['id']}")).document
    assert (pending["state"], pending["bus"], pending["topic"]) == ("pending", "kafka", out)
    (record,) = await site.read(out, 1)
    assert (record.key(), record.value()) == (b"k", b"\x00\xff")
    assert headers_of(record) == [
        ("trace", b"1"),
        ("trace", None),
        ("bytes", b"\xff\x00"),
        ("tidings-id", added["id"].encode()),
        ("tidings-occurrence", f"{added['id']}/1/1".encode()),
        ("tidings-due-at", added["due_at"].encode()),
        ("tidings-attempt", b"1"),
    ]
    released = await shown(web, added["id"], "released")
    assert (released["bus"], released["topic"]) == ("kafka", out)
    assert not released.keys() & {"partition", "offset"}, "those are of the outbox, and say nothing about Kafka"


async def test_schedule_to_the_log(site: Site, web: HttpSite) -> None:
    added = await web.add(topic="greetings", at="+0.2s", value="hello", bus="log")
    released = await web.state_of(added["id"], "released")
    assert (released["bus"], released["topic"], released["value"]) == ("log", "greetings", "hello")
    assert released["offset"] == 0
    page = (await web.call("GET", "/v1/topics/greetings/records?bus=log")).document
    assert [(record["value"], record["id"]) for record in page["records"]] == [("hello", added["id"])]
    assert "greetings" not in site.broker.topics()


async def test_one_topic_name_on_both_buses(site: Site, web: HttpSite) -> None:
    name = f"{site.name}-both"
    on_kafka = await web.add(topic=name, at="+0.2s", value="to kafka")
    on_log = await web.add(topic=name, at="+0.2s", value="to the log", bus="log")
    (record,) = await site.read(name, 1)
    assert record.value() == b"to kafka"
    await shown(web, on_log["id"], "released")
    listed = (await web.call("GET", f"/v1/schedules?topic={name}")).document["schedules"]
    assert {row["id"]: row["bus"] for row in listed} == {on_kafka["id"]: "kafka", on_log["id"]: "log"}


async def test_publish_now(site: Site, web: HttpSite) -> None:
    out = f"{site.name}-out"
    reply = await web.call("POST", f"/v1/topics/{out}/records", {"value": {"a": 1}})
    assert reply.status == 201, reply.body
    (record,) = await site.read(out, 1)
    assert record.value() == b'{"a":1}'


async def test_a_recurring_schedule_to_kafka(site: Site, web: HttpSite) -> None:
    out = f"{site.name}-out"
    added = await web.add(topic=out, every="R3/PT1S", value="tick", id="ticks")
    records = await site.read(out, 3)
    numbers = [dict(headers_of(record))["tidings-occurrence"] for record in records]
    assert numbers == [f"{added['id']}/1/{number}".encode() for number in (1, 2, 3)]
    assert [("tidings-final", b"true") in headers_of(record) for record in records] == [False, False, True]
    await shown(web, "ticks", "ended")


async def test_the_largest_values_delay_nothing(site: Site, web: HttpSite) -> None:
    """Everything that intake accepts must fit into a Kafka record with its headers."""
    out, value = f"{site.name}-out", "v" * site.engine.settings.limits.value_bytes_max
    site.broker.create_topic(out, max_message_bytes=str(2 * len(value)))
    await web.add(topic=out, at="+0.1s", value=value)
    await web.add(topic=out, at="+0.2s", value="after it")
    records = await site.read(out, 2)
    assert [record.value() for record in records] == [value.encode(), b"after it"]


async def test_a_value_that_kafka_refuses_delays_nothing(site: Site, web: HttpSite) -> None:
    """A topic may accept less than we do; other topics are not affected."""
    narrow, out = f"{site.name}-narrow", f"{site.name}-out"
    site.broker.create_topic(narrow, max_message_bytes="1000")
    await web.add(topic=narrow, at="+0.1s", value="v" * 2_000)
    await web.add(topic=out, at="+0.5s", value="after it")
    (record,) = await site.read(out, 1)
    assert record.value() == b"after it"


async def test_an_id_keeps_its_destination(site: Site, web: HttpSite) -> None:
    document = {"topic": f"{site.name}-out", "at": "2030-01-01T00:00:00Z", "value": "v", "id": "one"}
    assert (await web.call("POST", "/v1/schedules", document)).status == 201
    again = await web.call("POST", "/v1/schedules", document | {"bus": "kafka"})
    assert (again.status, again.document["outcome"]) == (200, "unchanged")
    other = await web.call("POST", "/v1/schedules", document | {"bus": "log"})
    assert other.status == 409


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("executions.other", "another tenant"),
        ("rejections.other", "another tenant"),
        ("tidings.progress", "reserved for Tidings"),
        ("tidings.requests.default", "reserved for Tidings"),
        ("tidings.anything", "reserved for Tidings"),
        ("assignments.default", "is a request topic"),
        ("orders-schedule-requests", "is a request topic"),
        ("orders-schedule-actions", "reserved for Tidings"),
        ("orders-schedule-rejections", "reserved for Tidings"),
        ("schedules", "is a request topic"),
        ("__consumer_offsets", "reserved for Kafka"),
    ],
)
async def test_reserved_destinations_are_refused(web: HttpSite, topic: str, reason: str) -> None:
    document = {"topic": topic, "at": "2030-01-01T00:00:00Z", "value": "v"}
    for said in ({}, {"bus": "kafka"}):
        problem = (await web.call("POST", "/v1/schedules", document | said)).problem
        assert problem["status"] == 400
        assert problem["errors"][0]["field"] == "topic"
        assert reason in problem["errors"][0]["detail"]
    published = await web.call("POST", f"/v1/topics/{topic}/records", {"value": "v"})
    assert published.status == 400
    replaced = await web.call("PUT", "/v1/schedules/one", document)
    assert replaced.status == 400
    on_the_log = await web.call("POST", "/v1/schedules", document | {"bus": "log"})
    assert on_the_log.status == 201, "the log has no such topics"


async def test_reserved_destinations_are_refused_in_bulk(web: HttpSite) -> None:
    good = {"topic": "free", "at": "2030-01-01T00:00:00Z", "value": "v"}
    reply = await web.call("POST", "/v1/schedules", [good, good | {"topic": "executions.other"}, good])
    assert [line["outcome"] for line in reply.document] == ["scheduled", "rejected", "scheduled"]


async def test_a_tenant_may_write_to_its_own_executions(site: Site, web: HttpSite) -> None:
    added = await web.add(topic="executions.default", at="+0.1s", value=site.name)
    await shown(web, added["id"], "released")
    records = await site.read("executions.default", 1)
    assert site.name.encode() in {record.value() for record in records}


async def test_in_flight_and_then_released(careful: HttpSite, broker: Broker) -> None:
    """A record in the outbox is in flight and can no longer be changed."""
    out = f"late-{uuid.uuid4().hex[:8]}"
    added = await careful.add(topic=out, at="+0.1s", value="v", id="one")
    flying = await shown(careful, "one", "in_flight")
    assert (flying["bus"], flying["topic"], flying["due_at"]) == ("kafka", out, added["due_at"])
    cancel = await careful.call("DELETE", "/v1/schedules/one")
    assert (cancel.status, cancel.problem["outcome"], cancel.problem["state"]) == (409, "in_flight", "in_flight")
    explained = (await careful.call("GET", "/v1/schedules/one/explain")).document
    assert explained["state"] == "in_flight"
    assert explained["history"][0]["event"] == "accepted"
    listed = (await careful.call("GET", f"/v1/schedules?topic={out}")).document["schedules"]
    assert [(row["id"], row["state"]) for row in listed] == [("one", "in_flight")]

    broker.create_topic(out)
    released = await shown(careful, "one", "released")
    assert released["bus"] == "kafka"
    explained = (await careful.call("GET", "/v1/schedules/one/explain")).document
    assert [event["event"] for event in explained["history"]][-1] == "released"
    listed = (await careful.call("GET", f"/v1/schedules?topic={out}")).document["schedules"]
    assert [(row["id"], row["state"]) for row in listed] == [("one", "released")]
    cancel = await careful.call("DELETE", "/v1/schedules/one")
    assert (cancel.status, cancel.problem["state"]) == (409, "released")
    assert (await careful.call("GET", "/readyz")).status == 200


async def test_schedules_can_be_listed_by_state(careful: HttpSite, broker: Broker) -> None:
    out = f"late-{uuid.uuid4().hex[:8]}"
    await careful.add(topic=out, at="+0.1s", value="v", id="one")
    await shown(careful, "one", "in_flight")
    assert await ids(careful, "in_flight") == ["one"]
    assert await ids(careful, "released") == []
    broker.create_topic(out)
    await shown(careful, "one", "released")
    assert await ids(careful, "in_flight") == []
    assert await ids(careful, "released") == ["one"]


async def ids(web: HttpSite, state: str) -> list[str]:
    """The schedules in a state."""
    listed = (await web.call("GET", f"/v1/schedules?state={state}")).document["schedules"]
    return [row["id"] for row in listed]
