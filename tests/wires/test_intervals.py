"""The wire of Intervals: the samples of its page, and cases that the page does not define."""

import pytest

from tests.wires.golden import TIMESTAMP, examples, micros, pairs
from tidings.domain.errors import Invalid
from tidings.domain.schedules.schedule import Timing
from tidings.wires.intervals import Intervals
from tidings.wires.record import Ask, Record, Refusal

WIRE = Intervals()
MINUTE_US = 60_000_000


def record(*headers: tuple[str, str | None], timestamp: int = TIMESTAMP) -> Record:
    return Record("assignments.t1", 0, 7, timestamp, b"k", b"v", pairs(*headers))


def asked(*headers: tuple[str, str | None], timestamp: int = TIMESTAMP) -> Ask:
    ask = WIRE.read(record(*headers, timestamp=timestamp))
    assert isinstance(ask, Ask), ask
    return ask


def reason(*headers: tuple[str, str | None], timestamp: int = TIMESTAMP) -> str:
    refusal = WIRE.read(record(*headers, timestamp=timestamp))
    assert isinstance(refusal, Refusal), refusal
    assert refusal.tenant == "t1"
    [text] = refusal.reasons
    return text


@pytest.mark.parametrize(("sent", "ask"), examples("intervals"))
def test_the_examples_of_the_page_are_understood(sent: Record, ask: Ask) -> None:
    assert WIRE.read(sent) == ask


def test_topics() -> None:
    assert WIRE.tenant_of("assignments.t30600") == "t30600"
    assert WIRE.tenant_of("assignments.a.b-c_d") == "a.b-c_d"
    for other in ("assignments", "assignments.", "executions.t1", "my.assignments.t1", "assignments." + "t" * 230):
        assert WIRE.tenant_of(other) is None
    assert WIRE.topics("t1") == ("executions.t1", "rejections.t1")
    assert WIRE.rejections("t1") == "rejections.t1"


def test_key_value_and_headers_are_passed_on_unchanged() -> None:
    headers = (("a", b"\xff"), ("a", None), ("Intervals-Schedule", b"2026-07-21T19:20:30Z"), ("a", b""), ("b", b"1"))
    for key, value in ((None, None), (b"", b""), (b"\x00\xff", b"\xfe\x00")):
        ask = WIRE.read(Record("assignments.t1", 0, 7, TIMESTAMP, key, value, headers))
        assert isinstance(ask, Ask)
        assert ask.request is not None
        assert (ask.request.key, ask.request.value, ask.request.headers) == (key, value, headers)


def test_a_duration_counts_from_the_timestamp() -> None:
    request = asked(("intervals-schedule", "PT10M")).request
    assert request is not None
    assert request.at == TIMESTAMP + 10 * MINUTE_US
    repeating = asked(("intervals-schedule", "R3/PT10M")).request
    assert repeating is not None
    assert repeating.every == "R3/2026-07-14T03:43:20.000000Z/PT10M"
    for none in (-1_000, 2**62):
        assert "timestamp" in reason(("intervals-schedule", "PT10M"), timestamp=none)
    assert "9999" in reason(("intervals-schedule", "P9000Y"))


@pytest.mark.parametrize(
    "every",
    [
        "R/2026-07-16T19:20:30.45Z/PT7H",
        "R5/2026-07-16T19:20:30.45Z/PT7H",
        "R5/2026-07-16T19:20:30.45Z/2026-07-17T19:20:30.45Z",
        "R5/PT7H/2026-07-17T19:20:30.45Z",
    ],
)
def test_iso_8601_intervals_are_accepted(every: str) -> None:
    request = asked(("intervals-schedule", every)).request
    assert request is not None
    assert (request.at, request.every) == (None, every)


@pytest.mark.parametrize(
    "schedule", ["", "tomorrow", "2026-07-21T19:20:30", "R", "R/PT0S", "Rx/PT1H", "R/a/b/c/d", "P"]
)
def test_other_schedules_are_refused(schedule: str) -> None:
    assert "intervals-schedule" in reason(("intervals-schedule", schedule))


def test_the_schedule_header_is_required() -> None:
    missing = "Missing required header `intervals-schedule`"
    assert reason() == reason(("intervals-schedule", None)) == reason(("other", "x")) == missing
    ill = Record("assignments.t1", 0, 7, TIMESTAMP, headers=(("intervals-schedule", b"\xff\xfe"),))
    assert WIRE.read(ill) == Refusal("t1", ("intervals-schedule: is not UTF-8: send it as text",))


def test_the_topic_names_the_tenant() -> None:
    at = ("intervals-schedule", "2026-07-21T19:20:30Z")
    assert asked(at, ("intervals-tenant-id", "t1")).tenant == asked(at, ("intervals-tenant-id", None)).tenant == "t1"
    assert "'t2' is not the tenant of the topic, t1" in reason(at, ("intervals-tenant-id", "t2"))


def test_the_last_of_repeated_headers_counts() -> None:
    request = asked(("intervals-schedule", "nonsense"), ("INTERVALS-SCHEDULE", "2026-07-21T19:20:30Z")).request
    assert request is not None
    assert request.at == micros("2026-07-21T19:20:30+00:00")


