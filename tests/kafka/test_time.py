"""Rules, cron expressions and calendars on a real broker: each record arrives once, in time and numbered."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from confluent_kafka import Message

from tests.kafka.site import READ_S_MAX, Header, Site, headers_of, opened
from tests.servers.kafka import Broker
from tidings.bus.kafka.producers import OURS
from tidings.clock import SystemClock
from tidings.domain.schedules.iso8601 import parse_instant
from tidings.testing import eventually

pytestmark = pytest.mark.slow

SECOND_US = 1_000_000
MINUTE_S = 60
AHEAD_S = 12
FIRE = "x-scheduler-cron-fire-timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC).date()


class Shifted(SystemClock):
    """The system clock, shifted so that a full minute is a few seconds ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.minute_s = int(time.time()) // MINUTE_S * MINUTE_S
        self._shift_us = (self.minute_s - AHEAD_S) * SECOND_US - super().now()

    def now(self) -> int:
        return super().now() + self._shift_us

    def shown_us(self, message: Message) -> int:
        """The time of this clock when Kafka received the record, in milliseconds."""
        return message.timestamp()[1] * 1_000 + 1_000 + self._shift_us


@pytest.fixture
def clock() -> Shifted:
    return Shifted()


@pytest.fixture
async def shifted(broker: Broker, tmp_path: Path, clock: Shifted) -> AsyncIterator[Site]:
    async with opened(broker, tmp_path, clock=clock) as made:
        yield made


def headers_by_name(message: Message) -> dict[str, str]:
    return {name: bytes(value or b"").decode() for name, value in headers_of(message) if not isinstance(value, str)}


def marks(messages: list[Message]) -> list[str]:
    """The occurrence of each record in order, and whether it is the last."""
    return [
        headers_by_name(message)["tidings-occurrence"]
        + (" final" if headers_by_name(message).get("tidings-final") == "true" else "")
        for message in messages
    ]


async def the_end_of(site: Site, topic: str, name: str) -> list[Message]:
    """The records of a topic, once the last one of this schedule has arrived."""
    found = await site._found(topic, 1)
    return found if any(mark.startswith(name) and mark.endswith("final") for mark in marks(found)) else []


def due_us(message: Message) -> int:
    return parse_instant(headers_by_name(message)["tidings-due-at"])


def on_time(messages: list[Message]) -> bool:
    """No record was on Kafka before it was due, by Kafka's timestamps."""
    return all(message.timestamp()[1] * 1_000 + 1_000 > due_us(message) for message in messages)


async def test_kaspr_cron_jobs(shifted: Site, clock: Shifted) -> None:
    """Added, paused, resumed and cancelled; missed occurrences are replayed or skipped by the policy of each job."""
    requests, minute_s = f"{shifted.name}-schedule-requests", clock.minute_s
    long_ago_s = minute_s - 2 * MINUTE_S - 30

    def ask(action: str, name: str, *more: Header, sent_s: int = minute_s - AHEAD_S) -> None:
        headers: list[Header] = [("x-scheduler-action", action), ("x-scheduler-request-id", name), *more]
        shifted.send(requests, b"tick", b"key", headers, sent_s * 1_000)

    def add(name: str, *more: Header, sent_s: int = minute_s - AHEAD_S) -> None:
        out: tuple[Header, ...] = (("x-scheduler-deliver-to", f"{shifted.name}-{name}"), ("trace", b"t"))
        ask("CRON_ADD", name, ("x-scheduler-cron-expr", "* * * * *"), *out, *more, sent_s=sent_s)

    add("replayed", sent_s=long_ago_s)
    add("skipped", ("x-scheduler-cron-missed-fire-policy", "skip"), sent_s=long_ago_s)
    add("paused")
    ask("CRON_PAUSE", "paused")
    add("cancelled")
    ask("CRON_CANCEL", "cancelled")
    replayed = await shifted.read(f"{shifted.name}-replayed", 3)
    assert clock.now() >= minute_s * SECOND_US
    fires = [minute_s - 2 * MINUTE_S, minute_s - MINUTE_S, minute_s]
    assert sorted(int(headers_by_name(message)[FIRE]) for message in replayed) == fires
    assert marks(replayed) == [f"replayed/1/{number}" for number in (1, 2, 3)]
    assert clock.shown_us(max(replayed, key=due_us)) > minute_s * SECOND_US
    for message in replayed:
        assert (message.key(), message.value(), headers_by_name(message)["trace"]) == (b"key", b"tick", "t")
        assert [name for name, _ in headers_of(message) if name.startswith("x-scheduler")] == [FIRE]
    skipped = await shifted.read(f"{shifted.name}-skipped", 1)
    assert minute_s - 2 * MINUTE_S not in {int(headers_by_name(message)[FIRE]) for message in skipped}
    for name in ("paused", "cancelled"):
        assert await shifted._found(f"{shifted.name}-{name}", 1) == []
    ask("CRON_RESUME", "paused")
    (resumed,) = await shifted.read(f"{shifted.name}-paused", 1)
    assert headers_by_name(resumed)[FIRE] == str(minute_s)
    assert await shifted._found(f"{shifted.name}-cancelled", 1) == []
    assert len(await shifted._found(f"{shifted.name}-replayed", 1)) == 3


