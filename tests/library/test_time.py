"""Rules, zones, calendars and previews in a Python program."""

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tidings
from tidings.config.settings import Dispatch
from tidings.domain.errors import Invalid
from tidings.domain.schedules.when import Cron, Local, Rule
from tidings.testing import SimulatedClock

START = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z
BERLIN = ZoneInfo("Europe/Berlin")
NINE = datetime(2026, 11, 21, 9)  # noqa: DTZ001 wall time
DECEMBER = datetime(2026, 12, 1, 9)  # noqa: DTZ001 wall time


async def test_rules_cron_and_local_times() -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        await t.schedule("t", "x", id="rule", rrule="FREQ=DAILY", start=NINE, zone=BERLIN, count=2)
        await t.schedule("t", "x", id="cron", cron="0 9 * * *", zone="Europe/Berlin", exdates=[date(2026, 11, 21)])
        await t.schedule("t", "x", id="local", at=DECEMBER, zone=BERLIN)
        found = [await t.find(one) for one in ("rule", "cron", "local")]
        assert [type(one.when) for one in found if one is not None] == [Rule, Cron, Local]
        assert [one.due_at for one in found if one is not None] == [
            datetime(2026, 11, 21, 8, tzinfo=UTC),
            datetime(2026, 11, 22, 8, tzinfo=UTC),
            datetime(2026, 12, 1, 8, tzinfo=UTC),
        ]


async def test_the_last_record_is_marked() -> None:
    clock = SimulatedClock(START)
    async with tidings.open(":memory:", clock=clock) as t:
        await t.schedule("t", "x", rrule="FREQ=HOURLY;COUNT=2", late="fire_all")
        clock.advance(timedelta(hours=2))
        records = []
        async for record in t.follow("t"):
            records.append(record)
            if len(records) == 2:
                break
        assert [record.final for record in records] == [False, True]


async def test_previews_store_nothing() -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        after = datetime(2027, 3, 27, tzinfo=UTC)
        rule = {"rrule": "FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "start": date(2027, 3, 27), "zone": "Europe/Berlin"}
        shown = await t.preview(after=after, limit=2, **rule)  # type: ignore[arg-type]
        assert [(one.occurrence, one.local, one.mark) for one in shown] == [
            (1, "2027-03-27T02:30:00+01:00", ""),
            (2, "2027-03-28T03:30:00+02:00", "moved"),
        ]
        assert shown[0].due_at == datetime(2027, 3, 27, 1, 30, tzinfo=UTC)
        plain = await t.preview(every="R3/PT1H")
        assert [one.occurrence for one in plain] == [1, 2, 3]
        assert [one async for one in t.list()] == []


async def test_a_preview_shows_past_moments_and_dst_changes() -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        past = await t.preview(every="R/2026-11-20T07:00:00Z/PT1H")
        assert (past.passed, past.more) == (2, True)
        assert past.note is not None
        assert past.note.startswith("2 occurrences have passed already; scheduled now, fire_latest (the default)")
        coming = await t.preview(rrule="FREQ=DAILY;COUNT=2", start="2026-11-21")
        assert (coming.passed, coming.note, coming.more) == (0, None, False)
        gone = await t.preview(at="2027-03-28 02:30", zone="Europe/Berlin", gap="skip")
        assert "does not exist on 2027-03-28" in (gone.note or "")


@pytest.mark.parametrize("option", [{"late": "skip"}, {"jitter": "5s"}, {"key": "k"}, {"labels": {"a": "b"}}])
async def test_a_preview_refuses_what_does_not_say_when(option: dict[str, Any]) -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        with pytest.raises(Invalid, match=f"{next(iter(option))}: does not affect when it is due"):
            await t.preview(every="PT1H", **option)


async def test_a_preview_uses_its_options() -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        with pytest.raises(Invalid, match="after: give an aware datetime"):
            await t.preview(every="PT1H", after="soon")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="after: "):
            await t.preview(every="PT1H", after=NINE)


