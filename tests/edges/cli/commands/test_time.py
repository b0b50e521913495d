"""Rules, zones, calendars and previews on the command line."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.edges.cli.conftest import Cli
from tests.intake.test_rule_changes import renew, zones_of_old  # noqa: F401
from tidings.domain.recurrence.timezone import check_zone
from tidings.edges.cli.commands.schedule import machine_zone
from tidings.edges.cli.exit_codes import Failure, program

WEEKLY = ("--rrule", "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "--zone", "America/New_York")


def test_schedule_takes_rules_cron_and_local_times(cli: Cli) -> None:
    made = cli.json("schedule", "--to", cli.topic, *WEEKLY, "--count", "5", "--exdate", "2027-01-04", "x")
    shown = cli.json("show", made["id"])
    assert shown["zone"] == "America/New_York"
    assert "COUNT=5" in shown["rrule"]
    made = cli.json("schedule", "--to", cli.topic, "--cron", "*/5 9-17 * * MON-FRI", "--zone", "Europe/Berlin", "x")
    assert cli.json("show", made["id"])["cron"] == "*/5 9-17 * * MON-FRI"
    local = ("--at", "2030-03-31 02:30", "--zone", "Europe/Berlin")
    assert cli.json("schedule", "--to", cli.topic, *local, "x")["due_at"] == "2030-03-31T01:30:00.000000Z"


@pytest.mark.parametrize("command", ["schedule", "replace", "preview"])
def test_a_relative_day_is_read_in_the_time_zone_given(cli: Cli, command: str) -> None:
    at = ("--at", "tomorrow 09:00", "--zone", "Pacific/Auckland")
    done = cli(*relative(cli, command), *at, "--json")
    assert (done.code, done.err) == (0, "")
    due = due_of(json.loads(done.out))
    assert (due.hour, due.minute) == (9, 0)
    assert due.date() == datetime.now(due.tzinfo).date() + timedelta(days=1)


@pytest.mark.parametrize("command", ["schedule", "replace", "preview"])
def test_without_a_zone_it_is_that_of_this_machine(cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ":Pacific/Auckland")
    done = cli(*relative(cli, command), "--at", "monday 9:00", "--json")
    assert done.code == 0
    note = "'monday 9:00' is read in Pacific/Auckland, the time zone of this machine; --zone gives another"
    assert done.err == f"note: {note}\n"
    due = due_of(json.loads(done.out))
    assert (due.weekday(), due.hour) == (0, 9)
    assert timedelta(0) < due - datetime.now(UTC) <= timedelta(days=7, hours=1)


def relative(cli: Cli, command: str) -> tuple[str, ...]:
    """The arguments of a command, without its time."""
    match command:
        case "schedule":
            return (command, "--to", cli.topic, "x")
        case "replace":
            return (command, cli.topic, "--create", "--to", cli.topic, "x")
        case _:
            return (command,)


def due_of(document: dict[str, Any]) -> datetime:
    moment = document["moments"][0] if "moments" in document else document
    return datetime.fromisoformat(moment["due_at"]).astimezone(ZoneInfo("Pacific/Auckland"))


def test_the_time_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert machine_zone() == "Europe/Berlin"
    zone = tmp_path / "usr" / "zoneinfo" / "America" / "New_York"
    zone.parent.mkdir(parents=True)
    zone.touch()
    (tmp_path / "localtime").symlink_to(zone)
    monkeypatch.setenv("TZ", f":{tmp_path}/localtime")
    assert machine_zone() == "America/New_York"
    monkeypatch.setenv("TZ", "XYZ-3")
    with pytest.raises(Failure, match="the time zone of this machine, 'XYZ-3' in TZ, is not known: give one with"):
        machine_zone()
    monkeypatch.delenv("TZ")
    check_zone(machine_zone())


def test_a_zone_that_is_not_known_is_refused_for_a_relative_day(cli: Cli) -> None:
    done = cli("schedule", "--to", cli.topic, "--at", "today 23:59", "--zone", "Europe/Berlib", "x")
    assert done.code == 2
    assert "Europe/Berlin" in done.err


def test_a_local_time_in_a_dst_gap_is_accepted_with_a_note(cli: Cli) -> None:
    local = ("--at", "2030-03-31 02:30", "--zone", "Europe/Berlin", "--gap", "skip")
    done = cli("schedule", "--to", cli.topic, "--id", f"gone-{cli.topic}", *local, "x")
    assert done.code == 0
    assert done.out.startswith(f"scheduled gone-{cli.topic} to {cli.topic}, due 2030-03-31 01:30:00Z")
    why = "02:30 does not exist on 2030-03-31 in Europe/Berlin (clocks go from 02:00 to 03:00)"
    assert done.err == f"note: {why}: it will be skipped and counted as missed (gap)\n"
    assert why in cli("show", f"gone-{cli.topic}").out
    assert why in cli("explain", f"gone-{cli.topic}").err
    seen = cli("preview", *local)
    assert "skipped: DST skips this time" in seen.out
    assert why in seen.err


def test_show_prints_the_local_time(cli: Cli) -> None:
    made = cli.json("schedule", "--to", cli.topic, *WEEKLY, "x")
    out = cli("show", made["id"]).out
    assert "due_at_local" in out
    assert "T09:00:00-0" in out


def test_preview_shows_wall_time_and_utc_with_marks(cli: Cli) -> None:
    rule = ("--rrule", "FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "--start", "2027-03-27T00:00", "--zone", "Europe/Berlin")
    done = cli("preview", *rule, "--after", "2027-03-27T00:00:00Z", "--count", "3")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["occurrence", "local", "due"]
    assert lines[1].startswith("1           2027-03-27 02:30:00+01:00  2027-03-27 01:30:00Z")
    assert "2027-03-28 03:30:00+02:00" in lines[2]
    assert lines[2].endswith("moved: DST skips this time")
    skipped = cli("preview", *rule, "--gap", "skip", "--after", "2027-03-27T00:00:00Z", "--count", "2").out
    assert "2027-03-28 02:30:00" in skipped
    assert "skipped: DST skips this time" in skipped
    document = cli.json("preview", *rule, "--after", "2027-03-27T00:00:00Z", "--count", "1")
    assert document["moments"][0]["due_at_local"] == "2027-03-27T02:30:00+01:00"


def test_a_preview_without_occurrences_is_noted(cli: Cli) -> None:
    done = cli("preview", "--cron", "0 9 * * *", "--until", "2030-01-01", "--after", "2031-01-01T00:00:00Z")
    assert (done.code, done.out, done.err) == (0, "", "no occurrences follow\n")


def test_calendars(cli: Cli, tmp_path: Path) -> None:
    days = tmp_path / "days"
    days.write_text("# feasts\n2030-12-25\n2030-12-26\n")
    assert cli("calendars", "put", "feasts", str(days)).out == "stored feasts: 2 days; 0 pending schedules moved\n"
    assert cli("calendars", "show", "feasts").out == "2030-12-25\n2030-12-26\n"
    ics = tmp_path / "days.ics"
    ics.write_text("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20301225\nEND:VEVENT\nEND:VCALENDAR\n")
    assert cli("calendars", "put", "feasts", str(ics)).out.startswith("stored feasts: 1 day; 0 pending")
    assert cli.json("calendars", "put", "feasts", "--date", "2030-12-25", "--date", "2031-01-01")["days"] == 2
    assert "feasts" in cli("calendars", "list").out
    made = cli.json("schedule", "--to", cli.topic, "--cron", "0 9 25 12 *", "--calendar", "feasts", "x")
    assert cli.json("show", made["id"])["calendar"] == "feasts"
    assert cli("calendars", "drop", "feasts").out == "deleted feasts; 0 pending schedules moved\n"
    assert "was deleted: no days are excluded" in cli("show", made["id"]).out
    for verb in ("drop", "show"):
        unknown = cli("calendars", verb, "feasts")
        assert unknown.code == 3
        assert f"there is no calendar named 'feasts': `{program()} calendars list` lists them" in unknown.err
    assert cli("calendars", "list").err.startswith("there are no calendars")
    assert cli("calendars", "put", "feasts").code == 2
    assert cli("calendars", "put", "feasts", "/no/such/file").code == 2


def test_tzdata(cli: Cli) -> None:
    cli.json("schedule", "--to", cli.topic, *WEEKLY, "x")
    out = cli("tzdata").out
    assert out.startswith("tzdata 20")
    assert "America/New_York" in out
    assert "no zone changed, 0 pending schedules moved" in cli("tzdata", "--apply").out
    assert cli.json("tzdata", "--limit", "5")["version"]


def test_tzdata_apply_shows_what_it_moved(cli: Cli, zones_of_old: pytest.MonkeyPatch) -> None:  # noqa: F811
    name = f"moved-{cli.topic}"
    local = ("--at", "2030-12-01 09:00", "--zone", "Europe/Berlin")
    cli.json("schedule", "--to", cli.topic, "--id", name, *local, "x")
    renew(zones_of_old)
    first, *table = cli("tzdata", "--apply").out.splitlines()
    assert "Europe/Berlin changed, 1 pending schedule moved" in first
    assert table[0].split() == ["moved", "occurrence", "before", "after", "by"]
    [line] = table[1:]
    assert line.startswith(name)
    assert "2030-12-01 09:00:00Z" in line
    assert "2030-12-01 08:00:00Z" in line
    assert line.endswith("Europe/Berlin: 2030-12-01 09:00:00+01:00")
    assert len(cli("tzdata", "--apply").out.splitlines()) == 1
    explained = cli("explain", name).out.splitlines()
    assert explained[1].split() == ["when", "what", "occurrence", "due", "late", "why"]
    assert "moved" in explained[-1]
    assert "2030-12-01 08:00:00Z" in explained[-1]
    assert "from 2030-12-01T09:00:00" in explained[-1]


def test_resume_and_replace_take_their_choices(cli: Cli) -> None:
    made = cli.json("schedule", "--to", cli.topic, *WEEKLY, "x")
    cli("pause", made["id"])
    assert cli.json("resume", "--missed", "skip", made["id"])["outcome"] == "resumed"
    argv = ("replace", made["id"], "--to", cli.topic, "--keep-count", "--cron", "@hourly", "y")
    assert cli.json(*argv)["outcome"] == "replaced"


def test_a_time_in_the_past_prints_a_warning(cli: Cli) -> None:
    long_ago = ("schedule", "--to", cli.topic, "--at", "2020-01-01T00:00:00Z")
    done = cli(*long_ago, "--id", cli.topic, "x")
    assert (done.code, done.err.endswith(" years ago: sent now\n")) == (0, True)
    assert cli(*long_ago, "--late", "skip", "x").out.endswith(" ago, will not be released: missed (late_skipped)\n")
    refused = cli(*long_ago, "--past", "refuse", "x")
    assert refused.code == 2
    assert "in the past: give a future time, or --past send to send it now" in refused.err
    seen = cli("preview", "--at", "2020-01-01T00:00:00Z")
    assert seen.err.endswith(" years ago: sent now\n")


def test_times_in_the_past_are_reported_by_line(cli: Cli, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    documents = [{"id": f"{cli.topic}-1", "at": "2020-01-01T00:00:00Z"}, {"id": f"{cli.topic}-2"}]
    lines.write_text("".join(json.dumps(document) + "\n" for document in documents))
    done = cli("schedule", "--to", cli.topic, "--from", str(lines))
    assert done.code == 0
    assert done.err.startswith(f"note: line 1: {cli.topic}-1: due ")
    assert "line 2" not in done.err


def test_a_preview_after_a_moment_does_not_show_it(cli: Cli) -> None:
    every = ("--every", "R/2030-01-01T00:00:00Z/PT1H", "--count", "1")
    [moment] = cli.json("preview", *every, "--after", "2030-01-01T05:00:00Z")["moments"]
    assert moment["due_at"] == "2030-01-01T06:00:00.000000Z"
