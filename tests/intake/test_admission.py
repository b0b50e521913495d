"""Admission: when a schedule is due, limits on overdue occurrences, and invalid headers and labels."""

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
def test_a_past_time_is_due_at_acceptance(at: int | str | None) -> None:
    add = ADMISSION.admit(ACME, Request("t", at=at, expires_after="PT1H"), NOW)
    assert (add.when, add.due) == (Once(NOW), NOW)


@pytest.mark.parametrize("at", [NOW + HOUR, format_instant(NOW + HOUR), "+1h"])
def test_a_future_time_is_due_at_that_time(at: int | str) -> None:
    add = ADMISSION.admit(ACME, Request("t", at=at), NOW)
    assert (add.when, add.due) == (Once(NOW + HOUR), NOW + HOUR)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(Invalid, match="at: lies before 1970"):
        ADMISSION.admit(ACME, Request("t", at=-1), NOW)


def test_a_past_time_has_the_same_content_digest_whenever_it_is_sent() -> None:
    request = Request("t", b"v", id="a", at=NOW - DAY)
    assert ADMISSION.admit(ACME, request, NOW).content == ADMISSION.admit(ACME, request, NOW + HOUR).content


def test_a_recurring_schedule_keeps_its_past_start() -> None:
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
def test_a_few_overdue_occurrences_are_accepted(request_: Request) -> None:
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
def test_too_many_overdue_occurrences_are_refused_with_advice(request_: Request, overdue: str) -> None:
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
def test_header_names_that_kafka_clients_cannot_carry_are_refused(name: str, reason: str) -> None:
    for bus in ("log", "kafka"):
        admission = Admission(Limits(), bus=bus)
        with pytest.raises(Invalid, match=f"headers: .*{reason}"):
            admission.admit(ACME, Request("t", headers=(("fine", b"\0"), (name, b"v"))), NOW)


@pytest.mark.parametrize("labels", [{"a\0": "b"}, {"a": "\0"}])
def test_labels_with_a_nul_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="labels: hold a NUL"):
        ADMISSION.admit(ACME, Request("t", labels=labels), NOW)
    assert ADMISSION.admit(ACME, Request("t", labels={"a": "\\u0000"}), NOW).labels == '{"a":"\\\\u0000"}'


@pytest.mark.parametrize("labels", [{"\ud800": "a"}, {"a": "\udfff"}])
@pytest.mark.parametrize("schedule_id", [None, "a"])
def test_labels_with_half_a_surrogate_pair_are_refused(labels: dict[str, str], schedule_id: str | None) -> None:
    with pytest.raises(Invalid, match=r"labels: .*surrogate"):
        ADMISSION.admit(ACME, Request("t", id=schedule_id, labels=labels), NOW)
