"""The wire of the Kaspr Scheduler: the examples of its guide, and its rejection reasons."""

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.wires.golden import TIMESTAMP, examples, micros, pairs
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import DUE_SECONDS, Limits, Timing
from tidings.domain.schedules.when import occurrence
from tidings.engine import Engine, Settings
from tidings.intake.schedule_time import read_when
from tidings.testing import SimulatedClock
from tidings.timeline.memory.store import MemoryStore
from tidings.wires.kaspr import SKIP_GRACE, Kaspr
from tidings.wires.record import Ask, Record, Refusal
from tidings.wires.wire import Destinations

WIRE = Kaspr()
FRIDAY = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z
MINUTE_US = 60_000_000
AT = ("x-scheduler-deliver-at", "2026-05-24T12:30:00Z")
TO = ("x-scheduler-deliver-to", "reminders-topic")
ID = ("x-scheduler-request-id", "a")
NO_AT = "Missing required header `x-scheduler-deliver-at`"
NO_TO = "Missing required header `x-scheduler-deliver-to`"


def action(word: str) -> tuple[str, str]:
    return "x-scheduler-action", word


def record(*headers: tuple[str, str | None]) -> Record:
    return Record("orders-schedule-requests", 0, 7, TIMESTAMP, b"k", b"v", pairs(*headers))


def reasons(*headers: tuple[str, str | None]) -> list[str]:
    refusal = WIRE.read(record(*headers))
    assert isinstance(refusal, Refusal), refusal
    assert refusal.tenant == "orders"
    return list(refusal.reasons)


@pytest.mark.parametrize(("sent", "ask"), examples("kaspr"))
def test_the_examples_of_the_guide_are_understood(sent: Record, ask: Ask) -> None:
    assert WIRE.read(sent) == ask


def test_topics() -> None:
    assert WIRE.tenant_of("orders-app-schedule-requests") == "orders-app"
    others = ("-schedule-requests", "orders-schedule-actions", "schedules", "a" * 230 + "-schedule-requests")
    other_wires = ("assignments.", "executions.", "rejections.", "tidings.requests.")
    for topic in (*others, *(prefix + "t-schedule-requests" for prefix in other_wires)):
        assert WIRE.tenant_of(topic) is None
    assert WIRE.topics("orders") == ("orders-schedule-actions", "orders-schedule-rejections")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([TO], [NO_AT]),
        ([AT], [NO_TO]),
        ([], [NO_AT, NO_TO]),
        ([("x-scheduler-deliver-at", None), ("x-scheduler-deliver-to", "")], [NO_AT, NO_TO]),
        ([action("REPLACE"), ID, TO], [NO_AT]),
        ([action("REPLACE"), ID, AT], [NO_TO]),
        ([action("REPLACE"), AT, TO], ["Missing required header `x-scheduler-request-id` for REPLACE action"]),
        ([action("CANCEL")], ["Missing required header `x-scheduler-request-id` for CANCEL action"]),
        ([action("CRON_ADD")], ["Missing required header `x-scheduler-request-id` for CRON_ADD action"]),
        ([action("CRON_CANCEL")], ["Missing required header `x-scheduler-request-id` for CRON_CANCEL action"]),
        ([action("CRON_PAUSE")], ["Missing required header `x-scheduler-request-id` for CRON_PAUSE action"]),
        ([action("CRON_RESUME")], ["Missing required header `x-scheduler-request-id` for CRON_RESUME action"]),
        (
            [action("CRON_ADD"), ID, TO],
            ["Missing required header `x-scheduler-cron-expr` for CRON_ADD action"],
        ),
        (
            [action("CRON_ADD"), ID],
            [
                "Missing required header `x-scheduler-cron-expr` for CRON_ADD action",
                "Missing required header `x-scheduler-deliver-to` for CRON_ADD action",
            ],
        ),
    ],
)
def test_reasons_are_those_of_the_original(headers: list[tuple[str, str | None]], expected: list[str]) -> None:
    assert reasons(*headers) == expected


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2026-05-24T12:30:00Z", "2026-05-24T12:30:00+00:00"),
        ("2026-05-24T12:30:00.123456+00:00", "2026-05-24T12:30:00.123456+00:00"),
        ("2026-05-24T12:30:00.000Z", "2026-05-24T12:30:00+00:00"),
        ("2026-05-24T14:30:00+02:00", "2026-05-24T12:30:00+00:00"),
        ("2026-05-24T12:30:00.5", "2026-05-24T12:30:00.5+00:00"),
        ("2026-05-24 12:30:00", "2026-05-24T12:30:00+00:00"),
        ("2026-05-24", "2026-05-24T00:00:00+00:00"),
    ],
)
def test_timestamps_as_clients_write_them(written: str, at: str) -> None:
    ask = WIRE.read(record(("x-scheduler-deliver-at", written), TO))
    assert isinstance(ask, Ask)
    assert ask.request is not None
    assert ask.request.at == micros(at)


