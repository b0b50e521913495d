"""Rules, zones, calendars and previews over HTTP."""

import json
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from tests.edges.http.site import NDJSON, Site
from tests.intake.test_rule_changes import renew, zones_of_old  # noqa: F401
from tidings.domain.recurrence import timezone

WEEKLY = {"rrule": "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "zone": "America/New_York"}


async def test_a_rule_is_scheduled_and_shown_as_it_was_sent(site: Site) -> None:
    sent = {"id": "report", "topic": "reports", **WEEKLY, "gap": "skip", "exdates": ["2027-01-04"], "value": "x"}
    made = await site.call("POST", "/v1/schedules", sent)
    assert (made.status, made.document["outcome"]) == (201, "scheduled")
    assert (await site.call("POST", "/v1/schedules", sent)).document["outcome"] == "unchanged"
    shown = (await site.call("GET", "/v1/schedules/report")).document
    assert (shown["rrule"], shown["zone"], shown["gap"]) == (WEEKLY["rrule"], WEEKLY["zone"], "skip")
    assert shown["exdates"] == ["2027-01-04"]
    assert "T09:00:00-0" in shown["due_at_local"]
    assert shown["tzdata"] == timezone.VERSION
    again = {name: shown[name] for name in ("rrule", "zone", "start", "gap", "exdates", "topic", "value")}
    assert (await site.call("POST", "/v1/schedules", again)).document["due_at"] == shown["due_at"]


async def test_a_local_time_and_cron(site: Site) -> None:
    local = {"topic": "t", "id": "hello", "at": "2030-03-31 02:30", "zone": "Europe/Berlin"}
    assert (await site.call("POST", "/v1/schedules", local)).document["due_at"] == "2030-03-31T01:30:00.000000Z"
    shown = (await site.call("GET", "/v1/schedules/hello")).document
    assert (shown["at"], shown["due_at_local"]) == ("2030-03-31T02:30:00", "2030-03-31T03:30:00+02:00")
    cron = {"topic": "t", "id": "ping", "cron": "*/5 9-17 * * MON-FRI", "zone": "Europe/Berlin", "count": 3}
    assert (await site.call("POST", "/v1/schedules", cron)).status == 201
    assert (await site.call("GET", "/v1/schedules/ping")).document["cron"] == cron["cron"]


async def test_refusals_name_the_field(site: Site) -> None:
    for fields, field in (
        ({"rrule": "FREQ=NEVER"}, "rrule"),
        ({"cron": "* *"}, "cron"),
        ({"rrule": "FREQ=DAILY", "zone": "Mars/Olympus"}, "zone"),
        ({"rrule": "FREQ=DAILY", "count": "3"}, "count"),
    ):
        reply = await site.call("POST", "/v1/schedules", {"topic": "t", **fields})
        assert reply.status == 400
        assert reply.problem["errors"][0]["field"] == field


GONE = {"at": "2030-03-31 02:30", "zone": "Europe/Berlin", "gap": "skip"}
NOTE = (
    "02:30 does not exist on 2030-03-31 in Europe/Berlin (clocks go from 02:00 to 03:00):"
    " it will be skipped and counted as missed (gap)"
)


async def test_a_local_time_in_a_dst_gap_is_accepted_with_a_note(site: Site) -> None:
    made = await site.call("POST", "/v1/schedules", {"topic": "t", "id": "gone", **GONE})
    assert (made.status, made.document["outcome"]) == (201, "scheduled")
    assert (made.document["due_at"], made.document["note"]) == ("2030-03-31T01:30:00.000000Z", NOTE)
    for path in ("/v1/schedules/gone", "/v1/schedules/gone/explain"):
        shown = (await site.call("GET", path)).document
        assert (shown["state"], shown["gap"], shown["note"]) == ("pending", "skip", NOTE)
    [listed] = (await site.call("GET", "/v1/schedules")).document["schedules"]
    assert listed["note"] == NOTE
    seen = (await site.call("POST", "/v1/preview", GONE)).document
    assert seen["moments"] == [{"due_at_local": "2030-03-31T02:30:00", "mark": "skipped"}]
    assert seen["note"] == NOTE
    moved = (await site.call("POST", "/v1/preview", GONE | {"gap": "forward"})).document["moments"]
    assert [(m["due_at_local"], m["mark"]) for m in moved] == [("2030-03-31T03:30:00+02:00", "moved")]


async def test_a_past_local_time_in_a_gap_is_missed_at_once(site: Site) -> None:
    past = {"topic": "t", "id": "gone", "at": "2020-03-29 02:30", "zone": "Europe/Berlin", "gap": "skip"}
    made = (await site.call("POST", "/v1/schedules", past)).document
    assert (made["outcome"], made["due_at"]) == ("scheduled", "2020-03-29T01:30:00.000000Z")
    assert "2020-03-29 in Europe/Berlin" in made["note"]
    await site.state_of("gone", "missed")
    shown = (await site.call("GET", "/v1/schedules/gone/explain")).document
    assert (shown["reason"], shown["history"][-1]["reason"]) == ("gap", "gap")
    assert b'tidings_missed_total{reason="gap"} 1' in (await site.call("GET", "/metrics")).body


async def test_a_start_that_is_the_second_of_two_equal_times_is_noted(site: Site) -> None:
    start = {"zone": "Europe/Berlin", "start": "2030-10-27T02:30:00+01:00"}
    for rule in ({"rrule": "FREQ=DAILY"}, {"cron": "30 2 * * *"}):
        seen = (await site.call("POST", "/v1/preview", rule | start | {"after": "2030-10-27"})).document
        assert seen["moments"][0]["due_at_local"] == "2030-10-28T02:30:00+01:00"
        assert "2030-10-27 02:30 exists twice in Europe/Berlin (DST overlap)" in seen["note"]
        made = (await site.call("POST", "/v1/schedules", {"topic": "t", **rule, **start})).document
        assert (made["due_at"], made["note"]) == ("2030-10-28T01:30:00.000000Z", seen["note"])
        for more in ({"overlap": "second"}, {"overlap": "both"}, {"start": "2030-10-27T02:30:00+02:00"}):
            preview = (await site.call("POST", "/v1/preview", rule | start | more | {"after": "2030-10-27"})).document
            assert "note" not in preview
            assert preview["moments"][0]["due_at_local"].startswith("2030-10-27T02:30:00")


async def test_a_cron_expression_without_seconds_begins_with_a_minute(site: Site) -> None:
    for expression, whole in (("*/5 * * * *", True), ("*/5 * * * * *", False)):
        body = {"topic": "t", "id": expression.replace("/", "-"), "cron": expression, "zone": "Europe/Berlin"}
        made = (await site.call("PUT", f"/v1/schedules/{quote(body['id'])}", body)).document
        shown = (await site.call("GET", f"/v1/schedules/{quote(body['id'])}")).document
        assert not whole or shown["start"][16:19] == ":00"
        again = {"cron": expression, "zone": shown["zone"], "start": shown["start"], "after": shown["accepted_at"]}
        assert (await site.call("POST", "/v1/preview", again)).document["moments"][0]["due_at"] == made["due_at"]


async def test_an_interval_shows_what_clocks_of_its_zone_show(site: Site) -> None:
    asked = {"every": "P1D", "start": "2030-10-26", "zone": "Europe/Berlin", "after": "2030-10-01T00:00:00Z"}
    moments = (await site.call("POST", "/v1/preview", asked | {"count": 3})).document["moments"]
    assert [(m["due_at"], m["due_at_local"]) for m in moments] == [
        ("2030-10-25T22:00:00.000000Z", "2030-10-26T00:00:00+02:00"),
        ("2030-10-26T22:00:00.000000Z", "2030-10-27T00:00:00+02:00"),
        ("2030-10-27T22:00:00.000000Z", "2030-10-27T23:00:00+01:00"),
    ]


async def test_a_rdate_that_clocks_jump_over_is_marked(site: Site) -> None:
    asked = {"cron": "0 9 * * *", "zone": "Europe/Berlin", "rdates": ["2030-03-31T02:30"], "gap": "skip"}
    seen = (await site.call("POST", "/v1/preview", asked | {"after": "2030-03-31", "count": 1})).document["moments"]
    assert [m.get("mark") for m in seen] == ["skipped", None]


async def test_the_due_time_of_an_answer_is_the_time_of_release(site: Site) -> None:
    past = {"topic": "t", "id": "one", "rrule": "FREQ=YEARLY", "start": "2020-05-01T09:00", "late": "skip"}
    made = (await site.call("POST", "/v1/schedules", past)).document
    assert made["due_at"] > "2026-11"
    assert (await site.call("GET", "/v1/schedules/one")).document["due_at"] == made["due_at"]


async def test_an_end_before_the_start_is_refused(site: Site) -> None:
    for rule in ({"rrule": "FREQ=DAILY"}, {"cron": "0 9 * * *"}):
        asked = {"topic": "t", **rule, "start": "2030-05-01T09:00", "until": "2030-04-01"}
        reply = await site.call("POST", "/v1/schedules", asked)
        assert (reply.status, reply.problem["errors"][0]["field"]) == (400, "until")


async def test_lines_hold_rules_too(site: Site) -> None:
    lines = [{"topic": "t", **WEEKLY}, {"topic": "t", "rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, {"topic": "t"}]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    reply = await site.call("POST", "/v1/schedules", data=body, headers=NDJSON)
    assert [line["outcome"] for line in reply.lines] == ["scheduled", "rejected", "scheduled"]
    assert reply.lines[1]["errors"][0]["field"] == "rrule"


async def test_previews_mark_what_clock_changes_do(site: Site) -> None:
    asked = {"rrule": "FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "zone": "Europe/Berlin", "start": "2027-03-27T00:00"}
    reply = await site.call("POST", "/v1/preview", asked | {"after": "2027-03-27T00:00:00Z", "count": 3})
    assert [(m["occurrence"], m["due_at_local"], m.get("mark")) for m in reply.document["moments"]] == [
        (1, "2027-03-27T02:30:00+01:00", None),
        (2, "2027-03-28T03:30:00+02:00", "moved"),
        (3, "2027-03-29T02:30:00+02:00", None),
    ]
    assert reply.document["more"]
    skipped = await site.call(
        "POST", "/v1/preview", asked | {"gap": "skip", "after": "2027-03-27T00:00:00Z", "count": 2}
    )
    assert skipped.document["moments"][1] == {"due_at_local": "2027-03-28T02:30:00", "mark": "skipped"}
    assert skipped.document["moments"][2]["occurrence"] == 2
    twice = {"at": "2027-10-31 02:30", "zone": "Europe/Berlin", "overlap": "both"}
    marks = [m["mark"] for m in (await site.call("POST", "/v1/preview", twice)).document["moments"]]
    assert marks == ["first", "second"]


async def test_previews_follow_a_local_time_or_a_date(site: Site) -> None:
    asked = {"cron": "0 0 * * *", "zone": "Europe/Berlin", "count": 1}
    for after, first in (
        ("2027-03-27", "2027-03-28T00:00:00+01:00"),  # a date is its midnight, which is not after itself
        ("2027-03-26T23:00:00Z", "2027-03-28T00:00:00+01:00"),
        ("2027-03-26T22:59:59.999999Z", "2027-03-27T00:00:00+01:00"),
        ("2027-03-28 02:30", "2027-03-29T00:00:00+02:00"),
        ("2027-03-27T23:00:00.5Z", "2027-03-29T00:00:00+02:00"),
    ):
        moments = (await site.call("POST", "/v1/preview", asked | {"after": after})).document["moments"]
        assert moments[0]["due_at_local"] == first
    hourly = {"every": "R/2027-03-27T00:00:00Z/PT1H", "count": 1, "after": "2027-03-27T05:00:00Z"}
    [moment] = (await site.call("POST", "/v1/preview", hourly)).document["moments"]
    assert (moment["occurrence"], moment["due_at"]) == (7, "2027-03-27T06:00:00.000000Z")
    refused = await site.call("POST", "/v1/preview", asked | {"after": "soon"})
    assert (refused.status, refused.problem["errors"][0]["field"]) == (400, "after")


async def test_calendars(site: Site) -> None:
    assert (await site.call("GET", "/v1/calendars")).document == {"calendars": []}
    kept = await site.call("PUT", "/v1/calendars/off", {"dates": ["2027-12-25", "2027-12-26"]})
    assert kept.document == {"name": "off", "days": 2, "moved": 0}
    asked = {"cron": "0 9 25 12 *", "calendar": "off", "on_excluded": "next_day", "after": "2027-12-01T00:00:00Z"}
    moments = (await site.call("POST", "/v1/preview", asked | {"count": 1})).document["moments"]
    assert moments[0]["due_at"] == "2027-12-27T09:00:00.000000Z"
    ics = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20271225\nEND:VEVENT\nEND:VCALENDAR\n"
    assert (await site.call("PUT", "/v1/calendars/off", {"ics": ics})).document["days"] == 1
    shown = (await site.call("GET", "/v1/calendars/off")).document
    assert (shown["dates"], shown["days"]) == (["2027-12-25"], 1)
    assert (await site.call("DELETE", "/v1/calendars/off")).document["dropped"] is True
    for method in ("GET", "DELETE"):
        assert (await site.call(method, "/v1/calendars/off")).status == 404


async def test_a_schedule_with_a_deleted_calendar_has_a_note(site: Site) -> None:
    await site.call("PUT", "/v1/calendars/off", {"dates": ["2030-05-01"]})
    await site.call("POST", "/v1/schedules", {"topic": "t", "id": "one", **WEEKLY, "calendar": "off"})
    assert "note" not in (await site.call("GET", "/v1/schedules/one")).document
    await site.call("DELETE", "/v1/calendars/off")
    note = "the calendar 'off' was deleted: no days are excluded until it is stored again"
    shown = await site.call("GET", "/v1/schedules/one")
    assert (shown.document["calendar"], shown.document["note"]) == ("off", note)
    assert (await site.call("GET", "/v1/schedules/one/explain")).document["note"] == note
    mine = {"If-Match": shown.headers["ETag"]}
    assert (await site.call("DELETE", "/v1/schedules/one", headers=mine)).status == 200


async def test_a_calendar_without_days_is_stored_with_a_note(site: Site) -> None:
    kept = await site.call("PUT", "/v1/calendars/off", {"dates": []})
    assert kept.document["days"] == 0
    assert "it has no days" in kept.document["note"]
    cut = await site.call("PUT", "/v1/calendars/off", {"ics": "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20270104\n"})
    assert (cut.status, cut.problem["errors"][0]["field"]) == (400, "ics")


async def test_a_calendar_that_excludes_every_occurrence_is_a_bad_request(site: Site) -> None:
    await site.call("PUT", "/v1/calendars/off", {"dates": ["2030-05-01"]})
    asked = {"topic": "t", "rrule": "FREQ=YEARLY;COUNT=1", "start": "2030-05-01T09:00", "calendar": "off"}
    reply = await site.call("POST", "/v1/schedules", asked)
    assert (reply.status, reply.problem["errors"][0]["field"]) == (400, "calendar")
    assert "leaves no occurrence" in reply.problem["detail"]


async def test_invalid_calendars_are_refused(site: Site) -> None:
    for body, field in (
        ({}, "dates"),
        ({"dates": [], "ics": ""}, "dates"),
        ({"dates": ["2027-13-01"]}, "dates"),
        ({"dates": ["2027-12-25T09:00"]}, "dates"),
        ({"days": []}, "days"),
    ):
        reply = await site.call("PUT", "/v1/calendars/off", body)
        assert (reply.status, reply.problem["errors"][0]["field"]) == (400, field)
    assert (await site.call("PUT", "/v1/calendars/a%20b", {"dates": []})).status == 400


async def test_a_schedule_with_an_unknown_calendar_is_refused(site: Site) -> None:
    asked = {"topic": "t", "rrule": "FREQ=DAILY", "calendar": "off"}
    for method, path in (("POST", "/v1/schedules"), ("PUT", "/v1/schedules/one")):
        reply = await site.call(method, path, asked)
        assert reply.status == 400
        [error] = reply.problem["errors"]
        assert error["field"] == "calendar"
        assert error["detail"].startswith("there is no calendar 'off'")
    keyed = await site.call("POST", "/v1/schedules", asked, headers={"idempotency-key": "k"})
    again = await site.call("POST", "/v1/schedules", asked, headers={"idempotency-key": "k"})
    assert keyed.problem == again.problem
    body = "\n".join(json.dumps(line) for line in ({"topic": "t"}, asked | {"id": "one"})).encode()
    [taken, refused] = (await site.call("POST", "/v1/schedules", data=body, headers=NDJSON)).lines
    assert taken["outcome"] == "scheduled"
    assert (refused["id"], refused["outcome"], refused["line"]) == ("one", "rejected", 2)
    assert refused["errors"][0]["field"] == "calendar"
    assert (await site.call("POST", "/v1/preview", {"rrule": "FREQ=DAILY", "calendar": "off"})).status == 400


async def test_a_changed_calendar_moves_what_is_pending(site: Site) -> None:
    await site.call("PUT", "/v1/calendars/off", {"dates": []})
    rule = {"topic": "t", "id": "one", "rrule": "FREQ=YEARLY", "start": "2030-05-01T09:00", "calendar": "off"}
    await site.call("POST", "/v1/schedules", rule)
    assert (await site.call("PUT", "/v1/calendars/off", {"dates": ["2030-05-01"]})).document["moved"] == 1
    shown = (await site.call("GET", "/v1/schedules/one")).document
    assert (shown["due_at"], shown["calendar"]) == ("2031-05-01T09:00:00.000000Z", "off")
    [moved] = (await site.call("GET", "/v1/tzdata")).document["moved"]
    assert (moved["id"], moved["before"], moved["cause"]) == ("one", "2030-05-01T09:00:00.000000Z", "calendar off")
    events = (await site.call("GET", "/v1/schedules/one/explain")).document["history"]
    assert (events[-1]["event"], events[-1]["due_at"]) == ("moved", "2031-05-01T09:00:00.000000Z")
    assert events[-1]["reason"] == "calendar off, from 2030-05-01T09:00:00.000000Z"


async def test_tzdata(site: Site) -> None:
    await site.call("POST", "/v1/schedules", {"topic": "t", **WEEKLY})
    shown = (await site.call("GET", "/v1/tzdata")).document
    assert shown["version"] == timezone.VERSION
    assert shown["zones"] == [{"name": "America/New_York", "version": timezone.VERSION, "changed": False}]
    applied = (await site.call("POST", "/v1/tzdata")).document
    assert applied == {"version": timezone.VERSION, "changed": [], "moved": 0, "movements": []}


async def test_the_answer_to_apply_lists_what_it_moved(site: Site, zones_of_old: pytest.MonkeyPatch) -> None:  # noqa: F811
    await site.call("PUT", "/v1/calendars/off", {"dates": []})
    rule = {"topic": "t", "id": "other", "rrule": "FREQ=YEARLY", "start": "2030-05-01T09:00", "calendar": "off"}
    await site.call("POST", "/v1/schedules", rule)
    await site.call("PUT", "/v1/calendars/off", {"dates": ["2030-05-01"]})
    local = {"topic": "t", "id": "local", "at": "2030-12-01 09:00", "zone": "Europe/Berlin"}
    await site.call("POST", "/v1/schedules", local)
    renew(zones_of_old)
    applied = (await site.call("POST", "/v1/tzdata")).document
    assert (applied["changed"], applied["moved"]) == (["Europe/Berlin"], 1)
    [moved] = applied["movements"]
    assert (moved["id"], moved["before"]) == ("local", "2030-12-01T09:00:00.000000Z")
    assert (moved["after"], moved["zone"]) == ("2030-12-01T08:00:00.000000Z", "Europe/Berlin")
    assert moved["after_local"] == "2030-12-01T09:00:00+01:00"
    assert (await site.call("POST", "/v1/tzdata")).document["movements"] == []
    assert len((await site.call("GET", "/v1/tzdata")).document["moved"]) == 2


async def test_an_ended_schedule_shows_its_rule(site: Site) -> None:
    rule = {"topic": "t", "id": "one", "rrule": "FREQ=DAILY;COUNT=2", "start": "2020-01-01T09:00", "late": "fire_all"}
    await site.call("POST", "/v1/schedules", rule | {"zone": "Europe/Berlin"})
    await site.state_of("one", "ended")
    shown = await site.call("GET", "/v1/schedules/one")
    assert shown.document["reason"] == "rrule FREQ=DAILY;COUNT=2 in Europe/Berlin"
    anew = {"If-Match": shown.headers["ETag"]}
    assert (await site.call("PUT", "/v1/schedules/one?reuse=true", {"topic": "t"}, headers=anew)).status == 201


async def test_resume_with_a_choice(site: Site) -> None:
    await site.call("POST", "/v1/schedules", {"topic": "t", "id": "one", **WEEKLY})
    await site.call("POST", "/v1/schedules/one/pause")
    assert (await site.call("POST", "/v1/schedules/one/resume?missed=never")).status == 400
    refused = await site.call("POST", "/v1/schedules/one/resume", {"missed": "skip"})
    assert (refused.status, refused.problem["errors"][0]["field"]) == (400, "body")
    assert "?missed=skip" in refused.problem["detail"]
    assert (await site.call("POST", "/v1/schedules/one/resume?missed=skip")).document["outcome"] == "resumed"


async def test_replace_can_keep_the_count(site: Site) -> None:
    body = {"topic": "t", "rrule": "FREQ=SECONDLY;COUNT=3", "start": "2020-01-01T00:00:00", "late": "fire_all"}
    await site.call("POST", "/v1/schedules", {"id": "one", **body})
    await site.state_of("one", "ended")
    again = {"topic": "t", "rrule": "FREQ=DAILY;COUNT=3"}
    refused = await site.call("PUT", "/v1/schedules/one?keep_count=true&reuse=true", again)
    assert refused.status == 400
    assert "the schedule under this id has finished" in str(refused.problem)
    assert (await site.call("PUT", "/v1/schedules/one?reuse=true", again)).status == 201
    single = {"topic": "t", "at": "2030-01-01T00:00:00Z"}
    assert (await site.call("PUT", "/v1/schedules/one?keep_count=true", single)).status == 400
    other = {"topic": "t", "rrule": "FREQ=DAILY;COUNT=4"}
    assert (await site.call("PUT", "/v1/schedules/one?keep_count=true", other)).document["outcome"] == "replaced"


async def test_a_calendar_moves_nothing_beyond_the_horizon(site: Site) -> None:
    first = date(2027, 1, 1)
    await site.call("PUT", "/v1/calendars/off", {"dates": [str(first + timedelta(day)) for day in range(5_000)]})
    asked = {"topic": "t", "rrule": "FREQ=YEARLY", "start": "2027-01-02T09:00", "calendar": "off"}
    reply = await site.call("POST", "/v1/schedules", asked | {"on_excluded": "next_day"})
    assert (reply.status, reply.problem["errors"][0]["field"]) == (400, "calendar")
    assert "horizon" in reply.problem["detail"]


async def test_all_wrong_fields_are_reported_at_once(site: Site) -> None:
    asked: dict[str, Any] = {"rrule": "FREQ=DAILY;BYHOUR=25", "zone": "Europe/Berln", "start": "soon", "gap": "jump"}
    asked |= {"until": "2027-02-30", "calendar": "a b", "exdates": ["2027-01-01", "x"]}
    for path, more in (("/v1/schedules", {"topic": "t"}), ("/v1/preview", {})):
        reply = await site.call("POST", path, asked | more)
        assert reply.status == 400
        details = {error["field"]: error["detail"] for error in reply.problem["errors"]}
        assert set(details) == set(asked)
        assert "BYHOUR: '25' must be" in details["rrule"]
        assert "Europe/Berlin" in details["zone"]
        assert details["gap"] == "'jump' is not known: use forward or skip"
        assert all(f"{field}: {detail}" in reply.problem["detail"] for field, detail in details.items())
    counted = await site.call("POST", "/v1/schedules", {"topic": "t", "cron": "61 * * * *", "count": 0})
    assert [error["field"] for error in counted.problem["errors"]] == ["cron", "count"]
    lines = await site.call("POST", "/v1/schedules", [{"topic": "t", "cron": "x", "overlap": "third"}])
    assert {error["field"] for error in lines.document[0]["errors"]} == {"cron", "overlap"}


@pytest.mark.parametrize("field", ["late", "jitter", "topic", "value"])
async def test_a_preview_refuses_other_fields_of_a_schedule_with_the_reason(site: Site, field: str) -> None:
    reply = await site.call("POST", "/v1/preview", {"rrule": "FREQ=DAILY", field: "skip"})
    [error] = reply.problem["errors"]
    assert (reply.status, error["field"]) == (400, field)
    assert error["detail"].startswith("does not affect when it is due: a preview has only")


async def test_the_length_of_a_preview_is_not_the_count_of_a_rule(site: Site) -> None:
    rule = {"rrule": "FREQ=DAILY;COUNT=5", "count": 3}
    shown = (await site.call("POST", "/v1/preview", rule)).document
    assert ([moment["occurrence"] for moment in shown["moments"]], shown["more"]) == ([1, 2, 3], True)
    whole = (await site.call("POST", "/v1/preview", rule | {"count": 1_000})).document
    assert ([moment["occurrence"] for moment in whole["moments"]], whole["more"]) == ([1, 2, 3, 4, 5], False)


async def test_a_recurring_schedule_shows_its_jitter(site: Site) -> None:
    every = {"topic": "t", "id": "spread", "every": "R/2030-01-01T00:00:00Z/PT1H", "jitter": "10m"}
    made = await site.call("POST", "/v1/schedules", every)
    shown = (await site.call("GET", "/v1/schedules/spread")).document
    assert (shown["jitter"], shown["every"]) == ("PT10M", "R/2030-01-01T00:00:00.000000Z/PT1H")
    assert "2030-01-01T00:00:00" < shown["due_at"] == made.document["due_at"] < "2030-01-01T00:10:01"
    again = {name: shown[name] for name in ("topic", "every", "jitter")}
    assert (await site.call("PUT", "/v1/schedules/spread", again)).document["due_at"] == shown["due_at"]
