"""Admission: when a schedule is due, and how much of the past may be caught up with."""

import pytest

from tests.contract.factories import ACME, DAY, HOUR, NOW, SECOND
from tidings.domain.errors import Invalid
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.request import Limits, Request
from tidings.domain.schedules.when import Every, Once
from tidings.intake.admission import Admission

ADMISSION = Admission(Limits(catch_up_max=10))


def every(start: int, period: str = "PT1S", **policy: str) -> Request:
    return Request("t", every=f"R/{format_instant(start)}/{period}", **policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [None, 0, NOW - DAY, NOW, format_instant(NOW - DAY), "1970-01-01T00:00:00Z"])
def test_what_has_passed_is_due_when_it_is_taken(at: int | str | None) -> None:
    add = ADMISSION.admit(ACME, Request("t", at=at, expires_after="PT1H"), NOW)
    assert (add.when, add.due) == (Once(NOW), NOW)


@pytest.mark.parametrize("at", [NOW + HOUR, format_instant(NOW + HOUR), "+1h"])
def test_what_is_to_come_is_due_then(at: int | str) -> None:
    add = ADMISSION.admit(ACME, Request("t", at=at), NOW)
    assert (add.when, add.due) == (Once(NOW + HOUR), NOW + HOUR)


def test_before_1970_there_is_nothing() -> None:
    with pytest.raises(Invalid, match="at: lies before 1970"):
        ADMISSION.admit(ACME, Request("t", at=-1), NOW)


def test_the_same_past_moment_is_the_same_content_whenever_it_is_sent() -> None:
    request = Request("t", b"v", id="a", at=NOW - DAY)
    assert ADMISSION.admit(ACME, request, NOW).content == ADMISSION.admit(ACME, request, NOW + HOUR).content


def test_a_recurring_one_keeps_its_start() -> None:
    add = ADMISSION.admit(ACME, every(NOW - DAY), NOW)
    assert isinstance(add.when, Every)
    assert (add.when.start, add.due) == (NOW - DAY, NOW - DAY)


@pytest.mark.parametrize(
    "request_",
    [
        every(NOW - 9 * SECOND, late="fire_all"),
        every(NOW - DAY, late="fire_latest"),
        every(NOW - DAY, late="skip", late_grace="9s"),
        every(NOW - DAY, late="fire_all", late_max="9s"),
        every(NOW - DAY, late="fire_all", expires_after="9s"),
        every(NOW - 9 * 31 * DAY, "P1M", late="fire_all"),
        every(NOW + DAY, late="fire_all"),
        Request("t", every=f"R10/{format_instant(NOW - DAY)}/PT1S", late="fire_all"),
    ],
)
def test_a_little_can_be_caught_up_with(request_: Request) -> None:
    assert ADMISSION.admit(ACME, request_, NOW).due


@pytest.mark.parametrize(
    ("request_", "overdue"),
    [
        (every(NOW - 10 * SECOND, late="fire_all"), "11"),
        (every(0, late="fire_all"), f"{NOW // SECOND + 1:,}"),
        (every(NOW - DAY, late="skip", late_grace="1h"), "3,601"),
        (every(NOW - DAY, late="fire_all", late_max="10s"), "11"),
        (every(NOW - 366 * DAY, "P1M", late="fire_all"), "13"),
    ],
)
def test_a_flood_of_the_past_is_refused_with_what_to_do(request_: Request, overdue: str) -> None:
    with pytest.raises(Invalid) as refused:
        ADMISSION.admit(ACME, request_, NOW)
    assert refused.value.field == "late"
    assert f"{overdue} occurrences" in refused.value.detail
    for way in ("start later", "late_max", "fire_latest"):
        assert way in refused.value.detail


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a\0b", "holds a NUL"), ("\0", "holds a NUL"), ("\ud800", "surrogate"), ("a\udfffb", "surrogate")],
)
def test_header_names_that_no_client_of_kafka_carries(name: str, reason: str) -> None:
    for bus in ("log", "kafka"):
        admission = Admission(Limits(), bus=bus)
        with pytest.raises(Invalid, match=f"headers: .*{reason}"):
            admission.admit(ACME, Request("t", headers=(("fine", b"\0"), (name, b"v"))), NOW)


@pytest.mark.parametrize("labels", [{"a\0": "b"}, {"a": "\0"}])
def test_labels_that_no_store_could_search(labels: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="labels: hold a NUL"):
        ADMISSION.admit(ACME, Request("t", labels=labels), NOW)
    assert ADMISSION.admit(ACME, Request("t", labels={"a": "\\u0000"}), NOW).labels == '{"a":"\\\\u0000"}'


@pytest.mark.parametrize("labels", [{"\ud800": "a"}, {"a": "\udfff"}])
@pytest.mark.parametrize("schedule_id", [None, "a"])
def test_labels_that_are_no_text(labels: dict[str, str], schedule_id: str | None) -> None:
    with pytest.raises(Invalid, match=r"labels: .*surrogate"):
        ADMISSION.admit(ACME, Request("t", id=schedule_id, labels=labels), NOW)
