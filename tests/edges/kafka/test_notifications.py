"""Notifications from Kafka are validated, stored under their ids and accepted once, like those over HTTP."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("confluent_kafka")

from tests.delivery.office import ACME, ADA, SECOND, Office, reminder
from tidings.delivery import errands
from tidings.delivery.retrying import Retrying
from tidings.domain.errors import StoreError
from tidings.domain.fleet import Report
from tidings.domain.schedules.command import Add, Command, Outcome
from tidings.domain.schedules.schedule import unpack
from tidings.edges.kafka import notifications
from tidings.edges.kafka.intake import Batch
from tidings.edges.kafka.request_reader import Reading
from tidings.ports import Document, Key
from tidings.testing import SimulatedClock
from tidings.timeline.memory.store import MemoryStore
from tidings.wires.native import Notify
from tidings.wires.record import Record

WORDS = {"text": "Tea at nine.", "title": "Tea"}
TEA: dict[str, Any] = {"id": "tea", "user": "ada", "channels": ["email"], "content": WORDS}
REMIND: dict[str, Any] = {"id": "remind", "user": "ada", "template": "reminder", "variables": {"what": "nine"}}
TOPIC = f"tidings.notify.{ACME}"


@pytest.fixture
async def office() -> Office:
    store, clock = MemoryStore(), SimulatedClock()
    await store.acquire(clock.elapsed(), 1_000_000, Report())
    office = Office(store, clock)
    await office.users.put(ACME, "ada", ADA)
    await office.templates.put(ACME, "reminder", reminder())
    return office


def batch(office: Office, *values: Any, timestamp_us: int | None = None, partition: int = 0) -> Batch:
    stamp = office.clock.now() if timestamp_us is None else timestamp_us
    raw = [value if isinstance(value, bytes) else msgspec.json.encode(value) for value in values]
    records = [Record(TOPIC, partition, offset, stamp, None, value) for offset, value in enumerate(raw)]
    wire = Notify()
    return Batch(office.engine, lambda _: wire, Reading(records, {}))


def reasons(made: Batch) -> list[list[str]]:
    """The reasons of each rejected record, in order."""
    told = [unpack(command.message).headers for command in made.on_outcomes([]) if isinstance(command, Add)]
    return [[(text or b"").decode() for name, text in headers if name == "tidings-reject-reason"] for headers in told]


async def accepted(office: Office, *values: Any, **more: Any) -> Batch:
    made = batch(office, *values, **more)
    await made.accept(office.notifying)
    return made


async def test_an_accepted_notification_can_be_read_and_its_record_has_only_its_id(office: Office) -> None:
    made = await accepted(office, TEA, REMIND)
    assert (made.commands, reasons(made)) == ([], [])
    for name in ("tea", "remind"):
        status = await office.lookup.get(ACME, name)
        assert status is not None
        assert status.state == "pending"
        assert await office.explaining.explain(ACME, name)
    first, second = await office.release("notify.email")
    assert {errands.read(record, ACME).notification for record in (first, second)} == {"tea", "remind"}
    assert b"nine" not in first.message + second.message


async def test_it_can_be_cancelled_and_erased(office: Office) -> None:
    await accepted(office, {**TEA, "at": "+1h"}, {**TEA, "id": "cake", "at": "+1h"})
    assert (await office.cancelling.cancel(ACME, "tea")).outcome == "cancelled"
    await office.erasing.erase(ACME, "ada")
    assert await office.lookup.get(ACME, "cake") is None
    office.clock.advance(3_600 * SECOND)
    assert await office.release("notify.email") == []


async def test_a_failed_delivery_can_be_sent_again(office: Office) -> None:
    await accepted(office, TEA)
    await office.release("notify.email")
    failed = await office.deliver("tea", state="failed", reason="timeout", provider_id=None, sent=None)
    retrying = Retrying(office.documents, office.engine, office.clock)
    assert (await retrying.retry(ACME, failed.name)).outcome == "retried"


async def test_without_an_id_the_position_of_the_record_is_the_id(office: Office) -> None:
    value = {name: TEA[name] for name in TEA if name != "id"}
    await accepted(office, value, value)
    assert [await office.lookup.get(ACME, f"{TOPIC}.0.{offset}") is not None for offset in range(3)] == [
        True,
        True,
        False,
    ]


async def test_a_record_read_twice_is_accepted_once(office: Office) -> None:
    value = {**{name: TEA[name] for name in TEA if name != "id"}, "dedupe_key": "k"}
    for _ in range(2):
        made = await accepted(office, value, TEA, REMIND)
        assert reasons(made) == []
    assert len(await office.release("notify.email")) == 3
    assert reasons(await accepted(office, value, TEA, REMIND)) == []
    assert len(await office.release("notify.email")) == 3


async def test_an_accepted_notification_is_not_refused_for_a_template_deleted_since(office: Office) -> None:
    await accepted(office, REMIND)
    await office.templates.delete(ACME, "reminder", force=True)
    office.clock.advance(2 * SECOND)
    made = await accepted(office, REMIND, {**REMIND, "variables": {"what": "ten"}}, {**REMIND, "id": "other"})
    assert [refused.source for refused in made.refused] == [(TOPIC, 0, 1), (TOPIC, 0, 2)]
    assert all(told == ["template: unknown template 'reminder': create it first"] for told in reasons(made))
    assert len(await office.release("notify.email")) == 1


async def test_a_duration_counts_from_the_record_however_late_it_is_read(office: Office) -> None:
    sent = office.clock.now()
    office.clock.advance(60 * SECOND)
    await accepted(office, {**TEA, "at": "+5m"}, timestamp_us=sent)
    schedule = await office.engine.find(ACME, "tea")
    assert schedule is not None
    assert schedule.due == sent + 300 * SECOND


async def test_a_relative_day_counts_from_the_record_however_late_it_is_read(office: Office) -> None:
    sent = office.clock.now()
    await accepted(office, {**TEA, "at": "tomorrow 09:00"}, timestamp_us=sent)
    office.clock.advance(86_400 * SECOND)
    await accepted(office, {**TEA, "id": "late", "at": "tomorrow 09:00"}, timestamp_us=sent)
    first, second = [await office.engine.find(ACME, name) for name in ("tea", "late")]
    assert first is not None
    assert second is not None
    assert first.due == second.due


WRONG = [
    (b"", "the record's value: is incomplete"),
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
    office: Office, value: object, said: str
) -> None:
    made = await accepted(office, {**TEA, "id": "before"}, value, {**TEA, "id": "after"})
    [[reason]] = reasons(made)
    assert said in reason
    assert [refused.source for refused in made.refused] == [(TOPIC, 0, 1)]
    assert [await office.lookup.get(ACME, name) is not None for name in ("before", "after")] == [True, True]
    assert len(await office.release("notify.email")) == 2


async def test_of_two_records_with_one_id_the_earlier_counts(office: Office) -> None:
    made = await accepted(office, TEA, {**TEA, "content": {"text": "Cake."}}, TEA)
    [[reason]] = reasons(made)
    assert reason.startswith("the id belongs to a notification with other content")
    assert [refused.source for refused in made.refused] == [(TOPIC, 0, 1)]
    status = await office.lookup.get(ACME, "tea")
    assert status is not None
    assert status.notification.words is not None
    assert status.notification.words.text == "Tea at nine."


async def test_each_of_several_users_has_an_outcome(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "REASONS_MAX", 1)
    several = {**TEA, "user": None, "users": ["bob", "ada", "eve"]}
    [told] = reasons(await accepted(office, several))
    assert told == [
        "bob: users: unknown user 'bob': create it first, or give an address as 'to'",
        "and 1 more of its users",
    ]
    assert await office.lookup.get(ACME, "tea:ada") is not None


async def test_a_batch_needs_few_transactions(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    scheduled: list[int] = []
    change, apply = office.documents.change, office.store.apply

    async def changing(groups: Sequence[Any], now: int) -> list[int]:
        written.append(len(groups))
        return await change(groups, now)

    async def applying(commands: Sequence[Command], *rest: Any) -> list[Outcome]:
        scheduled.append(len(commands))
        return await apply(commands, *rest)

    monkeypatch.setattr(office.documents, "change", changing)
    monkeypatch.setattr(office.store, "apply", applying)
    made = await accepted(office, *({**TEA, "id": f"n-{number}"} for number in range(800)))
    assert reasons(made) == []
    assert (sum(written), sum(scheduled)) == (800, 800)
    assert len(written) + len(scheduled) <= 8


class UnexpectedError(Exception):
    """An error other than those that a store raises."""


async def test_after_a_store_failure_the_next_call_accepts_the_rest(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch(office, TEA, {**TEA, "id": "n/1~2"}, {**TEA, "id": "cake"})
    get = office.documents.get

    async def getting(keys: Sequence[Key], now: int) -> list[Document | None]:
        assert all("~" not in key.name for key in keys), "what is no name is not looked up"
        if any(key.name == "cake" for key in keys):
            raise StoreError("the disk is full")
        return await get(keys, now)

    with monkeypatch.context() as patch:
        patch.setattr(office.documents, "get", getting)
        with pytest.raises(StoreError, match="the disk is full"):
            await made.accept(office.notifying)
    assert [await office.lookup.get(ACME, name) is not None for name in ("tea", "cake")] == [True, False]
    await made.accept(office.notifying)
    assert [await office.lookup.get(ACME, name) is not None for name in ("tea", "cake")] == [True, True]
    assert len(reasons(made)) == 1


async def test_an_internal_error_refuses_one_record_only(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    get = office.documents.get

    async def getting(keys: Sequence[Key], now: int) -> list[Document | None]:
        if any(key.name == "bad" for key in keys):
            raise UnexpectedError
        return await get(keys, now)

    monkeypatch.setattr(office.documents, "get", getting)
    made = await accepted(office, {**TEA, "id": "bad"}, TEA)
    assert reasons(made) == [[notifications.INTERNAL_ERROR]]
    assert await office.lookup.get(ACME, "tea") is not None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