@pytest.mark.parametrize(
    "written", ["soon", "PT5S", "+5s", "2026-02-30T00:00:00Z", "1779625800", "2026-05-24T25:00:00"]
)
def test_an_invalid_timestamp_is_refused(written: str) -> None:
    [reason] = reasons(("x-scheduler-deliver-at", written), TO)
    assert reason.startswith("Invalid timestamp format for `x-scheduler-deliver-at`: ")
    assert written in reason


def test_unknown_actions_are_refused() -> None:
    [reason] = reasons(action("ADDD"), AT, TO)
    assert reason.startswith("x-scheduler-action: 'ADDD' is not known: use one of ADD, REPLACE, CANCEL, CRON_ADD")


def test_the_last_of_repeated_headers_counts_and_all_are_removed() -> None:
    ask = WIRE.read(record(("x-scheduler-deliver-to", "first"), ("a", "1"), AT, TO, ("A", "2")))
    assert isinstance(ask, Ask)
    assert ask.request is not None
    assert ask.request.topic == "reminders-topic"
    assert ask.request.headers == (("a", b"1"), ("A", b"2"))


def test_a_destination_may_be_forbidden() -> None:
    [reason] = reasons(AT, ("x-scheduler-deliver-to", "orders-schedule-requests"))
    assert reason.startswith("x-scheduler-deliver-to: orders-schedule-requests is a request topic")
    narrow = Kaspr(Destinations({"orders": ["reminders-*"]}))
    assert isinstance(narrow.read(record(AT, TO)), Ask)
    assert isinstance(narrow.read(record(AT, ("x-scheduler-deliver-to", "other"))), Refusal)


def rejected(record: Record) -> Any:
    rejection = WIRE.rejection(record, Refusal("orders", ("one", "two")))
    assert rejection.topic == "orders-schedule-rejections"
    assert rejection.key == record.key
    assert rejection.headers == (
        ("tidings-source-topic", b"orders-schedule-requests"),
        ("tidings-source-partition", b"0"),
        ("tidings-source-offset", b"7"),
        ("tidings-reject-reason", b"one"),
        ("tidings-reject-reason", b"two"),
    )
    assert rejection.value is not None
    return json.loads(rejection.value)


def test_a_rejection_is_a_json_object() -> None:
    headers = (*pairs(TO, ("a", "1"), ("b", None), ("a", None)), ("c", b"\xff"))
    sent = Record("orders-schedule-requests", 0, 7, TIMESTAMP, b"order-123", b'{"type": "send-reminder"}', headers)
    assert rejected(sent) == {
        "key": "order-123",
        "value": {"type": "send-reminder"},
        "headers": {"x-scheduler-deliver-to": "reminders-topic", "a": ["1", None], "b": None, "c": {"base64": "/w=="}},
        "errors": ["one", "two"],
    }


