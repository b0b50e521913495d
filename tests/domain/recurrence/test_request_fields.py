"""Request fields into stored recurrences; errors name the field and say what to do."""

from contextlib import suppress

import msgspec
import pytest

from tests.domain.recurrence.text_api import first, shown, wall
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import STEPS, STEPS_MAX
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.ics_calendar import parse_calendar
from tidings.domain.recurrence.local_time import is_swallowed
from tidings.domain.recurrence.preview import fields_of
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.recurrence.rrule import quoted
from tidings.domain.recurrence.rule import Cron, Local, Moment, Overlap, Rule

NOW = wall("20261116T120034") * 1_000_000 + 7


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "NAME=VALUE"),
        ("every other Day", "'every other Day' is not NAME=VALUE"),
        ("BYDAY=MO", "no FREQ"),
        ("FREQ=FORTNIGHTLY", "one of YEARLY"),
        ("FREQ=DAILY;FREQ=DAILY", "FREQ is given twice: remove one"),
        ("FREQ=DAILY;BYHOUR=1;BYHOUR=2", "twice: join the values"),
        ("FREQ=DAILY;EVERY=2", "not a part of an RRULE"),
        ("FREQ=DAILY;INTERVAL=0", "from 1"),
        ("FREQ=DAILY;INTERVAL=-1", "from 1"),
        ("FREQ=DAILY;INTERVAL=1e3", "from 1"),
        ("FREQ=DAILY;COUNT=9999999999", "from 1"),
        ("FREQ=DAILY;COUNT=1;UNTIL=20270101", "remove one"),
        ("FREQ=DAILY;UNTIL=tomorrow", "write a time such as"),
        ("FREQ=DAILY;UNTIL=20270230", "not a valid date"),
        ("FREQ=DAILY;BYHOUR=24", "from 0 to 23"),
        ("FREQ=DAILY;BYHOUR=", "NAME=VALUE"),
        ("FREQ=DAILY;BYMONTH=0", "from 1 to 12"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "not 0"),
        ("FREQ=MONTHLY;BYDAY=6MO", "use -5 to 5"),
        ("FREQ=MONTHLY;BYDAY=0MO", "or numbered: 1MO"),
        ("FREQ=DAILY;BYDAY=1MO", "MONTHLY or YEARLY"),
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO", "remove the number"),
        ("FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO needs FREQ=YEARLY"),
        ("FREQ=MONTHLY;BYYEARDAY=1", "use FREQ=YEARLY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "use FREQ=MONTHLY"),
        ("FREQ=DAILY;BYSETPOS=1", "add one, such as BYDAY"),
        ("FREQ=DAILY;WKST=XX", "one of MO"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "has no occurrence"),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=DAILY", "one RRULE line"),
        (
            "DTSTART;TZID=Europe/Berlin:20270101T000000\nRDATE;TZID=UTC:20270101T000000\nRRULE:FREQ=DAILY",
            "several time zones",
        ),
        ("DTSTART;X=1:20270101T000000\nRRULE:FREQ=DAILY", "use TZID"),
        ("DTSTART:20270101T000000\nEXRULE:FREQ=DAILY", "not a DTSTART"),
        ("FREQ=DAILY;BYHOUR=" + "1," * 3_000, "characters"),
    ],
)
def test_rules_that_are_refused(text: str, advice: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_rule(text, NOW)
    assert caught.value.field == "rrule"
    assert advice in caught.value.detail


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        (Terms(zone="Mars/Olympus"), "zone"),
        (Terms(start="yesterday"), "start"),
        (Terms(start="2026-11-16T12:00:00.5Z"), "start"),
        (Terms(count=0), "count"),
        (Terms(count=2, until="2027-01-01"), "count"),
        (Terms(until="soon"), "until"),
        (Terms(rdates=["x"]), "rdates"),
        (Terms(exdates=["2027-01-01T25:00"]), "exdates"),
        (Terms(exdates=["2027-01-01"] * 501), "exdates"),
        (Terms(excluded=range(6_000)), "calendar"),
    ],
)
def test_fields_that_are_refused(terms: Terms, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_rule("FREQ=DAILY", NOW, terms)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "terms", "expected"),
    [
        (
            "FREQ=DAILY;COUNT=2",
            Terms(exdates=["2026-11-17", "2026-11-18"]),
            "exdates: exclude every occurrence of the rule",
        ),
        ("RRULE:FREQ=DAILY;COUNT=1\nEXDATE:20261117", Terms(), "rrule: EXDATE excludes every occurrence of the rule"),
        ("FREQ=DAILY;UNTIL=20200101", Terms(), "rrule: UNTIL=20200101 is in the past: choose a later end, or give"),
        (
            "FREQ=DAILY;UNTIL=20200101",
            Terms(start="2026-12-01"),
            "rrule: UNTIL=20200101 is before the first",
        ),
        (
            "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;UNTIL=20200101",
            Terms(),
            "rrule: has no occurrence: no time before its end",
        ),
    ],
)
def test_error_names_what_excludes_every_occurrence(text: str, terms: Terms, expected: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_rule(text, NOW, terms)
    assert str(caught.value).startswith(expected)


def test_expression_whose_exdates_exclude_every_occurrence() -> None:
    with pytest.raises(Invalid, match="exdates: exclude every occurrence of the expression"):
        read_cron("0 9 * * *", NOW, Terms(count=1, exdates=["2026-11-17"]))


def test_end_is_refused_for_a_rule_that_has_one() -> None:
    for terms, field in ((Terms(count=2), "count"), (Terms(until="2027-01-01"), "until")):
        with pytest.raises(Invalid, match="its own end") as caught:
            read_rule("FREQ=DAILY;COUNT=3", NOW, terms)
        assert caught.value.field == field


def test_start_or_zone_given_twice_is_refused() -> None:
    block = "DTSTART;TZID=Europe/Berlin:20270101T090000\nRRULE:FREQ=DAILY"
    for terms in (Terms(start="2027-01-01T09:00"), Terms(zone="UTC")):
        with pytest.raises(Invalid, match="remove one"):
            read_rule(block, NOW, terms)


def test_without_a_start_the_anchor_is_the_current_minute() -> None:
    asked = read_rule("FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0", NOW, Terms(zone="America/New_York"))
    assert shown(first(asked, 1)[0]) == "20261116T140000"
    assert [shown(at) for at in first(read_rule("FREQ=MINUTELY", NOW), 2)] == ["20261116T120100", "20261116T120200"]


def test_rules_accepted_within_one_second_are_equal() -> None:
    second = NOW // 1_000_000 * 1_000_000
    for read, text in ((read_rule, "FREQ=SECONDLY"), (read_cron, "* * * * * *")):
        assert read(text, second + 1) == read(text, second + 999_999)
        assert first(read(text, second), 1) == [second // 1_000_000]
        assert first(read(text, second + 1), 1) == [second // 1_000_000 + 1]


def test_a_start_may_be_an_instant_a_wall_time_or_a_date() -> None:
    for start in (
        "2026-01-05T08:00:00Z",
        "2026-01-05T09:00",
        "2026-01-05 09:00:00",
        "20260105T090000",
        "2026-01-05T03:00:00-05:00",
    ):
        asked = read_rule("FREQ=DAILY", NOW, Terms(start=start, zone="Europe/Berlin"))
        assert asked == Rule(rrule="FREQ=DAILY", start=wall("20260105T090000"), zone="Europe/Berlin")
    assert read_rule("FREQ=DAILY", NOW, Terms(start="2026-01-05")).start == wall("20260105T000000")


def test_a_start_in_the_second_of_two_equal_hours() -> None:
    second = read_rule("FREQ=HOURLY", NOW, Terms(start="2026-10-25T01:30:00Z", zone="Europe/Berlin"))
    assert (second.start, second.fold) == (wall("20261025T023000"), 1)
    assert shown(first(second, 1)[0]) == "20261025T013000"
    daily = read_rule("FREQ=DAILY", NOW, Terms(start="2026-10-25T01:30:00Z", zone="Europe/Berlin"))
    assert shown(first(daily, 1)[0]) == "20261026T013000"  # the first of the two had passed


def test_until_as_a_date_includes_the_whole_day() -> None:
    asked = read_rule(
        "FREQ=HOURLY;INTERVAL=12;UNTIL=20261118", NOW, Terms(start="2026-11-17T11:00", zone="Asia/Tehran")
    )
    assert len(first(asked, 9)) == 4
    assert first(
        read_rule(
            "FREQ=HOURLY;INTERVAL=12", NOW, Terms(start="2026-11-17T11:00", zone="Asia/Tehran", until="2026-11-18")
        ),
        9,
    ) == first(asked, 9)


def test_local_one_shots() -> None:
    assert read_local("2027-03-28 02:30", "Europe/Berlin") == Local(wall("20270328T023000"), "Europe/Berlin")
    assert [shown(at) for at in first(read_local("2027-03-28 02:30", "Europe/Berlin"), 2)] == ["20270328T013000"]
    gone = read_local("2027-03-28 02:30", "Europe/Berlin", "skip")
    assert [shown(at) for at in first(gone, 2)] == ["20270328T013000"]  # the instant at which it counts as missed
    assert is_swallowed(gone)
    assert not is_swallowed(read_local("2027-03-28 03:30", "Europe/Berlin", "skip"))
    both = read_local("2026-10-25 02:30", "Europe/Berlin", "forward", "both")
    assert [shown(at) for at in first(both, 3)] == ["20261025T003000", "20261025T013000"]
    for text in ("2027-03-28T02:30Z", "2027-03-28", "2027-03-28 24:30", "noon"):
        with pytest.raises(Invalid):
            read_local(text, "Europe/Berlin")


def test_shown_fields_can_be_sent_again() -> None:
    terms = Terms(
        "2026-01-05T09:00",
        "Europe/Berlin",
        "skip",
        "both",
        9,
        None,
        ["2027-01-01T10:00:00Z"],
        ["2027-01-02"],
        calendar="off",
    )
    shown_fields = fields_of(read_rule("FREQ=DAILY", NOW, terms))
    assert shown_fields == {
        "rrule": "FREQ=DAILY;COUNT=9",
        "start": "2026-01-05T09:00:00",
        "zone": "Europe/Berlin",
        "gap": "skip",
        "overlap": "both",
        "rdates": ["2027-01-01T10:00:00Z"],
        "exdates": ["2027-01-02"],
        "calendar": "off",
        "on_excluded": "skip",
    }
    cron = read_cron("0 9 * * *", NOW, Terms(zone="Europe/Berlin", count=3, until="2027-01-01"))
    again = fields_of(cron)
    assert (again["cron"], again["count"]) == ("0 9 * * *", 3)
    assert isinstance(cron, Cron)
    assert fields_of(Local(wall("20270328T023000"), "Europe/Berlin")) == {
        "at": "2027-03-28T02:30:00",
        "zone": "Europe/Berlin",
    }


@pytest.mark.parametrize("overlap", ["first", "second", "both"])
@pytest.mark.parametrize(
    "start", ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-10-31T02:30", "2027-06-01T09:00"]
)
@pytest.mark.parametrize("text", ["FREQ=HOURLY;INTERVAL=5", "FREQ=DAILY"])
def test_shown_start_tells_two_equal_times_apart(text: str, start: str, overlap: Overlap) -> None:
    asked = read_rule(text, 0, Terms(start=start, zone="Europe/Berlin", overlap=overlap))
    fields = fields_of(asked)
    again = read_rule(text, 0, Terms(start=str(fields["start"]), zone="Europe/Berlin", overlap=overlap))
    assert first(again, 3) == first(asked, 3)


ICS = """BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;VALUE=DATE:20261224
DTEND;VALUE=DATE:20261227
SUMMARY:Christ
 mas
END:VEVENT
BEGIN:VEVENT
DTSTART;VALUE=DATE:20260501
RRULE:FREQ=YEARLY;COUNT=2
END:VEVENT
BEGIN:VEVENT
DTSTART:20260303T100000Z
DTEND:20260303T110000Z
END:VEVENT
END:VCALENDAR
"""


def test_quoted_texts_are_escaped_and_then_shortened() -> None:
    assert quoted("x" * 48) == repr("x" * 48)
    assert quoted("x" * 49) == repr("x" * 45 + "...")
    assert quoted("it's\n") == repr("it's\n")
    assert len(quoted("\x1f\U00011747" * 10)) == 50


def days(*dates: str) -> tuple[int, ...]:
    return tuple(wall(f"{date}T000000") // 86_400 for date in dates)


def ics(*events: str) -> str:
    body = "".join(f"BEGIN:VEVENT\n{event}\nEND:VEVENT\n" for event in events)
    return f"BEGIN:VCALENDAR\n{body}END:VCALENDAR\n"


def test_calendars() -> None:
    assert parse_calendar(ICS) == days("20260303", "20260501", "20261224", "20261225", "20261226", "20270501")
    listed = "# holidays\n2026-12-25\n20261226, 2027-01-01  # and the new year\n\n"
    assert parse_calendar(listed) == days("20261225", "20261226", "20270101")
    for text, advice in (("2026-12-25T10:00", "has a time"), ("x", "line 1"), ("\n2026-02-30", "line 2")):
        with pytest.raises(Invalid, match=advice):
            parse_calendar(text)
    with pytest.raises(Invalid, match="has no DTSTART"):
        parse_calendar(ics("SUMMARY:x"))
    with pytest.raises(Invalid, match="split it"):
        parse_calendar(ics("DTSTART:20260101\nRRULE:FREQ=DAILY"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-25\n25.12.2026", "line 2: '25.12.2026' is not a time: write a date such as 2026-12-25"),
        ("2026-02-30", "line 1: '2026-02-30' is not a valid date"),
        ("2026-12-25T10:00", "line 1: '2026-12-25T10:00' has a time of day: write a date such as 2026-12-25"),
        (ics("DTSTART:Christmas"), "line 3: DTSTART: 'Christmas' is not a time: write a date such as 20261225"),
        (ics("SUMMARY:a\n  folded\nDTSTART:20261225\nDTEND:x"), "line 6: DTEND: 'x' is not a time"),
        (ics("DTSTART:20261225\nEXDATE:20261226,y"), "line 4: EXDATE: 'y' is not a time"),
        (ics("DTSTART:20261225\nDURATION:2 days"), "line 4: DURATION: '2 days' is not a duration: write one such"),
        (ics("DTSTART:20261225\nRRULE:FREQ=HOURLY"), "line 4: RRULE: 'FREQ=HOURLY' repeats within a day: use DAILY"),
        (ics("DTSTART:20261225\nRRULE:YEARLY"), "line 4: RRULE: 'YEARLY' is not NAME=VALUE"),
        (ics("SUMMARY:x"), "line 2: an event has no DTSTART"),
    ],
)
def test_invalid_date_in_a_calendar_is_refused_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_calendar(text, "ics")
    assert caught.value.field == "ics"
    assert caught.value.detail.startswith(expected)


def test_times_in_lists_are_sorted_and_unique() -> None:
    asked = read_rule(
        "FREQ=DAILY", NOW, Terms(start="2027-01-01", rdates=["2027-01-05T10:00", "2027-01-03T10:00", "20270105T100000"])
    )
    assert asked.added == (Moment(wall("20270103T100000"), "local"), Moment(wall("20270105T100000"), "local"))


EDGES = ["FREQ=DAILY", "FREQ=YEARLY", "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1", "FREQ=WEEKLY;BYDAY=MO;BYSETPOS=1"]
EDGES += ["FREQ=HOURLY;INTERVAL=5;BYHOUR=1,2,3,20", "FREQ=SECONDLY;INTERVAL=7;BYHOUR=3", "FREQ=HOURLY;INTERVAL=7"]


@pytest.mark.parametrize("text", EDGES)
def test_first_and_last_start(text: str) -> None:
    first_day = read_rule(text, NOW, Terms(start="1970-01-01T00:00:00Z", zone="America/New_York"))
    assert 0 <= first(first_day, 1)[0] <= 40 * 86_400 or text == "FREQ=YEARLY"
    last_days = read_rule(text, NOW, Terms(start="2999-11-30T10:00:00", zone="Europe/Berlin"))
    assert first(last_days, 1)[0] >= wall("29991130T090000")
    for start in ("3000-01-01", "3500-12-25T10:00:00", "9998-12-25T10:00:00"):
        with pytest.raises(Invalid, match="when every rule ends"):
            read_rule(text, NOW, Terms(start=start, zone="Europe/Berlin"))
        with pytest.raises(Invalid, match="when every rule ends"):
            read_cron("0 9 * * *", NOW, Terms(start=start))


def test_rdates_before_the_start_do_not_count() -> None:
    past, future = "2020-01-01T00:00:00Z", "2026-11-16T12:00:40Z"
    asked = read_rule("FREQ=DAILY", NOW, Terms(rdates=[past, future]))
    assert first(asked, 2) == [wall("20261116T120040"), wall("20261117T120000")]
    cron = read_cron("0 9 * * *", NOW, Terms(start="2026-11-20", rdates=[past, future]))
    assert first(cron, 1) == [wall("20261120T090000")]


def test_an_end_on_a_day_that_the_zone_skipped_is_the_end_of_the_day_before() -> None:
    terms = Terms("2011-12-28T09:00:00", "Pacific/Apia")
    apia = read_rule("FREQ=DAILY;UNTIL=20111230", NOW, terms)
    cron = read_cron("0 9 * * *", NOW, msgspec.structs.replace(terms, until="2011-12-30"))
    for asked in (apia, cron):
        assert compiled(asked).at(2) == wall("20111229T190000")
        assert compiled(asked).at(3) is None


def test_lists_in_the_text_and_in_the_fields_share_a_limit() -> None:
    dates = [f"20270101T{hour:02}{minute:02}00" for hour in range(6) for minute in range(60)]
    text = f"RRULE:FREQ=DAILY\nRDATE:{','.join(dates)}\nEXDATE:{','.join(dates)}"
    later = [f"2028{date[4:]}" for date in dates]
    for more in (Terms(rdates=later), Terms(exdates=later)):
        with pytest.raises(Invalid, match="has 720 times with those in the text of the rule: at most 500"):
            read_rule(text, NOW, more)
    assert len(read_rule(text, NOW, Terms(rdates=dates[:140])).added) == 360


def test_calendar_events_with_exceptions() -> None:
    weekly = "UID:w\nDTSTART:20270104\nRRULE:FREQ=WEEKLY;COUNT=4\nEXDATE:20270111\nRDATE:20270105,20270106"
    assert parse_calendar(ics(weekly)) == days("20270104", "20270105", "20270106", "20270118", "20270125")
    moved = "UID:w\nRECURRENCE-ID:20270118\nDTSTART:20270119"
    gone = "UID:w\nRECURRENCE-ID:20270125\nDTSTART:20270125\nSTATUS:CANCELLED"
    assert parse_calendar(ics(moved, weekly, gone)) == days("20270104", "20270105", "20270106", "20270119")
    assert parse_calendar(ics("DTSTART:20270104\nSTATUS:CANCELLED")) == ()
    assert parse_calendar(ics("DTSTART:20270104\nDURATION:P2D")) == days("20270104", "20270105")
    alarm = "DTSTART:20270104T220000\nDURATION:PT3H\nBEGIN:VALARM\nDURATION:P9D\nEND:VALARM\nSUMMARY:x"
    assert parse_calendar(ics(alarm)) == days("20270104", "20270105")


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        ("DTSTART:20270104\nEXRULE:FREQ=DAILY", "EXRULE"),
        ("DTSTART:20270104\nRECURRENCE-ID;RANGE=THISANDFUTURE:20270104", "RANGE"),
        ("DTSTART:20270104\nDURATION:2 days", "write one such as P2D"),
        ("DTSTART:20270104\nRRULE:FREQ=HOURLY", "repeats within a day"),
        ("DTSTART:20270104\nRRULE:FREQ=DAILY", "has 7,321 days.*end its rules with UNTIL"),
        ("DTSTART:20270104\nRRULE:FREQ=DAILY;COUNT=5001", "has 5,001 days"),
        ("DTSTART:20200101\nDTEND:20330901\nRRULE:FREQ=DAILY;COUNT=3000", "has 7,991 days"),
    ],
)
def test_unsupported_calendars_are_refused(event: str, advice: str) -> None:
    with pytest.raises(Invalid, match=advice):
        parse_calendar(ics(event))


def test_truncated_file_is_refused() -> None:
    whole = ics("DTSTART:20270104", "DTSTART:20270105\nBEGIN:VALARM\nEND:VALARM")
    assert parse_calendar(whole) == days("20270104", "20270105")
    assert parse_calendar(whole + whole) == days("20270104", "20270105")
    lines = whole.splitlines(keepends=True)
    for number in range(1, len(lines)):
        with pytest.raises(Invalid, match=r"is truncated: END:V(EVENT|CALENDAR) is missing"):
            parse_calendar("".join(lines[:number]))
    with pytest.raises(Invalid, match="END:VEVENT is missing"):
        parse_calendar("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20270104\nEND:VCALENDAR\n")
    assert parse_calendar("BEGIN:VCALENDAR\nEND:VCALENDAR\n") == ()


def test_recurring_events_are_expanded_around_today() -> None:
    [today] = days("20261116")
    weekends = parse_calendar(ics("DTSTART:20000101\nRRULE:FREQ=WEEKLY;BYDAY=SA,SU"), today=today)
    assert (weekends[0], len(weekends)) == (days("20251115")[0], 2_092)
    assert today + 19 * 365 < weekends[-1]
    feast = parse_calendar(ics("DTSTART:19700101\nRRULE:FREQ=YEARLY"), today=today)
    assert feast[:2] == days("20260101", "20270101")
    single = "DTSTART:20200101", "DTSTART:20600101"
    assert parse_calendar(ics(*single), today=today) == days("20200101", "20600101")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        ics(*["DTSTART:20200101\nRRULE:FREQ=DAILY;COUNT=5000"] * 100),
        ics(*["DTSTART:20200101\nDTEND:20261101\nRRULE:FREQ=DAILY;COUNT=2500"] * 3),
        ics(*["DTSTART:20200101\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"] * 5_000),
        ics("DTSTART:20200101\nEXDATE:" + ",".join(["20200101"] * 200_000)),
        "2026-12-25\n" * 180_000,
    ],
    ids=["daily", "long", "never", "excepted", "lines"],
)
def test_a_whole_calendar_has_one_budget(text: str) -> None:
    before = STEPS.taken
    with suppress(Invalid):
        assert len(parse_calendar(text)) <= 5_000
    assert STEPS.taken - before <= STEPS_MAX