async def test_a_cron_job_of_kaspr_with_seconds(site: Site) -> None:
    """They are the last field, as croniter has them."""
    headers: list[Header] = [
        ("x-scheduler-action", b"CRON_ADD"),
        ("x-scheduler-request-id", b"seconds"),
        ("x-scheduler-cron-expr", b"* * * * * */2"),
        ("x-scheduler-deliver-to", f"{site.name}-seconds"),
    ]
    site.send(f"{site.name}-schedule-requests", b"tick", b"key", headers)
    records = await site.read(f"{site.name}-seconds", 2)
    fires = [int(headers_by_name(message)[FIRE]) for message in records]
    assert all(second % 2 == 0 for second in fires)
    assert {after - before for before, after in pairwise(fires)} == {2}
    assert on_time(records)


async def test_a_rule_and_a_cron_expression_in_the_header_of_intervals(site: Site) -> None:
    await site.joined()
    requests, out = f"assignments.{site.name}", f"executions.{site.name}"
    rule: list[Header] = [("intervals-schedule", b"FREQ=SECONDLY;INTERVAL=4;COUNT=3"), ("intervals-id", b"rule")]
    cron: list[Header] = [("intervals-schedule", b"* * * * * *"), ("intervals-id", b"cron")]
    site.send(requests, b"by rule", None, rule)
    site.send(requests, b"by cron", None, [*cron, ("intervals-zone", b"Asia/Kolkata")])
    await site.read(out, 3)
    site.send(requests, None, None, [("intervals-id", b"cron"), ("intervals-action", b"CANCEL")])
    records = await eventually(lambda: the_end_of(site, out, "rule"), timeout_s=READ_S_MAX)
    assert on_time(records)
    by_rule = [message for message in records if message.value() == b"by rule"]
    assert marks(by_rule) == ["rule/1/1", "rule/1/2", "rule/1/3 final"]
    assert [later - earlier for earlier, later in pairwise(map(due_us, by_rule))] == [4 * SECOND_US] * 2
    assert headers_of(by_rule[0])[:2] == rule
    by_cron = [message for message in records if message.value() == b"by cron"]
    assert marks(by_cron) == [f"cron/1/{number}" for number in range(1, len(by_cron) + 1)]
    assert {due_us(message) % SECOND_US for message in by_cron} == {0}


