"""Stores of version 0.1, with everything in them, opened by today's code: nothing is lost, and nothing is sent twice.

`make_store.py` describes how the stores were made and how to extend them.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.kafka.site import read_all as read_topic
from tests.providers.servers.http import Answer, Fault, Request
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tests.upgrades import kafka_requests, notifications, schedules
from tests.upgrades.answers import Answers, Reads, read_all
from tests.upgrades.databases import Database, PostgresDatabase, SqliteFile, fixture
from tests.upgrades.differences import comparable, expected, without_additions
from tests.upgrades.node import Client, ShiftedClock, running
from tests.upgrades.requests import repeated
from tests.upgrades.settings import AWAY_PORT, HOOKS_PORT, write_settings
from tidings.config import load
from tidings.node.stores import CannotStart, open_store
from tidings.testing import eventually
from tidings.timeline.postgres.migration import Migration

pytestmark = pytest.mark.slow

WITHOUT_WORKER = ("api", "dispatch")
ALL_ROLES = ("api", "intake", "dispatch", "deliver")
LATER_US = 2 * 3_600_000_000
WAIT_S = 30.0


class Upgrade:
    """A store of 0.1, and nodes of today on it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.made: dict[str, Any] = msgspec.json.decode(fixture(f"{database.name}.json"))
        database.restore(fixture(database.name))
        self._clock = ShiftedClock(self.made["now"])

    @property
    def settings(self) -> Path:
        return write_settings(self.folder, self.database.address, roles=ALL_ROLES)

    @property
    def clock(self) -> ShiftedClock:
        return self._clock

    async def migrate(self) -> None:
        """PostgreSQL is migrated by a command, because nodes of the older version may run; a file migrates itself."""
        if isinstance(self.database, PostgresDatabase):
            with pytest.raises(CannotStart, match="tidings migrate"):
                await open_store(self.database.address, load(str(self.settings), {}, {}).config, self._clock)
            await Migration(self.database.address, self._clock).run(lambda _: None)

    @asynccontextmanager
    async def node(self, *roles: str, more: str = "") -> AsyncIterator[Client]:
        """A node with these roles; its clock is at the time at which 0.1 stopped, unless `wait` was called."""
        self.database.shift(self._clock.shift_us)
        settings = write_settings(self.folder, self.database.address, roles=roles, more=more)
        async with running(settings, self._clock, self.made["key"]) as client:
            yield client

    def wait(self) -> None:
        """Let time pass until what was due soon is long overdue."""
        self._clock.skip(LATER_US)