async def test_calendars_pauses_and_replacements() -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        with pytest.raises(Invalid, match="calendar: there is no calendar 'off'"):
            await t.schedule("t", "x", rrule="FREQ=DAILY", calendar="off")
        with pytest.raises(Invalid, match="calendar: there is no calendar 'off'"):
            await t.replace("one", "t", "x", rrule="FREQ=DAILY", calendar="off")
        assert await t.put_calendar("off", []) == 0
        await t.schedule("t", "x", id="one", rrule="FREQ=DAILY", start="2026-11-21T09:00", calendar="off")
        assert await t.put_calendar("off", [date(2026, 11, 21)]) == 1
        found = await t.find("one")
        assert found is not None
        assert found.due_at == datetime(2026, 11, 22, 9, tzinfo=UTC)
        await t.pause("one")
        assert (await t.resume("one", missed="skip")).outcome == "resumed"
        assert (await t.replace("one", "t", "y", cron="@daily", keep_count=True)).outcome == "replaced"
        assert await t.drop_calendar("off")
        assert not await t.drop_calendar("off")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rrule": 5}, "rrule: give text, such as 'FREQ=WEEKLY"),
        ({"rrule": "FREQ=DAILY", "count": "3"}, "count: give a whole number from 1 on"),
        ({"rrule": "FREQ=DAILY", "count": True}, "count: give a whole number from 1 on"),
        ({"rrule": "FREQ=DAILY", "zone": 1}, "zone: give a ZoneInfo, or a name"),
        ({"rrule": "FREQ=DAILY", "start": 1}, "start: give a datetime, a date, or text"),
        ({"rrule": "FREQ=DAILY", "start": NINE.replace(microsecond=5)}, "start: has a fraction of a second"),
        ({"rrule": "FREQ=DAILY", "exdates": "2026-01-01"}, "exdates: give a list"),
        ({"rrule": "FREQ=DAILY", "zone": "nowhere"}, "zone: 'nowhere' is not a time zone"),
    ],
)
async def test_wrong_values_are_refused(options: dict[str, object], expected: str) -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        with pytest.raises(Invalid) as refused:
            await t.schedule("t", "x", **options)  # type: ignore[arg-type]
        assert str(refused.value).startswith(expected)
        with pytest.raises(Invalid, match="fire_all"):
            await t.resume("one", missed="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, 1_001, "10"])
async def test_a_preview_shows_as_many_as_over_http_at_most(limit: Any) -> None:
    async with tidings.open(":memory:", clock=SimulatedClock()) as t:
        for when in ({"every": "PT1H"}, {"cron": "0 * * * *"}):
            with pytest.raises(Invalid, match="limit: give a whole number from 1 to 1,000"):
                await t.preview(limit=limit, **when)  # type: ignore[arg-type]
            assert len(await t.preview(limit=1_000, **when)) == 1_000  # type: ignore[arg-type]
            assert len(await t.preview(limit=7, count=5, **when)) == 5  # type: ignore[arg-type]


async def test_previews_begin_after_a_moment() -> None:
    async with tidings.open(":memory:", clock=SimulatedClock(START)) as t:
        first = datetime(2027, 1, 1, tzinfo=UTC)
        for rule in ({"every": "R/2027-01-01T00:00:00Z/PT1H"}, {"cron": "0 * * * *", "zone": "UTC"}):
            [shown] = await t.preview(after=first, limit=1, **rule)  # type: ignore[arg-type]
            assert shown.due_at == first + timedelta(hours=1)


async def test_times_that_have_passed() -> None:
    clock = SimulatedClock(START)
    async with tidings.open(":memory:", clock=clock) as t:
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        assert (await t.schedule("t", "x", at=long_ago)).note == "due 6 years ago: sent now"
        outcome = await t.schedule("t", "x", at=long_ago, late_max=timedelta(hours=1))
        assert outcome.note == "due 6 years ago, will not be released: missed (late_max)"
        assert (await t.replace("other", "t", "x", at=long_ago)).note == "due 6 years ago: sent now"
        with pytest.raises(Invalid, match="at: is 6 years in the past"):
            await t.schedule("t", "x", at=long_ago, past="refuse")
        with pytest.raises(Invalid, match="past: give 'send' or 'refuse'"):
            await t.schedule("t", "x", past="maybe")  # type: ignore[arg-type]
        assert (await t.preview(at=long_ago)).note == "due 6 years ago: sent now"
    config = tidings.Config(dispatch=Dispatch(past="refuse"))
    async with tidings.open(":memory:", clock=clock, config=config) as t:
        with pytest.raises(Invalid, match="at: is 6 years in the past"):
            await t.schedule("t", "x", at=long_ago)
        assert (await t.schedule("t", "x", at=long_ago, past="send")).outcome == "scheduled"
