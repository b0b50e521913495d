"""The native wire: requests in the format of Tidings."""

import pytest

from tests.wires.golden import TIMESTAMP, examples, pairs
from tidings.domain.errors import Invalid
from tidings.domain.schedules.command import Priority
from tidings.domain.schedules.schedule import Timing
from tidings.wires.native import VERBS, Native
from tidings.wires.record import Ask, Record, Refusal

WIRE = Native()
TO = ("tidings-to", "greetings")


def record(*headers: tuple[str, str | None]) -> Record:
    return Record("tidings.requests.acme", 0, 7, TIMESTAMP, b"k", b"v", pairs(*headers))


def asked(*headers: tuple[str, str | None]) -> Ask:
    ask = WIRE.read(record(*headers))
    assert isinstance(ask, Ask), ask
    return ask


def reason(*headers: tuple[str, str | None]) -> str:
    refusal = WIRE.read(record(*headers))
    assert isinstance(refusal, Refusal), refusal
    assert refusal.tenant == "acme"
    [text] = refusal.reasons
    return text


@pytest.mark.parametrize(("sent", "ask"), examples("native"))
def test_requests_in_the_native_format(sent: Record, ask: Ask) -> None:
    assert WIRE.read(sent) == ask


def test_topics() -> None:
    assert WIRE.tenant_of("tidings.requests.acme") == "acme"
    assert WIRE.tenant_of("tidings.requests.") is None
    assert WIRE.tenant_of("tidings.rejections.acme") is None
    assert WIRE.topics("acme") == ("tidings.rejections.acme",)
    assert WIRE.rejection(record(), Refusal("acme", ("why",))).topic == "tidings.rejections.acme"


def test_every_option_arrives() -> None:
    request = asked(
        TO,
        ("tidings-priority", "high"),
        ("tidings-expires-after", "PT1H"),
        ("tidings-late", "skip"),
        ("tidings-late-grace", "90s"),
        ("tidings-late-max", "P1D"),
        ("tidings-jitter", "PT5M"),
        ("tidings-labels", '{"a":"b"}'),
    ).request
    assert request is not None
    assert (request.priority, request.expires_after, request.late) == (Priority.HIGH, "PT1H", "skip")
    assert (request.late_grace, request.late_max, request.jitter) == ("90s", "P1D", "PT5M")
    assert request.labels == {"a": "b"}
    assert request.headers == ()


@pytest.mark.parametrize("word", VERBS)
def test_every_action_except_add_needs_an_id(word: str) -> None:
    assert asked(("tidings-action", word), ("tidings-id", "a"), TO).verb == VERBS[word]
    if word != "ADD":
        missing = f"Missing required header `tidings-id` for {word} action"
        assert reason(("tidings-action", word), TO) == missing


def test_rules_arrive_with_their_other_fields() -> None:
    request = asked(
        TO,
        ("tidings-rrule", "FREQ=DAILY"),
        ("tidings-zone", "Europe/Berlin"),
        ("tidings-start", "2026-11-20T09:00"),
        ("tidings-count", "5"),
        ("tidings-rdates", "2026-12-01T09:00, 2026-12-02T09:00"),
        ("tidings-exdates", "2026-12-25"),
        ("tidings-gap", "skip"),
        ("tidings-overlap", "both"),
        ("tidings-calendar", "off"),
        ("tidings-on-excluded", "next_day"),
    ).request
    assert request is not None
    assert request.since == TIMESTAMP
    assert request.headers == ()
    assert request.timing == Timing(
        rrule="FREQ=DAILY",
        zone="Europe/Berlin",
        start="2026-11-20T09:00",
        count=5,
        rdates=("2026-12-01T09:00", "2026-12-02T09:00"),
        exdates=("2026-12-25",),
        gap="skip",
        overlap="both",
        calendar="off",
        on_excluded="next_day",
    )


def test_a_local_time_arrives_as_written() -> None:
    request = asked(TO, ("tidings-at", "2026-11-20 09:00"), ("tidings-zone", "Europe/Berlin")).request
    assert request is not None
    assert (request.at, request.timing) == ("2026-11-20 09:00", Timing(zone="Europe/Berlin"))