@pytest.mark.parametrize("action", ["CANCEL", "PAUSE", "RESUME", "cancel"])
def test_changes_need_only_the_id(action: str) -> None:
    ask = asked(("intervals-action", action), ("intervals-id", "order 42"))
    assert (ask.verb, ask.id, ask.request, ask.reuse) == (action.lower(), "order 42", None, False)
    expected = f"Missing required header `intervals-id` for {action.upper()} action"
    assert reason(("intervals-action", action)) == expected


def test_a_named_schedule_is_replaced() -> None:
    at = ("intervals-schedule", "2026-07-21T19:20:30Z")
    ask = asked(("intervals-id", "a"), ("intervals-action", "REPLACE"), at)
    assert ask.request is not None
    assert (ask.verb, ask.id, ask.request.id, ask.reuse) == ("replace", "a", "a", False)
    assert "for REPLACE action" in reason(("intervals-action", "REPLACE"), at)
    assert "use one of ADD, REPLACE" in reason(("intervals-action", "EXPLODE"), at)
    assert "999 bytes" in reason(("intervals-action", "CANCEL"), ("intervals-id", "i" * 1000))


def test_the_position_of_a_record_is_its_id() -> None:
    at = ("intervals-schedule", "2026-07-21T19:20:30Z")
    assert asked(at).id == "assignments.t1/0/7"
    long = WIRE.read(Record("assignments." + "t" * 200, 2**31 - 1, 2**63 - 1, 0, headers=pairs(at)))
    assert isinstance(long, Ask)
    assert len(long.id) <= 200
    assert long.id.endswith("/2147483647/9223372036854775807")


def test_a_rejection_is_the_record_with_its_position_and_the_reasons() -> None:
    sent = record(("intervals-schedule", "tomorrow"), ("a", None))
    rejection = WIRE.rejection(sent, Refusal("t1", ("one", "two")))
    assert rejection == (
        "rejections.t1",
        b"k",
        b"v",
        (
            ("intervals-schedule", b"tomorrow"),
            ("a", None),
            ("tidings-source-topic", b"assignments.t1"),
            ("tidings-source-partition", b"0"),
            ("tidings-source-offset", b"7"),
            ("tidings-reject-reason", b"one"),
            ("tidings-reject-reason", b"two"),
        ),
    )


def test_errors_of_admission_name_the_clients_headers() -> None:
    refusal = WIRE.refuse("t1", Invalid("every", "the period is shorter than 1 s, the shortest that is accepted"))
    assert refusal == Refusal(
        "t1", ("intervals-schedule: the period is shorter than 1 s, the shortest that is accepted",)
    )
    assert WIRE.refuse("t1", Invalid("value", "is long")).reasons == ("value: is long",)


def test_a_topic_of_another_wire_is_refused() -> None:
    assert isinstance(WIRE.read(Record("elsewhere", 0, 0, 0)), Refusal)


@pytest.mark.parametrize(
    ("written", "timing"),
    [
        ("FREQ=DAILY;BYHOUR=9", Timing(rrule="FREQ=DAILY;BYHOUR=9")),
        ("RRULE:FREQ=DAILY", Timing(rrule="RRULE:FREQ=DAILY")),
        ("*/5 9-17 * * MON-FRI", Timing(cron="*/5 9-17 * * MON-FRI")),
        ("@hourly", Timing(cron="@hourly")),
    ],
)
def test_rules_and_cron_expressions_count_from_the_timestamp(written: str, timing: Timing) -> None:
    request = asked(("intervals-schedule", written)).request
    assert request is not None
    assert (request.at, request.every, request.since, request.timing) == (None, None, TIMESTAMP, timing)
    zoned = asked(("intervals-schedule", written), ("intervals-zone", "Europe/Berlin")).request
    assert zoned is not None
    assert zoned.timing == Timing(rrule=timing.rrule, cron=timing.cron, zone="Europe/Berlin")
    assert ("intervals-zone", b"Europe/Berlin") in zoned.headers


def test_a_local_time_needs_a_zone_header() -> None:
    request = asked(("intervals-schedule", "2026-11-20T09:00:00"), ("intervals-zone", "Europe/Berlin")).request
    assert request is not None
    assert (request.at, request.timing) == ("2026-11-20T09:00:00", Timing(zone="Europe/Berlin"))


@pytest.mark.parametrize("text", ["next tuesday", "every day at nine o'clock", "10 minutes", "", "FREQ"])
def test_an_invalid_time_is_refused_with_every_valid_form(text: str) -> None:
    refused = reason(("intervals-schedule", text or "?"))
    assert refused.startswith(
        f"intervals-schedule: {text or '?'!r} is not a time: write an instant such as 2026-11-20T09"
    )
    for form in ("PT10M", "R5/2026-11-20T09:00:00Z/PT1H", "FREQ=DAILY;BYHOUR=9", '"0 9 * * MON-FRI"'):
        assert form in refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T09:00:00", "has no offset"),
        ("2026-13-20T09:00:00Z", "'2026-13-20T09:00:00Z'"),
        ("P1X", "'P1X'"),
    ],
)
def test_a_nearly_valid_time_is_refused_with_what_is_missing(text: str, expected: str) -> None:
    assert expected in reason(("intervals-schedule", text))
    assert "FREQ" not in reason(("intervals-schedule", text))