@given(st.none() | st.binary(max_size=20) | st.text(max_size=9).map(str.encode), st.none() | st.binary(max_size=20))
def test_nothing_is_lost_in_a_rejection(value: bytes | None, key: bytes | None) -> None:
    shown = rejected(Record("orders-schedule-requests", 0, 7, TIMESTAMP, key, value))
    for name, content in (("key", key), ("value", value)):
        if f"{name}_base64" in shown:
            assert shown[name] is None
            assert base64.b64decode(shown[f"{name}_base64"]) == content
        elif isinstance(shown[name], list | dict):
            assert shown[name] == json.loads(content or b"")
        else:
            assert shown[name] == (None if content is None else content.decode())


def test_a_value_that_is_not_quite_json_is_text() -> None:
    for value in (b'{"a": 1', b"[" * 100_000, b'{"a": 1} x', b"{a: 1}", b"42", b'"text"'):
        assert rejected(Record("orders-schedule-requests", 0, 7, 0, None, value))["value"] == value.decode()


CRON = ("x-scheduler-cron-expr", "*/5 * * * *")


@pytest.mark.parametrize(("policy", "late"), [(None, "fire_all"), ("replay", "fire_all"), ("SKIP", "skip")])
def test_a_cron_job_starts_at_the_timestamp_of_its_record(policy: str | None, late: str) -> None:
    sent = record(action("CRON_ADD"), ID, TO, CRON, ("x-scheduler-cron-missed-fire-policy", policy), ("a", "1"))
    ask = WIRE.read(sent)
    assert isinstance(ask, Ask)
    assert (ask.verb, ask.id, ask.reuse) == ("add", ID[1], True)
    assert ask.request is not None
    assert (ask.request.topic, ask.request.key, ask.request.value) == (TO[1], sent.key, sent.value)
    assert (ask.request.late, ask.request.since, ask.request.at) == (late, sent.timestamp_us, None)
    assert ask.request.late_grace == (SKIP_GRACE if late == "skip" else None)
    assert ask.request.timing == Timing(cron="*/5 * * * *")
    assert ask.request.headers == (("a", b"1"), ("x-scheduler-cron-fire-timestamp", DUE_SECONDS))


def fires(expression: str, count: int = 3) -> list[str]:
    """The first moments of a cron job that is added on a Friday at 09:00 UTC."""
    sent = Record("orders-schedule-requests", 0, 7, FRIDAY, b"k", b"v", pairs(action("CRON_ADD"), ID, TO))
    ask = WIRE.read(replace(sent, headers=(*sent.headers, ("x-scheduler-cron-expr", expression.encode()))))
    assert isinstance(ask, Ask), ask
    assert ask.request is not None
    when = read_when(ask.request, FRIDAY, Limits())
    moments = (occurrence(when, number) or 0 for number in range(1, count + 2))
    return [format_instant(moment)[:19] for moment in moments if moment > FRIDAY][:count]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * * 30", ["2026-11-20T09:00:30", "2026-11-20T09:01:30", "2026-11-20T09:02:30"]),
        ("0 * * * * *", ["2026-11-20T09:00:01", "2026-11-20T09:00:02", "2026-11-20T09:00:03"]),
        ("*/15 * * * * */10", ["2026-11-20T09:00:10", "2026-11-20T09:00:20", "2026-11-20T09:00:30"]),
        ("30 9 */10 * FRI 20", ["2026-11-20T09:30:20", "2026-11-21T09:30:20", "2026-11-27T09:30:20"]),
        ("0 0 */2 * 1", ["2026-11-21T00:00:00", "2026-11-23T00:00:00", "2026-11-25T00:00:00"]),
        ("0 0 */1 * MON", ["2026-11-21T00:00:00", "2026-11-22T00:00:00", "2026-11-23T00:00:00"]),
        ("0 9 * * L5", ["2026-11-27T09:00:00", "2026-12-25T09:00:00", "2027-01-29T09:00:00"]),
        ("0 9 L * *", ["2026-11-30T09:00:00", "2026-12-31T09:00:00", "2027-01-31T09:00:00"]),
        ("0 9 * * MON#2", ["2026-12-14T09:00:00", "2027-01-11T09:00:00", "2027-02-08T09:00:00"]),
        ("@daily", ["2026-11-21T00:00:00", "2026-11-22T00:00:00", "2026-11-23T00:00:00"]),
    ],
)
def test_cron_expressions_mean_what_they_mean_to_croniter(expression: str, expected: list[str]) -> None:
    """The expected moments are those that croniter 6.2.4 computes."""
    assert fires(expression) == expected


