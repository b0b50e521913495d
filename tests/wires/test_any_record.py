"""Property tests: every wire reads or refuses any record, and admission accepts or refuses what it reads."""

from random import Random

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from tests.wires.golden import TIMESTAMP
from tidings.domain.errors import Invalid
from tidings.domain.schedules.schedule import Limits
from tidings.intake.admission import Admission
from tidings.wires import etf1, intervals, kaspr, native
from tidings.wires.record import Ask, Record, Refusal, derived_id
from tidings.wires.wire import Wire, is_topic

WIRES: dict[str, Wire] = {
    wire.name: wire for wire in (intervals.Intervals(), kaspr.Kaspr(), etf1.Etf1(), native.Native())
}
TOPICS = {
    "intervals": "assignments.t1",
    "kaspr": "t1-schedule-requests",
    "etf1": "schedules",
    "native": "tidings.requests.t1",
}
INSTANTS = [
    "2026-07-21T19:20:30.45Z",
    "2026-07-21T19:20:30+02:00",
    "9999-12-31T23:59:59.9999999Z",
    "1970-01-01T00:00:00Z",
]
DURATIONS = ["PT10M", "P1M", "+5s", "P9999Y", "PT0.000001S"]
INTERVALS = [
    *("R/2026-07-16T19:20:30.45Z/PT7H/2026-07-17T20:20:30.45Z", "R5/2026-01-31T00:00:00Z/P1M", "R5/PT10M", "R/P1M"),
    *("R5/PT7H/2026-07-17T20:20:30.45Z", "R999999999999999/P9999Y/9999-12-31T00:00:00Z", "R2/P1M/2026-01-31T00:00:00Z"),
]
RULES = ["FREQ=DAILY", "FREQ=SECONDLY;COUNT=3", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=", "RRULE:FREQ=WEEKLY"]
CRONS = ["* * * * *", "0 0 30 2 *", "@hourly", "* * * * * *", "a b c d e"]
ZONES = ["Europe/Berlin", "UTC", "America", "nowhere", "Europe/Berlin@x"]
IDS = ["a", "order 42", "i" * 300, "\x00", "tid_" + "1" * 33]
DESTINATIONS = ["greetings", "executions.t1", "executions.t2", "tidings.requests.t1"]

# For each wire the headers that it knows, with values that it may take; the first ones have to be there.
REQUIRED = {
    "intervals": {intervals.SCHEDULE: [*INSTANTS, *DURATIONS, *INTERVALS, *RULES, *CRONS]},
    "kaspr": {kaspr.DELIVER_AT: [*INSTANTS, "2026-07-21T19:20:30", "2026-07-21"], kaspr.DELIVER_TO: DESTINATIONS},
    "etf1": {etf1.EPOCH: ["1893456000", "0", "9" * 18], etf1.TARGET_TOPIC: DESTINATIONS},
    "native": {native.TO: DESTINATIONS},
}
OPTIONAL = {
    "intervals": {
        intervals.ID: IDS,
        intervals.ACTION: [*intervals.VERBS],
        intervals.TENANT_ID: ["t1", "t2"],
        intervals.ZONE: ZONES,
    },
    "kaspr": {
        kaspr.ACTION: [*kaspr.VERBS, *kaspr.CRON_VERBS],
        kaspr.REQUEST_ID: IDS,
        kaspr.CRON_EXPR: CRONS,
        kaspr.CRON_POLICY: ["skip", "replay"],
    },
    "etf1": {etf1.TARGET_KEY: ["vid1"], etf1.KEY: ["k"]},
    "native": {
        native.AT: [*INSTANTS, *DURATIONS],
        native.EVERY: [*INTERVALS, "PT10M"],
        native.TIMES["rrule"]: RULES,
        native.TIMES["cron"]: CRONS,
        native.TIMES["zone"]: ZONES,
        native.TIMES["start"]: ["2026-11-20T09:00", "soon"],
        native.TIMES["count"]: ["3", "0", "x"],
        native.TIMES["gap"]: ["skip", "x"],
        native.MISSED: ["skip", "x"],
        native.ID: IDS,
        native.ACTION: [*native.VERBS],
        native.PRIORITY: ["high", "low"],
        native.POLICY["expires_after"]: DURATIONS,
        native.POLICY["late"]: ["skip"],
        native.POLICY["late_grace"]: DURATIONS,
        native.POLICY["late_max"]: DURATIONS,
        native.POLICY["jitter"]: DURATIONS,
        native.LABELS: ['{"a":"b"}', "{}"],
    },
}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)  # Kafka's names are UTF-8
GARBAGE = st.none() | TEXT.map(str.encode) | st.binary(max_size=20)
NAMES = [name for known in (*REQUIRED.values(), *OPTIONAL.values()) for name in known]
NAME = st.sampled_from(NAMES) | st.sampled_from([name.upper() for name in NAMES]) | TEXT
MOMENT = st.just(TIMESTAMP) | st.integers(-(2**63), 2**63 - 1)
PLACE = (st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), MOMENT)


def values(known: dict[str, list[str]]) -> dict[str, st.SearchStrategy[bytes | None]]:
    return {name: st.sampled_from([word.encode() for word in words]) for name, words in known.items()}


