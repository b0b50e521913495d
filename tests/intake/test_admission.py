"""Admission: when a schedule is due, limits on overdue occurrences, and invalid headers and labels."""

from typing import Any

import pytest

from tests.contract.factories import ACME, DAY, HOUR, MILLISECOND, MINUTE, NOW, SECOND
from tidings.domain.errors import Invalid
from tidings.domain.names import Past
from tidings.domain.schedules.command import Priority
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.lateness import Lateness, deadline
from tidings.domain.schedules.schedule import Limits, Request, Timing
from tidings.domain.schedules.when import Every, Once
from tidings.intake.admission import Admission

ADMISSION = Admission(Limits(catch_up_max=10))


def every(start: int, period: str = "PT1S", **policy: str) -> Request:
    return Request("t", every=f"R/{format_instant(start)}/{period}", **policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [None, 0, NOW - DAY, NOW, format_instant(NOW - DAY), "1970-01-01T00:00:00Z"])
def test_a_past_time_is_due_at_acceptance(at: int | str | None) -> None:
    add = ADMISSION.admit(ACME, Request("t", at=at), NOW)
    assert (add.when, add.due) == (Once(NOW), NOW)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"late": "skip"}, "late_skipped"),
        ({"late": "skip", "late_grace": "PT59M"}, "late_skipped"),
        ({"late_max": "PT59M"}, "late_max"),
        ({"expires_after": "PT59M"}, "expired"),
        ({"expires_after": "PT59M", "jitter": "PT1M"}, "expired"),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_a_past_time_too_late_for_its_policy_is_missed(policy: dict[str, Any], reason: str, local: bool) -> None:
    asked = NOW - HOUR
    at = {"at": format_instant(asked)[:19], "timing": Timing(zone="UTC")} if local else {"at": asked}
    add = ADMISSION.admit(ACME, Request("t", **at, **policy), NOW)
    assert (add.when, add.due, add.jitter_us) == (Once(asked), asked, 0)
    assert add.note == f"due 60 minutes ago, will not be released: missed ({reason})"
    assert deadline(add.due, add.lateness) is not None


def test_the_policy_of_a_past_time_is_reduced_by_the_time_passed() -> None:
    policy: dict[str, Any] = {"late": "skip", "late_grace": "PT2H", "late_max": "PT3H", "expires_after": "PT4H"}
    add = ADMISSION.admit(ACME, Request("t", at=NOW - HOUR, **policy), NOW)
    assert (add.due, add.lateness) == (NOW, Lateness("skip", HOUR, 2 * HOUR, 3 * HOUR))
    assert add.note == "due 60 minutes ago: sent now"


@pytest.mark.parametrize(
    ("late_us", "note"),
    [
        (0, None),
        (5 * MILLISECOND, None),
        (MINUTE, None),
        (MINUTE + SECOND, "due 61 seconds ago: sent now"),
        (90 * MINUTE, "due 90 minutes ago: sent now"),
        (6 * 366 * DAY, "due 6 years ago: sent now"),
    ],
)
def test_a_time_more_than_a_minute_ago_has_a_note(late_us: int, note: str | None) -> None:
    assert ADMISSION.admit(ACME, Request("t", at=NOW - late_us), NOW).note == note


@pytest.mark.parametrize(("node", "asked"), [("refuse", None), ("send", "refuse"), ("refuse", "refuse")])
def test_a_time_more_than_a_minute_ago_is_refused_if_requested(node: Past, asked: Past | None) -> None:
    admission = Admission(Limits(), past=node)
    with pytest.raises(Invalid, match="at: is 24 hours in the past: give a future time, or past=send"):
        admission.admit(ACME, Request("t", at=NOW - DAY, past=asked), NOW).check_past()
    for at in (None, NOW, NOW - MINUTE, NOW + HOUR):
        add = admission.admit(ACME, Request("t", at=at, past=asked), NOW)
        assert (add.due >= NOW, add.past_refusal) == (True, None)
    assert admission.admit(ACME, Request("t", at=NOW - DAY, past="send"), NOW).past_refusal is None
    sent_in_time = Request("t", at=NOW - DAY, since=NOW - 2 * DAY, past=asked)  # and read late
    add = admission.admit(ACME, sent_in_time, NOW)
    assert (add.due, add.past_refusal) == (NOW, None)