def test_resume_and_replace_have_options_of_their_own() -> None:
    id_ = ("tidings-id", "a")
    assert asked(("tidings-action", "RESUME"), id_, ("tidings-missed", "skip")).missed == "skip"
    assert reason(("tidings-action", "RESUME"), id_, ("tidings-missed", "x")).startswith("tidings-missed: 'x'")
    assert asked(("tidings-action", "REPLACE"), id_, TO, ("tidings-keep-count", "true")).keep_count
    assert not asked(("tidings-action", "REPLACE"), id_, TO).keep_count


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("tidings-prioritty", "high"), "tidings-prioritty: unknown field: did you mean 'tidings-priority'?"),
        (("tidings-priority", "urgent"), "tidings-priority: 'urgent' is not known: use one of high, normal, low"),
        (("tidings-late", "never"), "tidings-late: 'never' is not known: use one of fire_latest, fire_all, skip"),
        (("tidings-action", "EXPLODE"), "tidings-action: 'EXPLODE' is not known"),
        (("tidings-labels", '{"a":1}'), "tidings-labels: write a JSON object of texts"),
        (("tidings-labels", "[" * 100_000), "tidings-labels: write a JSON object of texts"),
        (("tidings-at", "soon"), "tidings-at: 'soon' is not a time"),
        (("tidings-every", "R/x"), "tidings-every: "),
        (("tidings-count", "many"), "tidings-count: 'many' is not a whole number"),
        (("tidings-to", "tidings.requests.acme"), "tidings-to: tidings.requests.acme is reserved for Tidings"),
        (("tidings-to", ""), "Missing required header `tidings-to`"),
    ],
)
def test_invalid_headers_are_refused_by_name(header: tuple[str, str], expected: str) -> None:
    assert reason(TO, header).startswith(expected)


def test_at_and_every_together_are_refused() -> None:
    assert "not both" in reason(TO, ("tidings-at", "+5s"), ("tidings-every", "PT1H"))


def test_a_released_or_rejected_record_can_be_sent_again() -> None:
    released = ("tidings-occurrence", "a/1/1"), ("tidings-due-at", "2026-11-20T09:00:00Z"), ("tidings-attempt", "1")
    sent = record(*released, ("tidings-final", "true"), ("a", "1"), TO)
    again = WIRE.rejection(sent, Refusal("acme", ("why",)))
    ask = WIRE.read(Record("tidings.requests.acme", 0, 8, TIMESTAMP, again.key, again.value, again.headers))
    assert isinstance(ask, Ask)
    assert ask.request is not None
    assert ask.request.headers == (("a", b"1"),)


def test_errors_of_admission_name_the_clients_headers() -> None:
    assert WIRE.refuse("acme", Invalid("late_max", "is bad")).reasons == ("tidings-late-max: is bad",)
    assert WIRE.refuse("acme", Invalid("topic", "is bad")).reasons == ("tidings-to: is bad",)


def test_a_duration_with_an_id_is_compared_as_it_was_written() -> None:
    """With an id, sending it again is a repeat. A replace moves the schedule, and without an id nothing is repeated."""
    ask = asked(("tidings-to", "a"), ("tidings-at", "PT5S"), ("tidings-id", "one"))
    assert ask.request is not None
    assert (ask.request.at, ask.request.since) == ("PT5S", TIMESTAMP)
    ask = asked(("tidings-to", "a"), ("tidings-every", "PT5S"), ("tidings-id", "one"))
    assert ask.request is not None
    assert (ask.request.every, ask.request.since) == ("PT5S", TIMESTAMP)
    replacing = ("tidings-action", "REPLACE")
    ask = asked(("tidings-to", "a"), ("tidings-at", "PT5S"), ("tidings-id", "one"), replacing)
    assert ask.request is not None
    assert (ask.request.at, ask.request.since) == (TIMESTAMP + 5_000_000, None)
    ask = asked(("tidings-to", "a"), ("tidings-at", "PT5S"))
    assert ask.request is not None
    assert (ask.request.at, ask.request.since) == (TIMESTAMP + 5_000_000, None)


def test_a_refusal_by_admission_has_a_reason_for_each_field() -> None:
    invalid = Invalid("cron", "x", (Invalid("on_excluded", "y"), Invalid("topic", "z")))
    reasons = ("tidings-cron: x", "tidings-on-excluded: y", "tidings-to: z")
    assert WIRE.refuse("acme", invalid) == Refusal("acme", reasons)
