"""Notifications from Kafka are validated, stored under their ids and accepted once, like those over HTTP."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("confluent_kafka")

from tests.delivery.services import ACME, ADA, SECOND, Services, reminder
from tidings.delivery.notifications.resend import Resend
from tidings.delivery.worker import job
from tidings.domain.errors import StoreError
from tidings.domain.fleet import Report
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.schedule import unpack
from tidings.edges.kafka import notifications
from tidings.edges.kafka.intake import Batch
from tidings.edges.kafka.request_reader import Reading
from tidings.ports.tables import ChangeGroup, GroupResult, Row, RowKey
from tidings.testing import SimulatedClock
from tidings.timeline.memory.store import MemoryStore
from tidings.wires.native import Notify
from tidings.wires.record import Record

WORDS = {"text": "Tea at nine.", "title": "Tea"}
TEA: dict[str, Any] = {"id": "tea", "user": "ada", "channels": ["email"], "content": WORDS}
REMIND: dict[str, Any] = {"id": "remind", "user": "ada", "template": "reminder", "variables": {"what": "nine"}}
TOPIC = f"tidings.notify.{ACME}"


@pytest.fixture
async def services() -> Services:
    store, clock = MemoryStore(), SimulatedClock()
    await store.acquire(clock.elapsed(), 1_000_000, Report())
    services = Services(store, clock)
    await services.users.put(ACME, "ada", ADA)
    await services.templates.put(ACME, "reminder", reminder())
    return services


def batch(services: Services, *values: Any, timestamp_us: int | None = None, partition: int = 0) -> Batch:
    stamp = services.clock.now() if timestamp_us is None else timestamp_us
    raw = [value if isinstance(value, bytes) else msgspec.json.encode(value) for value in values]
    records = [Record(TOPIC, partition, offset, stamp, None, value) for offset, value in enumerate(raw)]
    wire = Notify()
    return Batch(services.engine, lambda _: wire, Reading(records, {}))


def reasons(made: Batch) -> list[list[str]]:
    """The reasons of each rejected record, in order."""
    rejections = [unpack(command.message).headers for command in made.on_outcomes([]) if isinstance(command, Add)]
    return [
        [(text or b"").decode() for name, text in headers if name == "tidings-reject-reason"] for headers in rejections
    ]


async def accepted(services: Services, *values: Any, **more: Any) -> Batch:
    made = batch(services, *values, **more)
    await made.accept(services.acceptance)
    return made


async def test_an_accepted_notification_can_be_read_and_its_record_has_only_its_id(services: Services) -> None:
    made = await accepted(services, TEA, REMIND)
    assert (list(made.commands), reasons(made)) == ([], [])
    for name in ("tea", "remind"):
        status = await services.reader.get(ACME, name)
        assert status is not None
        assert status.state == "pending"
        assert await services.history.explain(ACME, name)
    first, second = await services.release("notify.email")
    assert {job.read_job(record, ACME).notification for record in (first, second)} == {"tea", "remind"}
    assert b"nine" not in first.message + second.message


async def test_it_can_be_cancelled_and_erased(services: Services) -> None:
    await accepted(services, {**TEA, "at": "+1h"}, {**TEA, "id": "cake", "at": "+1h"})
    assert (await services.cancellation.cancel(ACME, "tea")).outcome == "cancelled"
    await services.erasure.erase(ACME, "ada")
    assert await services.reader.get(ACME, "cake") is None
    services.clock.advance(3_600 * SECOND)
    assert await services.release("notify.email") == []


async def test_a_failed_delivery_can_be_sent_again(services: Services) -> None:
    await accepted(services, TEA)
    await services.release("notify.email")
    failed = await services.deliver("tea", state="failed", reason="timeout", provider_id=None, sent=None)
    retrying = Resend(services.tables, services.engine, services.clock)
    assert (await retrying.retry(ACME, failed.name)).outcome == "retried"


async def test_without_an_id_the_position_of_the_record_is_the_id(services: Services) -> None:
    value = {name: TEA[name] for name in TEA if name != "id"}
    await accepted(services, value, value)
    assert [await services.reader.get(ACME, f"{TOPIC}.0.{offset}") is not None for offset in range(3)] == [
        True,
        True,
        False,
    ]


async def test_a_record_read_twice_is_accepted_once(services: Services) -> None:
    value = {**{name: TEA[name] for name in TEA if name != "id"}, "dedupe_key": "k"}
    for _ in range(2):
        made = await accepted(services, value, TEA, REMIND)
        assert reasons(made) == []
    assert len(await services.release("notify.email")) == 3
    assert reasons(await accepted(services, value, TEA, REMIND)) == []
    assert len(await services.release("notify.email")) == 3


async def test_an_accepted_notification_is_not_refused_for_a_template_deleted_since(services: Services) -> None:
    await accepted(services, REMIND)
    await services.templates.delete(ACME, "reminder", force=True)
    services.clock.advance(2 * SECOND)
    made = await accepted(services, REMIND, {**REMIND, "variables": {"what": "ten"}}, {**REMIND, "id": "other"})
    assert [refused.source for refused in made.refused] == [(TOPIC, 0, 1), (TOPIC, 0, 2)]
    assert all(reason == ["template: unknown template 'reminder': create it first"] for reason in reasons(made))
    assert len(await services.release("notify.email")) == 1


async def test_a_duration_counts_from_the_record_however_late_it_is_read(services: Services) -> None:
    sent = services.clock.now()
    services.clock.advance(60 * SECOND)
    await accepted(services, {**TEA, "at": "+5m"}, timestamp_us=sent)
    schedule = await services.engine.find(ACME, "tea")
    assert schedule is not None
    assert schedule.due == sent + 300 * SECOND


async def test_a_relative_day_counts_from_the_record_however_late_it_is_read(services: Services) -> None:
    sent = services.clock.now()
    await accepted(services, {**TEA, "at": "tomorrow 09:00"}, timestamp_us=sent)
    services.clock.advance(86_400 * SECOND)
    await accepted(services, {**TEA, "id": "late", "at": "tomorrow 09:00"}, timestamp_us=sent)
    first, second = [await services.engine.find(ACME, name) for name in ("tea", "late")]
    assert first is not None
    assert second is not None
    assert first.due == second.due


WRONG = [
    (b"", "the record's value: is incomplete JSON"),
    (b"Tea", "the record's value: is not valid JSON"),
    ([], "the record's value: is an array: send a JSON object"),
    ({**TEA, "tenant": "globex"}, "tenant: unknown field"),
    ({**TEA, "created": 1}, "created: unknown field"),
    ({**TEA, "channels": ["pigeon"]}, "channels[0]: 'pigeon' is not known: use one of email, sms"),
    ({**TEA, "channels": ["email", "email"]}, "channels: names one twice"),
    ({**TEA, "to": "ada@example.com"}, "user: give either 'user' or 'to'"),
    ({**TEA, "user": None, "to": "not an address"}, "to: "),
    ({**TEA, "content": {"text": "x", "title": "a\r\nBcc: b"}}, "content.title: "),
    ({**TEA, "id": "n/1~2"}, "id: contains '~'"),
    ({**TEA, "id": "n\0"}, "id: use 1 to 90 printable ASCII characters"),
    ({**TEA, "user": "nobody"}, "user: unknown user 'nobody'"),
    ({**REMIND, "template": "none"}, "template: unknown template 'none'"),
    ({**REMIND, "version": 9}, "version: the template 'reminder' has no version 9"),
    ({**REMIND, "variables": {}}, "what"),
    ({**TEA, "expires_after": "-PT5S"}, "expires_after: "),
    ({**TEA, "category": "email"}, "category: "),
    ({**TEA, "at": "noonish"}, "at: "),
    ({**TEA, "content": {"text": "x" * 2_000_000}}, "content.text: has more than"),
]


@pytest.mark.parametrize(("value", "said"), WRONG, ids=[said for _, said in WRONG])
async def test_an_invalid_record_is_refused_with_its_reason_and_others_are_accepted(
    services: Services, value: object, said: str
) -> None:
    made = await accepted(services, {**TEA, "id": "before"}, value, {**TEA, "id": "after"})
    [[reason]] = reasons(made)
    assert said in reason
    assert [refused.source for refused in made.refused] == [(TOPIC, 0, 1)]
    assert [await services.reader.get(ACME, name) is not None for name in ("before", "after")] == [True, True]
    assert len(await services.release("notify.email")) == 2


async def test_of_two_records_with_one_id_the_earlier_counts(services: Services) -> None:
    made = await accepted(services, TEA, {**TEA, "content": {"text": "Cake."}}, TEA)
    [[reason]] = reasons(made)
    assert reason.startswith("the id belongs to a notification with other content")
    assert [refused.source for refused in made.refused] == [(TOPIC, 0, 1)]
    status = await services.reader.get(ACME, "tea")
    assert status is not None
    assert status.notification.words is not None
    assert status.notification.words.text == "Tea at nine."


async def test_each_of_several_users_has_an_outcome(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "REASONS_MAX", 1)
    several = {**TEA, "user": None, "users": ["bob", "ada", "eve"]}
    [found] = reasons(await accepted(services, several))
    assert found == [
        "bob: users: unknown user 'bob': create it first, or give an address as 'to'",
        "and 1 more of its users",
    ]
    assert await services.reader.get(ACME, "tea:ada") is not None


async def test_a_batch_needs_few_transactions(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[int] = []
    commit = services.tables.commit

    async def counted(groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        committed.append(len(groups))
        return await commit(groups, now, urgent=urgent)

    monkeypatch.setattr(services.tables, "commit", counted)
    made = await accepted(services, *({**TEA, "id": f"n-{number}"} for number in range(800)))
    assert reasons(made) == []
    assert sum(committed) == 800
    assert len(committed) <= 4


class UnexpectedError(Exception):
    """An error other than those that a store raises."""


async def test_after_a_store_failure_the_next_call_accepts_the_rest(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch(services, TEA, {**TEA, "id": "n/1~2"}, {**TEA, "id": "cake"})
    get = services.tables.get

    async def getting(keys: Sequence[RowKey], now: int) -> list[Row | None]:
        assert all("~" not in key.name for key in keys), "what is no name is not looked up"
        if any(key.name == "cake" for key in keys):
            raise StoreError("the disk is full")
        return await get(keys, now)

    with monkeypatch.context() as patch:
        patch.setattr(services.tables, "get", getting)
        with pytest.raises(StoreError, match="the disk is full"):
            await made.accept(services.acceptance)
    assert [await services.reader.get(ACME, name) is not None for name in ("tea", "cake")] == [True, False]
    await made.accept(services.acceptance)
    assert [await services.reader.get(ACME, name) is not None for name in ("tea", "cake")] == [True, True]
    assert len(reasons(made)) == 1


async def test_an_internal_error_refuses_one_record_only(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    get = services.tables.get

    async def getting(keys: Sequence[RowKey], now: int) -> list[Row | None]:
        if any(key.name == "bad" for key in keys):
            raise UnexpectedError
        return await get(keys, now)

    monkeypatch.setattr(services.tables, "get", getting)
    made = await accepted(services, {**TEA, "id": "bad"}, TEA)
    assert reasons(made) == [[notifications.INTERNAL_ERROR]]
    assert await services.reader.get(ACME, "tea") is not None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