def test_the_past_option_is_not_part_of_the_content_digest() -> None:
    one, other = (
        ADMISSION.admit(ACME, Request("t", id="a", at=NOW, labels={"a": "b"}, past=past), NOW)
        for past in (None, "refuse")
    )
    assert one.content == other.content


@pytest.mark.parametrize("at", [None, NOW, NOW - DAY, NOW - 1])
def test_low_priority_due_now_has_no_jitter(at: int | None) -> None:
    admission = Admission(Limits(), low_jitter_us=MINUTE)
    dues = {admission.admit(ACME, Request("t", at=at, priority=Priority.LOW), NOW).due for _ in range(20)}
    assert dues == {NOW}
    asked = Request("t", at=at, priority=Priority.LOW, jitter="PT1M")  # by the sender, who knows why
    assert len({admission.admit(ACME, asked, NOW).due for _ in range(20)}) > 10


@pytest.mark.parametrize("ahead_us", [1, 20 * MILLISECOND, SECOND])
def test_low_priority_has_no_jitter_if_the_clock_of_the_client_is_slightly_ahead(ahead_us: int) -> None:
    admission = Admission(Limits(), low_jitter_us=MINUTE)
    request = Request("t", at=NOW + ahead_us, priority=Priority.LOW)
    assert {admission.admit(ACME, request, NOW).due for _ in range(20)} == {NOW + ahead_us}


def test_low_priority_scheduled_ahead_has_jitter() -> None:
    admission = Admission(Limits(), low_jitter_us=MINUTE)
    ahead = [
        Request("t", at=NOW + SECOND + 1, priority=Priority.LOW),
        Request("t", every="PT1H", priority=Priority.LOW),
    ]
    for request in ahead:
        assert len({admission.admit(ACME, request, NOW).jitter_us for _ in range(20)}) > 10


@pytest.mark.parametrize("at", [NOW + HOUR, format_instant(NOW + HOUR), "+1h"])
def test_a_future_time_is_due_at_that_time(at: int | str) -> None:
    add = ADMISSION.admit(ACME, Request("t", at=at), NOW)
    assert (add.when, add.due) == (Once(NOW + HOUR), NOW + HOUR)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(Invalid, match="at: is before 1970"):
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


@pytest.mark.parametrize(
    ("request_", "digest"),
    [
        (Request("t", b"v", id="a", at="2035-01-01T00:00:00Z"), "74049bcbca176049c92c6320c0e07210"),
        (
            Request("t", b"v", id="a", every="PT10M", labels={"a": "b"}, late="skip", priority=Priority.LOW),
            "381b55d6e2681f2ecae882769b6695fd",
        ),
        (
            Request(
                "t", b"v", key=b"k", id="a", at="2035-01-01T00:00:00Z", expires_after="PT1H", jitter="PT1M", past="send"
            ),
            "57674768f72780ca81558f6f00df99b6",
        ),
        (
            Request("t", b"v", id="a", timing=Timing(rrule="FREQ=DAILY", zone="Europe/Berlin", count=3)),
            "e723a79df32a42224622ab231e49f08d",
        ),
    ],
)
def test_content_digests_are_those_of_version_0_1(request_: Request, digest: str) -> None:
    """A schedule that an earlier version stored and that is sent again is `unchanged`."""
    assert Admission(Limits()).admit("default", request_, 1_800_000_000_000_000).content.hex() == digest


class LaterRequest(Request, frozen=True, gc=False):
    """A request of a later version, with one more optional field."""

    later: str | None = None


@pytest.mark.parametrize("fields", [{}, {"labels": {"a": "b"}}, {"every": "PT10M"}])
def test_a_field_of_a_later_version_changes_a_content_digest_only_if_it_is_given(fields: dict[str, Any]) -> None:
    today, without, given, other = (
        ADMISSION.admit(ACME, request, NOW).content
        for request in (
            Request("t", b"v", id="a", **fields),
            LaterRequest("t", b"v", id="a", **fields),
            LaterRequest("t", b"v", id="a", later="x", **fields),
            LaterRequest("t", b"v", id="a", later="y", **fields),
        )
    )
    assert today == without
    assert len({today, given, other}) == 3