async def test_rules_expressions_and_calendars_in_our_own_headers(site: Site) -> None:
    """A rule in a zone; an expression with its end beside it; a rule of days one of which a calendar leaves out."""
    await site.joined()
    requests, zone = f"tidings.requests.{site.name}", ZoneInfo("Asia/Kolkata")
    first = datetime.now(zone).replace(microsecond=0) + timedelta(seconds=4) - timedelta(days=3)
    off = (first.date() + timedelta(days=1) - EPOCH).days
    await site.engine.rule_changes.put_calendar(site.name, "off", (off,))
    days = [first + timedelta(days=more) for more in (0, 2, 3)]

    def ask(name: str, **headers: str) -> None:
        headers_by_name = {f"tidings-{key.replace('_', '-')}": text for key, text in headers.items()}
        site.send(requests, name.encode(), b"k", [("tidings-id", name), ("mine", b"x"), *headers_by_name.items()])

    out = f"{site.name}-native"
    ask("rule", to=out, rrule="FREQ=SECONDLY;COUNT=2", zone="Europe/Berlin", late="fire_all")
    ask("cron", to=out, cron="*/2 * * * * *", zone="America/New_York", count="2", late="fire_all")
    daily = {"start": f"{first:%Y-%m-%dT%H:%M:%S}", "zone": zone.key, "calendar": "off", "late": "fire_all"}
    ask("days", to=out, rrule="FREQ=DAILY;COUNT=4", **daily)
    records = await site.read(out, 7)
    assert on_time(records)
    by_name = {name: [m for m in records if m.value() == name.encode()] for name in ("rule", "cron", "days")}
    assert marks(by_name["rule"]) == ["rule/1/1", "rule/1/2 final"]
    assert marks(by_name["cron"]) == ["cron/1/1", "cron/1/2 final"]
    assert marks(by_name["days"]) == ["days/1/1", "days/1/2", "days/1/3 final"]
    assert [due_us(message) for message in by_name["days"]] == [int(day.timestamp()) * SECOND_US for day in days]
    for message in records:
        assert [name for name, _ in headers_of(message) if name not in OURS] == ["mine"]
    assert len(await site.read(out, 7)) == 7


async def test_an_invalid_rule_is_refused_with_its_reason_and_its_own_id(site: Site) -> None:
    """A refused record can be corrected and sent again: it keeps its headers and its id."""
    requests, rejections = f"tidings.requests.{site.name}", f"tidings.rejections.{site.name}"
    wrong: list[Header] = [("tidings-id", b"mine"), ("tidings-to", b"out"), ("tidings-cron", b"61 * * * *")]
    site.send(requests, b"x", b"k", wrong)
    site.send(requests, b"y", b"k", [("tidings-to", b"out"), ("tidings-rrule", b"FREQ=DAILY;BYHOUR=25")])
    site.send(f"assignments.{site.name}", b"z", None, [("intervals-schedule", b"FREQ=WEEKLY;BYDAY=XX")])
    cron: list[Header] = [("x-scheduler-action", b"CRON_ADD"), ("x-scheduler-request-id", b"job")]
    cron += [("x-scheduler-deliver-to", b"out"), ("x-scheduler-cron-expr", b"0 0 * * * * 2026")]
    site.send(f"{site.name}-schedule-requests", b"w", None, cron)
    named, nameless = await site.read(rejections, 2)
    assert headers_of(named)[:3] == wrong
    assert [value for name, value in headers_of(named) if name == "tidings-id"] == [b"mine"]
    assert headers_by_name(named)["tidings-reject-reason"].startswith(
        "tidings-cron: minute: '61' is not understood: use 0 to 59"
    )
    assert "tidings-id" not in headers_by_name(nameless)
    assert "BYHOUR: '25' must be a whole number from 0 to 23" in headers_by_name(nameless)["tidings-reject-reason"]
    (intervals,) = await site.read(f"rejections.{site.name}", 1)
    assert headers_by_name(intervals)["tidings-reject-reason"].startswith(
        "intervals-schedule: BYDAY: 'XX' must be one of MO, TU"
    )
    (kaspr,) = await site.read(f"{site.name}-schedule-rejections", 1)
    assert b"x-scheduler-cron-expr: has 7 fields" in (kaspr.value() or b"")
    site.send(requests, named.value(), named.key(), [*headers_of(named), ("tidings-cron", b"* * * * *")])
    mended = await eventually(lambda: site.engine.find(site.name, "mine"), timeout_s=READ_S_MAX)
    assert mended is not None
    assert mended.state == "pending"