async def released_after(outage_s: int, policy: str) -> list[str]:
    """The due times of the released occurrences of a job at :00 and :30, after a pause without releases."""
    clock = SimulatedClock(FRIDAY)
    store = MemoryStore()
    engine = Engine(store, clock, Settings())
    headers = (action("CRON_ADD"), ID, TO, ("x-scheduler-cron-expr", "* * * * * 0,30"))
    sent = record(*headers, ("x-scheduler-cron-missed-fire-policy", policy))
    ask = WIRE.read(replace(sent, timestamp_us=FRIDAY + 1))
    assert isinstance(ask, Ask), ask
    assert ask.request is not None
    await store.acquire(clock.elapsed(), MINUTE_US)
    await store.apply([engine.command("orders", ask.request, clock.now())], clock.now())
    clock.advance(timedelta(seconds=outage_s))
    for lane in store.lanes():
        while (await lane.release(clock.now(), 100)).more:
            pass
    topic = await store.topic("orders", TO[1])
    partitions = range(0 if topic is None else len(topic.next))
    found = [one for number in partitions for one in await store.read("orders", TO[1], number, 0, 100)]
    return sorted(format_instant(one.due)[11:19] for one in found)


@pytest.mark.parametrize(
    ("outage_s", "due"),
    [
        (30, ["09:00:30"]),  # on time
        (35, ["09:00:30"]),  # as late as when another node takes over
        (36, []),
        (89, []),  # two were missed, the latest 29 s ago
        (90, ["09:01:30"]),
    ],
)
async def test_skip_fires_nothing_that_was_missed(outage_s: int, due: list[str]) -> None:
    assert await released_after(outage_s, "skip") == due


async def test_replay_fires_all_that_was_missed() -> None:
    assert await released_after(95, "replay") == ["09:00:30", "09:01:00", "09:01:30"]


@pytest.mark.parametrize(
    ("word", "verb"), [("CRON_CANCEL", "cancel"), ("CRON_PAUSE", "pause"), ("cron_resume", "resume")]
)
def test_a_cron_job_is_changed_by_its_id(word: str, verb: str) -> None:
    ask = WIRE.read(record(action(word), ID))
    assert isinstance(ask, Ask)
    assert (ask.verb, ask.id, ask.request) == (verb, ID[1], None)


def test_invalid_cron_jobs_are_refused() -> None:
    [reason] = reasons(action("CRON_ADD"), ID, TO, CRON, ("x-scheduler-cron-missed-fire-policy", "later"))
    assert reason.startswith("x-scheduler-cron-missed-fire-policy: 'later' is not known: use one of replay, skip")
    [reason] = reasons(action("CRON_ADD"), ID, TO, ("x-scheduler-cron-expr", "0 * * * * * 2026"))
    assert reason.startswith("x-scheduler-cron-expr: has 7 fields: write five such as")
    [reason] = reasons(action("CRON_ADD"), ID, TO, ("x-scheduler-cron-expr", "* * * *"))
    assert reason.startswith("x-scheduler-cron-expr: has 4 fields: write five such as")
    assert reason.endswith("or six with seconds last")
    [reason] = reasons(action("CRON_ADD"), ID, TO, ("x-scheduler-cron-expr", "TZ=Europe/Berlin 0 9 * * *"))
    assert "'TZ=Europe/Berlin 0 9 * * *' names a zone, and cron jobs run in UTC: write five such as" in reason