def plausible(wire: str) -> st.SearchStrategy[Record]:
    """Records much like those of a client, some of them with an invalid header."""
    own = st.fixed_dictionaries(values(REQUIRED[wire]), optional=values(OPTIONAL[wire]))
    slips = st.none() | st.lists(st.tuples(st.sampled_from(NAMES) | TEXT, GARBAGE), max_size=1)
    headers = st.builds(lambda own, slips: (*own.items(), *(slips or ())), own, slips)
    return st.builds(Record, st.just(TOPICS[wire]), *PLACE, st.binary(max_size=9), GARBAGE, headers)


def anything() -> st.SearchStrategy[Record]:
    topic = st.sampled_from([*TOPICS.values()]) | TEXT | TEXT.map("assignments.".__add__)
    headers = st.lists(st.tuples(NAME, GARBAGE), max_size=8).map(tuple)
    return st.builds(Record, topic, *PLACE, GARBAGE, GARBAGE, headers)


def check(wire: Wire, record: Record) -> None:
    answer = wire.read(record)
    assert wire.read(record) == answer
    if isinstance(answer, Refusal):
        check_refusal(wire, record, answer)
    else:
        assert isinstance(answer, Ask)
        check_ask(wire, record, answer)


def check_refusal(wire: Wire, record: Record, refusal: Refusal) -> None:
    assert refusal.reasons
    assert all(reason and len(reason) < 500 for reason in refusal.reasons)
    rejection = wire.rejection(record, refusal)
    assert is_topic(rejection.topic)
    assert rejection.key == record.key


def check_ask(wire: Wire, record: Record, ask: Ask) -> None:
    assert ask.tenant == wire.tenant_of(record.topic)
    assert all(is_topic(topic) for topic in wire.topics(ask.tenant))
    assert ask.id
    assert (ask.request is not None) == (ask.verb in {"add", "replace"})
    if ask.request is None:
        return
    assert ask.request.id == ask.id
    assert ask.request.value == record.value
    try:
        add = Admission(Limits()).admit(ask.tenant, ask.request, TIMESTAMP)
    except Invalid as invalid:
        check_refusal(wire, record, wire.refuse(ask.tenant, invalid))
    else:
        assert add.id == ask.id


@pytest.mark.parametrize("name", ["intervals", "kaspr", "native"])
def test_a_request_without_an_id_is_named_by_its_position(name: str) -> None:
    """In a topic that was deleted and created again, the same position gives another id."""
    required = tuple((known, words[0].encode()) for known, words in REQUIRED[name].items())
    asks = [
        WIRES[name].read(Record(TOPICS[name], 2, 7, TIMESTAMP, b"k", b"v", required, life)) for life in ("", "3bVTJdaM")
    ]
    place = f"{TOPICS[name]}/2/7"
    assert [ask.id for ask in asks if isinstance(ask, Ask)] == [place, f"{place}@3bVTJdaM"]


def test_a_derived_id_is_short_enough_for_a_long_topic() -> None:
    names = [
        derived_id(Record("t" * length, 2**31, 2**63, TIMESTAMP, life=life))
        for length in (200, 230, 249)
        for life in ("", "3bVTJdaM")
    ]
    assert len(set(names)) == 6
    assert max(map(len, names)) <= Limits().id_bytes_max


@pytest.mark.parametrize("name", WIRES)
def test_an_unreadable_record_is_refused(name: str) -> None:
    refusal = WIRES[name].read(Record(TOPICS[name], 0, 0, TIMESTAMP, b"k", None, unreadable="has no name"))
    assert isinstance(refusal, Refusal)
    assert refusal.reasons == ("has no name",)


@pytest.mark.slow
@given(anything())
def test_any_record_has_an_answer(record: Record) -> None:
    for wire in WIRES.values():
        check(wire, record)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
def test_any_likely_record_has_an_answer(name: str) -> None:
    @given(plausible(name))
    def likely(record: Record) -> None:
        check(WIRES[name], record)

    likely()


@pytest.mark.parametrize("name", WIRES)
def test_likely_records_are_of_every_kind(name: str) -> None:
    """Otherwise the test above would show little."""

    def asks(record: Record) -> bool:
        answer = WIRES[name].read(record)
        return isinstance(answer, Ask) and answer.verb in {"add", "replace"}

    def is_refused(record: Record) -> bool:
        return isinstance(WIRES[name].read(record), Refusal)

    for is_one in (asks, is_refused):
        find(plausible(name), is_one, settings=settings(max_examples=2_000, phases=[Phase.generate]), random=Random(0))


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([*INSTANTS, *DURATIONS, *INTERVALS, "R", "R5", ""]) | TEXT, max_size=4).map("/".join),
    MOMENT,
)
def test_any_time_has_an_answer(when: str, timestamp: int) -> None:
    times = [
        ("intervals", intervals.SCHEDULE),
        ("kaspr", kaspr.DELIVER_AT),
        ("etf1", etf1.EPOCH),
        ("native", native.AT),
        ("native", native.EVERY),
    ]
    for name, header in times:
        target = tuple((known, b"greetings") for known in REQUIRED[name] if known != header)
        check(WIRES[name], Record(TOPICS[name], 0, 0, timestamp, b"k", b"v", ((header, when.encode()), *target)))