@pytest.mark.parametrize(
    ("until", "written"),
    [
        ("2027-12-31", "20271231"),
        ("2027-12-31 09:00", "20271231T090000"),
        ("2027-12-31T09:00+01:00", "20271231T080000Z"),
    ],
)
def test_until_field_is_written_in_the_basic_form(until: str, written: str) -> None:
    assert read_rule("FREQ=DAILY", NOW, Terms(until=until)).rrule == f"FREQ=DAILY;UNTIL={written}"


@pytest.mark.parametrize("second", range(0, 60, 7))
@pytest.mark.parametrize("rrule", ["FREQ=SECONDLY;INTERVAL=20", "FREQ=DAILY", "FREQ=MINUTELY;INTERVAL=2;BYSECOND=0,30"])
def test_shown_fields_give_the_same_occurrences(rrule: str, second: int) -> None:
    now = NOW // 60_000_000 * 60_000_000 + second * 1_000_000 + 500_000
    asked = (read_rule(rrule, now, Terms(zone="Europe/Berlin")), read_cron("*/10 * * * * *", now))
    for sent in asked:
        shown = fields_of(sent)
        terms = Terms(str(shown["start"]), str(shown["zone"]))
        again = read_rule(rrule, now, terms) if isinstance(sent, Rule) else read_cron("*/10 * * * * *", now, terms)
        assert [compiled(again).at(n) for n in range(1, 9)] == [compiled(sent).at(n) for n in range(1, 9)]
