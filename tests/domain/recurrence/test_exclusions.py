"""EXDATE, RDATE and excluded days compared with a simple model; previews with their marks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.domain.recurrence.text_api import first, rule, wall
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import STEPS, STEPS_MAX
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.preview import Shown, local_text, preview, swallowed_note
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.recurrence.rule import Gap, Moment, OnExcluded, Overlap, Rule

DAY = 86_400
START = wall("20270101T000000")
TEXTS = ["FREQ=DAILY;BYHOUR=9,15", "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9", "FREQ=HOURLY;INTERVAL=7", "FREQ=DAILY;COUNT=30"]


def model(text: str, days: set[int], policy: OnExcluded, excepted: set[int], added: set[int]) -> list[int]:
    """A simple model: apply the exclusions to each occurrence of the plain rule."""
    found = set(added)
    for at in first(Rule(rrule=text, start=START), 400):
        if at in excepted:
            continue
        found.add(at)
    found -= excepted
    moved = set()
    for at in found:
        day = at // DAY
        if day not in days:
            moved.add(at)
        elif policy == "next_day":
            while day in days:
                day += 1
            moved.add(day * DAY + at % DAY)
    return sorted(moved)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    some.sampled_from(TEXTS),
    some.sets(some.integers(0, 60), max_size=20),
    some.sampled_from(["skip", "next_day"]),
    some.sets(some.integers(0, 60 * 24), max_size=10),
    some.sets(some.integers(0, 60 * 24), max_size=10),
)
def test_exclusions_equal_the_model(
    text: str, days: set[int], policy: OnExcluded, excepted: set[int], added: set[int]
) -> None:
    base = START // DAY
    out, more = {START + hour * 3_600 for hour in excepted}, {START + hour * 3_600 for hour in added}
    asked = Rule(
        rrule=text,
        start=START,
        added=tuple(Moment(at, "utc") for at in sorted(more)),
        excepted=tuple(Moment(at, "utc") for at in sorted(out)),
        excluded=tuple(sorted(base + day for day in days)),
        on_excluded=policy,
    )
    wanted = model(text, {base + day for day in days}, policy, out, more)[:60]
    moments = compiled(asked)
    assert first(asked, len(wanted)) == wanted
    assert [moments.through(at) for at in wanted] == list(range(1, len(wanted) + 1))
    assert [moments.through(at - 1) for at in wanted] == list(range(len(wanted)))


def test_secondly_rule_skips_a_whole_excluded_day() -> None:
    asked = Rule(rrule="FREQ=SECONDLY", start=START, zone="Europe/Berlin", excluded=(START // DAY + 1,))
    moments = compiled(asked)
    assert moments.at(DAY) == START - 3_600 + DAY - 1
    assert moments.at(DAY + 1) == START - 3_600 + 2 * DAY


@pytest.mark.parametrize("excluded", [(), (START // DAY + 1,)])
def test_rule_with_too_many_occurrences_a_day_cannot_use_next_day(excluded: tuple[int, ...]) -> None:
    for text in ("FREQ=MINUTELY", "FREQ=DAILY;BYHOUR=9,10;BYMINUTE=" + ",".join(map(str, range(51)))):
        with pytest.raises(Invalid, match="use skip") as caught:
            read_rule(text, 0, Terms(start="2027-01-01", excluded=excluded, on_excluded="next_day", calendar="off"))
        assert caught.value.field == "on_excluded"
    with pytest.raises(Invalid, match="use skip"):
        read_cron("* * * * *", 0, Terms(excluded=excluded, on_excluded="next_day"))
    read_rule("FREQ=MINUTELY;BYHOUR=9", 0, Terms(start="2027-01-01", excluded=excluded, on_excluded="next_day"))


def test_next_day_is_refused_if_a_calendar_moves_too_many() -> None:
    days = range(START // DAY, START // DAY + 10_000, 2)
    with pytest.raises(Invalid, match="5,000 excluded days of up to 96 occurrences: next_day can move at most 10,000"):
        read_cron("*/15 * * * *", START * 1_000_000, Terms(excluded=days, on_excluded="next_day"))
    late = read_cron("*/15 * * * *", (START + 9_900 * DAY) * 1_000_000, Terms(excluded=days, on_excluded="next_day"))
    assert compiled(late).at(96) == START + 9_902 * DAY - 900  # on an odd day, with what moved there


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("policy", ["skip", "next_day"])
def test_excluded_days_are_computed_only_as_far_as_needed(policy: OnExcluded, step: int) -> None:
    days = range(START // DAY + 1, START // DAY + 1 + 5_000 * step, step)
    text = "FREQ=DAILY;BYHOUR=9,15"
    compiled(read_rule(text, 0, Terms(start="2027-01-01", excluded=days, on_excluded=policy)))
    before = STEPS.taken
    asked = read_rule(text, 0, Terms(start="2027-01-01T00:00:01", excluded=days, on_excluded=policy))
    moments = compiled(asked)
    assert moments.at(1) == START + 9 * 3_600 + 1
    assert STEPS.taken - before < 50
    moments.at(10**9)
    moments.through(10**11)
    assert STEPS.taken - before <= STEPS_MAX


def test_excluded_days_are_days_of_the_zone() -> None:
    asked = rule("FREQ=DAILY", "20270101T233000", "Asia/Tokyo")
    without = Rule(rrule=asked.rrule, start=asked.start, zone=asked.zone, excluded=(wall("20270102T000000") // DAY,))
    assert first(without, 2) == [first(asked, 3)[0], first(asked, 3)[2]]


def lines(
    text: str, start: str, count: int, gap: Gap = "forward", overlap: Overlap = "first"
) -> list[tuple[str, str | None]]:
    asked = rule(text, start, "Europe/Berlin", gap, overlap)
    return [(line.wall, line.mark) for line in preview(asked, (wall(start) - DAY) * 1_000_000, count)]


def test_previews_mark_clock_changes() -> None:
    assert lines("FREQ=DAILY", "20270327T023000", 3) == [
        ("2027-03-27T02:30:00+01:00", None),
        ("2027-03-28T03:30:00+02:00", "moved"),
        ("2027-03-29T02:30:00+02:00", None),
    ]
    assert lines("FREQ=DAILY", "20270327T023000", 2, "skip") == [
        ("2027-03-27T02:30:00+01:00", None),
        ("2027-03-28T02:30:00", "skipped"),
        ("2027-03-29T02:30:00+02:00", None),
    ]
    assert lines("FREQ=DAILY", "20271030T023000", 3, overlap="both")[1:] == [
        ("2027-10-31T02:30:00+02:00", "first"),
        ("2027-10-31T02:30:00+01:00", "second"),
    ]
    assert [mark for _, mark in lines("FREQ=HOURLY", "20271031T010000", 4)] == [None, "first", "second", None]


def test_previews_are_numbered_and_end_with_the_rule() -> None:
    asked = read_rule("FREQ=DAILY;COUNT=3", 0, Terms(start="2027-01-01T09:00:00Z"))
    shown = preview(asked, (START + 9 * 3_600) * 1_000_000, 10)
    assert [(line.number, line.at) for line in shown] == [
        (number, (START + 9 * 3_600 + (number - 1) * DAY) * 1_000_000) for number in (2, 3)
    ]
    local = read_local("2027-03-28 02:30", "Europe/Berlin")
    assert preview(local, 0, 5) == [Shown("2027-03-28T03:30:00+02:00", 1, wall("20270328T013000") * 1_000_000, "moved")]
    gone = read_local("2027-03-28 02:30", "Europe/Berlin", "skip")
    assert preview(gone, 0, 5) == [Shown("2027-03-28T02:30:00", mark="skipped")]
    assert preview(gone, wall("20270328T013000") * 1_000_000, 5) == []
    assert swallowed_note(local) is None
    day = swallowed_note(read_local("2011-12-30 12:00:05", "Pacific/Apia", "skip")) or ""
    assert day.startswith(
        "12:00:05 does not exist on 2011-12-30 in Pacific/Apia (clocks go from 2011-12-30 00:00 to 2011-12-31 00:00)"
    )
    assert local_text("Africa/Monrovia", 0) == "1969-12-31T23:15:30-00:44:30"
