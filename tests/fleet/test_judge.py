"""The checker of a fleet run: no false alarms, and each fault by its name."""

import pytest

from tests.fleet.clients import Name
from tests.fleet.judge import FAULTS, End, Verdict, judge
from tests.fleet.model import Step
from tests.fleet.readers import Seen

ONE = Name.of("acme/once/1")
DUE = 1_000
NOW = 9_000
ADDED = Step("add", 10, 20, "scheduled", "token", due=DUE)
OPEN = Step("add", 10, token="token")
CANCELLED = Step("cancel", 30, 40, "cancelled")
EVERY = Step("add", 10, 20, "scheduled", "token", often=2)


def seen(
    *, n: int = 1, generation: int = 1, token: str = "token", due: int = DUE, released: int = DUE + 5, offset: int = 0
) -> Seen:
    place = ("greetings", 0, offset)
    return Seen(ONE, generation, n, token, due, released, released, released + 50, place)


def verdict_of(calls: list[Step], records: list[Seen], state: str, generation: int = 1) -> Verdict:
    return judge({ONE: calls}, records, {ONE: End(state, generation)}, NOW)


def test_a_correct_run_has_no_faults() -> None:
    verdict = verdict_of([ADDED], [seen()], "released")
    assert verdict.is_clean, str(verdict)
    assert (verdict.due, verdict.missed) == (1, 0)
    assert verdict_of([ADDED, CANCELLED], [], "cancelled").is_clean
    assert verdict_of([ADDED], [], "missed").missed == 1
    assert judge({ONE: [OPEN]}, [], {}, NOW).is_clean, "nobody knows it, and nobody was told otherwise"
    assert verdict_of([OPEN], [seen()], "released").is_clean


@pytest.mark.parametrize(
    ("fault", "calls", "records", "state"),
    [
        ("twice", [ADDED], [seen(), seen(offset=1)], "released"),
        ("lost", [ADDED], [], "released"),
        ("lost", [ADDED], [], "none"),
        ("lost", [EVERY], [seen()], "ended"),
        ("early", [ADDED], [seen(released=DUE - 1)], "released"),
        ("early", [ADDED], [seen(due=DUE - 500, released=DUE - 400)], "released"),
        ("unwanted", [ADDED, CANCELLED], [seen()], "cancelled"),
        ("untrue", [ADDED, CANCELLED], [seen()], "released"),
        ("untrue", [ADDED, Step("cancel", 30, 40, "already_released")], [seen()], "released"),
        ("untrue", [ADDED, Step("replace", 30, 40, "replaced", "other")], [seen()], "released"),
        ("untrue", [ADDED, Step("pause", 30, 40, "paused")], [seen()], "released"),
        ("untrue", [ADDED, CANCELLED], [], "paused"),
        ("waiting", [ADDED, Step("pause", 30, 40, "paused"), Step("resume", 50, 60, "resumed")], [], "pending"),
    ],
)
def test_each_fault_is_named(fault: str, calls: list[Step], records: list[Seen], state: str) -> None:
    verdict = verdict_of(calls, records, state)
    assert not verdict.is_clean
    assert [name for name in FAULTS if verdict.faults[name]] == [fault]
    assert ONE.id in str(verdict)
    assert all(str(step) in str(verdict) for step in calls), "its history is shown"


def test_an_unrequested_record_is_a_fault() -> None:
    assert judge({}, [seen()], {}, NOW).faults["unwanted"]


def test_a_history_of_another_event_is_a_fault() -> None:
    events = [{"event": "released", "occurrence": 1}, {"event": "released", "occurrence": 2}]
    verdict = judge({ONE: [ADDED]}, [seen()], {ONE: End("released", 1, events)}, NOW)
    assert verdict.faults["untrue"]
