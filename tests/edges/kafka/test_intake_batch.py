"""A batch of records: an invalid one is rejected with its reason, and all others are accepted."""

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka")

from tidings.domain.fleet import Report
from tidings.domain.schedules.command import Add, Outcome
from tidings.domain.schedules.schedule import unpack
from tidings.domain.schedules.when import DAY_US
from tidings.edges.kafka.intake import Batch
from tidings.edges.kafka.request_reader import Reading
from tidings.engine import Engine, Settings
from tidings.testing import SimulatedClock
from tidings.timeline.memory.store import MemoryStore
from tidings.wires.intervals import Intervals
from tidings.wires.kaspr import Kaspr
from tidings.wires.native import Native
from tidings.wires.record import Ask, Record, Refusal, Rejection

SOON = (("intervals-schedule", b"PT1S"),)


class Faulty(Intervals):
    """A wire that fails for one value."""

    def ask(self, tenant: str, record: Record) -> Ask:
        if record.value == b"bad":
            raise RecursionError("a fault of ours")
        return super().ask(tenant, record)

    def rejection(self, record: Record, refusal: Refusal) -> Rejection:
        if record.key == b"untold":
            raise KeyError("another fault of ours")
        return super().rejection(record, refusal)


def records(*contents: tuple[bytes, bytes]) -> Iterator[Record]:
    for offset, (key, value) in enumerate(contents):
        yield Record("assignments.t", 0, offset, 1_000_000, key, value, SOON)


def batch(*found: Record) -> Batch:
    engine = Engine(MemoryStore(), SimulatedClock(), Settings(bus="kafka"))
    wire = Faulty()
    return Batch(engine, lambda _: wire, Reading(list(found), {}))


def test_an_error_in_a_wire_refuses_one_record_only(caplog: pytest.LogCaptureFixture) -> None:
    made = batch(*records((b"k", b"good"), (b"k", b"bad"), (b"untold", b"bad"), (b"k", b"good")))
    assert [command.id for command in made.commands if isinstance(command, Add)] == [
        "assignments.t/0/0",
        "assignments.t/0/3",
    ]
    assert made.ends == {("assignments.t", 0): 4}
    assert [refused.source for refused in made.refused] == [("assignments.t", 0, 1), ("assignments.t", 0, 2)]
    rejections = [
        unpack(command.message)
        for command in made.on_outcomes([Outcome("", "scheduled")] * 2)
        if isinstance(command, Add)
    ]
    assert [(message.key, message.value) for message in rejections] == [(b"k", b"bad"), (b"untold", b"bad")]
    first, second = (dict(message.headers) for message in rejections)
    assert first["intervals-schedule"] == b"PT1S"
    assert "intervals-schedule" not in second
    for headers in (first, second):
        assert (headers["tidings-reject-reason"] or b"").startswith(b"cannot be read")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert all(record.exc_info for record in caplog.records)


def test_unreadable_headers_are_reported() -> None:
    unreadable = Record("assignments.t", 0, 0, 1_000_000, b"k", b"v", unreadable="has no headers that can be read")
    made = batch(unreadable)
    assert list(made.commands) == []
    assert [refused.reasons for refused in made.refused] == [("has no headers that can be read",)]


def test_a_cron_job_that_is_read_late_is_accepted() -> None:
    """Eight days of minutes are more than the catch-up limit: the latest are released, and the job continues."""
    headers = {"action": "CRON_ADD", "cron-expr": "* * * * *", "deliver-to": "out", "request-id": "job"}
    named = tuple((f"x-scheduler-{name}", text.encode()) for name, text in headers.items())
    clock, wire = SimulatedClock(), Kaspr()
    sent = Record("app-schedule-requests", 0, 0, clock.now() - 8 * DAY_US, None, b"v", named)
    engine = Engine(MemoryStore(), clock, Settings(bus="kafka"))
    made = Batch(engine, lambda _: wire, Reading([sent], {}))
    assert [refused.reasons for refused in made.refused] == []
    assert [command.id for command in made.commands if isinstance(command, Add)] == ["job"]


async def test_a_rejection_by_the_store_names_the_header_of_the_wire() -> None:
    headers = {"to": "out", "rrule": "FREQ=DAILY", "calendar": "off"}
    named = tuple((f"tidings-{name}", text.encode()) for name, text in headers.items())
    clock, wire, store = SimulatedClock(), Native(), MemoryStore()
    sent = Record("tidings.requests.default", 0, 0, clock.now(), None, b"v", named)
    engine = Engine(store, clock, Settings(bus="kafka"))
    made = Batch(engine, lambda _: wire, Reading([sent], {}))
    await store.acquire(clock.elapsed(), 1_000_000, Report())
    [rejection] = made.on_outcomes(await store.apply(made.commands, clock.now()))
    assert isinstance(rejection, Add)
    reason = dict(unpack(rejection.message).headers)["tidings-reject-reason"]
    assert (reason or b"").startswith(b"tidings-calendar: there is no calendar 'off'")