@pytest.fixture(params=["sqlite", "postgres"])
async def upgrade(request: pytest.FixtureRequest, tmp_path: Path) -> Upgrade:
    if request.param == "sqlite":
        return await _migrated(SqliteFile(tmp_path), tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return await _migrated(PostgresDatabase(server, f"upgrade_{tmp_path.name.lower()}"), tmp_path)


async def _migrated(database: Database, folder: Path) -> Upgrade:
    upgrade = Upgrade(database, folder)
    await upgrade.migrate()
    return upgrade


async def test_every_answer_is_that_of_0_1(upgrade: Upgrade) -> None:
    """Also to a repeated request, which changes nothing."""
    async with upgrade.node(*WITHOUT_WORKER) as client:
        for request, answer in zip(upgrade.made["requests"], upgrade.made["repeats"], strict=True):
            reply = await repeated(client, request)
            assert comparable(reply.stored) == comparable(answer), request
        answers = await read_all(client)
    recorded = expected(upgrade.made["answers"])
    assert sorted(answers) == sorted(recorded)
    for name, answer in recorded.items():
        today = without_additions(name, answers[name], answer)
        assert comparable(today) == comparable(answer), name


async def test_positions_of_request_topics_are_kept(upgrade: Upgrade) -> None:
    store = await open_store(upgrade.database.address, load(str(upgrade.settings), {}, {}).config, upgrade.clock)
    try:
        read = Counter(topic for topic, *_ in kafka_requests.REQUESTS)
        positions = {topic.partition("@")[0]: next for (topic, _), next in (await store.positions()).items()}
        assert positions == read
    finally:
        await store.close()


async def test_what_is_due_is_released_once(upgrade: Upgrade) -> None:
    async with upgrade.node(*WITHOUT_WORKER) as client:
        reply = await client.call("DELETE", schedules.path_of("soon-cancelled"))
        assert reply.document["outcome"] == "cancelled"
    upgrade.wait()
    async with upgrade.node(*WITHOUT_WORKER) as client:
        for schedule, state in (
            ("soon", "released"),
            ("soon-binary", "released"),
            ("soon-high", "released"),
            ("soon-skip", "missed"),
            ("soon-expired", "missed"),
            ("soon-every", "ended"),
            ("soon-cancelled", "cancelled"),
            ("paused-soon", "paused"),
            ("once", "pending"),
        ):
            assert await schedules.in_state(client, schedule, state)
        assert await schedules.in_state(client, "native-soon", "released", "acme")
        after: Answers = {}
        for tenant in ("default", "acme"):
            reads = Reads(client, tenant)
            await reads.records("greetings")
            after |= reads.answers
    before = upgrade.made["answers"]
    assert new_records(before, after, "default /v1/topics/greetings/records") == Counter(
        {
            "soon/1/1": 1,
            "soon-binary/1/1": 1,
            "soon-high/1/1": 1,
            **{f"soon-every/1/{number}": 1 for number in range(1, 6)},
            "soon-latest/1/8": 1,
            "fired/1/1": 1,
        }
    )
    assert new_records(before, after, "acme /v1/topics/greetings/records") == Counter({"native-soon/1/1": 1})
    sent = next(row for row in after["default /v1/topics/greetings/records"] if row["id"] == "soon-binary")
    assert {name: sent[name] for name in schedules.BINARY} == schedules.BINARY


async def test_notifications_are_delivered_once(upgrade: Upgrade) -> None:
    async with upgrade.node(*WITHOUT_WORKER) as client:
        for tenant in ("default", "acme"):
            reply = await client.call("DELETE", notifications.path_of("soon-cancelled"), tenant=tenant)
            assert reply.document["outcome"] == "cancelled"
    upgrade.wait()
    messages = {"/ada": ["soon/1", "soon-recurring/1", "soon-recurring/2", "unread/1", "unread-high/1"]}
    messages |= {"/eva": ["deferred/1", "unread-low/1"], "/hang": ["hanging/1"]}
    messages |= {"/bob": [f"retry-{number}/1" for number in range(1, 5)]}
    ids = {(path, f"n-{name}") for path, names in messages.items() for name in names}
    ids |= {("/ada", f"n-{name}@acme") for name in ("soon/1", "soon-recurring/1", "soon-recurring/2")}
    receiver = Receiver()
    host = upgrade.database.host
    async with (
        notifications.receiving(receiver, host, HOOKS_PORT),
        notifications.receiving(receiver, host, AWAY_PORT),
        upgrade.node(*ALL_ROLES) as client,
    ):
        for notification, state in (
            ("soon", "sent"),
            ("soon-recurring", "sent"),
            ("soon-cancelled", "cancelled"),
            ("soon-opted-out", "skipped"),
            ("soon-deleted", "failed"),
            ("soon-no-address", "skipped"),
            ("soon-inbox", "sent"),
            ("soon-mail", "skipped"),
            ("deferred", "sent"),
            ("unread", "sent"),
            ("unread-high", "sent"),
            ("unread-low", "sent"),
            ("unread-inbox", "sent"),
            ("hanging", "sent"),
            ("retry-1", "sent"),
            ("retry-2", "sent"),
            ("retry-3", "sent"),
            ("retry-4", "sent"),
        ):
            assert await notifications.in_state(client, notification, state), notification
        await eventually(lambda: receiver.received.keys() >= ids, WAIT_S)
    assert receiver.received == Counter(ids)


async def test_clients_go_on_with_what_0_1_gave_them(upgrade: Upgrade) -> None:
    """Versions of users, idempotency and dedupe keys, links, API keys and consumer groups."""
    made = upgrade.made
    async with upgrade.node(*ALL_ROLES) as client:
        etag = made["answers"]["default /v1/users/max"]["etag"]
        changed = await client.call("PATCH", "/v1/users/max", {"name": "Max"}, If_Match=etag)
        assert changed.status == 200, changed.body
        again = await client.call("PATCH", "/v1/users/max", {"name": "Moritz"}, If_Match=etag)
        assert again.status == 412
        second = {"user": "ada", "template": "reminder", "variables": {"what": "again"}, "dedupe_key": "d"}
        reply = await client.call("POST", "/v1/notifications", second | {"channel": "webhook", "dedupe_window": "P2D"})
        assert (reply.document["outcome"], reply.document["first"]) == ("skipped", "n-deduped")
        template = {"parts": {"webhook": {"en": {"body": {"what": "{{ unknown }}"}}}}}
        assert (await client.call("PUT", "/v1/templates/reminder", template)).status == 409
        one_click = {"Content_Type": "application/x-www-form-urlencoded"}
        page = await client.call("POST", made["facts"]["unsubscribe"], b"List-Unsubscribe=One-Click", **one_click)
        assert page.status == 200
        assert (await client.get("/v1/users/ada")).document["preferences"]["email/news"] is False
        client.key = made["facts"]["key acme-app"]
        assert (await client.get("/v1/users/ada", "acme")).status == 200
        assert (await client.get("/v1/users/ada", "default")).status == 403


async def test_deliveries_of_0_1_take_receipts_and_are_sent_again(upgrade: Upgrade) -> None:
    answers = upgrade.made["answers"]
    sent = answers["default /v1/deliveries/n-news-too/1"]["body"]
    receiver = Receiver()
    async with (
        notifications.receiving(receiver, upgrade.database.host, HOOKS_PORT),
        upgrade.node(*ALL_ROLES) as client,
    ):
        for state in ("delivered", "complained"):
            receipt = {"state": state, "provider_id": sent["provider_id"]}
            body, headers = notifications.signed_receipt(receipt, state, upgrade.clock)
            reply = await client.call("POST", "/receipts/outbox", body, **headers)
            assert reply.document["applied"] == 1, reply.body
            assert await notifications.in_state(client, "news-too", state)
        reply = await client.call("POST", "/v1/deliveries/n-failed/1/retry")
        assert reply.document["outcome"] == "retried"
        assert await notifications.in_state(client, "failed", "sent")
    assert receiver.received["/refused", "n-failed/1"] == 1


async def test_suppressions_of_0_1_hold_however_an_address_is_written(upgrade: Upgrade) -> None:
    addresses = ("MAX@b\u00fccher.example", "eva@Example.com", "sup@EXAMPLE.com", "Max@xn--bcher-kva.example")
    async with upgrade.node(*ALL_ROLES) as client:
        for number, address in enumerate(addresses):
            document = {"id": f"n-new-{number}", "to": address, "channel": "email", "content": {"text": "x"}}
            assert (await client.call("POST", "/v1/notifications", document)).status == 201
            found = await notifications.in_state(client, f"new-{number}", "skipped")
            assert found["reason"] == "suppressed", address
        path = f"/v1/suppressions/email/{quote(addresses[0], safe='')}"
        assert (await client.call("DELETE", path)).document["outcome"] == "removed"
        rows = (await client.get("/v1/suppressions?limit=1000")).document["suppressions"]
        assert not [row for row in rows if (row["address"] or "").startswith("max@")]
        document = {"id": "n-freed", "to": "max@b\u00fccher.example", "channel": "email", "content": {"text": "x"}}
        assert (await client.call("POST", "/v1/notifications", document)).status == 201
        assert await notifications.in_state(client, "freed", "sent")


async def test_a_user_of_0_1_can_be_erased(upgrade: Upgrade) -> None:
    async with upgrade.node(*WITHOUT_WORKER) as client:
        reply = await client.call("POST", "/v1/users/ada/erase")
        assert reply.status == 200, reply.body
        before = upgrade.made["answers"]["default /v1/notifications?user=ada"]
        assert reply.document["removed"]["notification"] == len(before)
        rows = (await client.get("/v1/notifications?user=ada&limit=1000")).document["notifications"]
        assert rows == []
        found = await client.get(schedules.path_of("n-far"))
        assert found.document["state"] == "cancelled"


async def test_what_was_on_its_way_to_kafka_arrives_once(upgrade: Upgrade, broker: Broker) -> None:
    name = upgrade.database.name.replace(".", "")
    kafka = f'[kafka]\nservers = "{broker.bootstrap}"\nname = "{name}"\nwires = ["native"]\ntenants = ["nobody"]\n'
    for topic in ("there", "not.there"):
        broker.create_topic(topic, exist_ok=True)
    before = {topic: len(read_topic(broker, topic)) for topic in ("there", "not.there")}
    async with upgrade.node(*ALL_ROLES, more=kafka) as client:
        for schedule in ("handed", "held"):
            assert await schedules.in_state(client, schedule, "released")
    for topic, value in (("there", b"on its way"), ("not.there", b"held back")):
        assert [record.value() for record in read_topic(broker, topic)[before[topic] :]] == [value]


class Receiver:
    """Receives webhooks, and counts how often each message came by its path and id."""

    def __init__(self) -> None:
        self.received: Counter[tuple[str, str]] = Counter()

    def __call__(self, request: Request) -> Answer | Fault:
        self.received[request.path, request.headers["webhook-id"]] += 1
        return Answer(204)


def new_records(before: Answers, after: Answers, name: str) -> Counter[str]:
    """How often each occurrence was released since; what was there before is unchanged."""
    kept = {(row["partition"], row["offset"]): row for row in before[name]}
    now = {(row["partition"], row["offset"]): row for row in after[name]}
    assert {place: row for place, row in now.items() if place in kept} == kept
    return Counter(row["occurrence"] for place, row in now.items() if place not in kept)
