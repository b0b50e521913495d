"""Calendars and the rules of zones: their shapes and paths."""

from tidings.edges.http.openapi.operations import answer, in_path, operation, query, sent
from tidings.edges.http.openapi.shapes import INSTANT, Schema, array, instant, number, or_null, ref, shape, text

_NAME = in_path("name", "The calendar's name.")
_DATES = array(text("A date.", examples=["2026-12-25"]), "Days on which nothing happens.")
_MOVED = number("How many pending occurrences moved.")

SCHEMAS: dict[str, Schema] = {
    "NewCalendar": shape(
        "The days of a calendar, in one of two ways.",
        "",
        dates=_DATES | {"type": ["array", "null"]},
        ics=or_null(text("The text of an iCalendar file: every day that an event touches.")),
    ),
    "Calendar": shape(
        "A calendar.",
        "name days changed_at",
        name=text("Its name."),
        days=number("How many days it has."),
        changed_at=instant("When it was put there."),
        dates=_DATES,
    ),
    "Calendars": shape("A tenant's calendars.", "calendars", calendars=array(ref("Calendar"))),
    "CalendarKept": shape(
        "What was kept.", "name days moved", name=text("Its name."), days=number("How many days."), moved=_MOVED
    ),
    "CalendarDropped": shape(
        "What was dropped.", "name dropped moved", name=text("Its name."), dropped={"const": True}, moved=_MOVED
    ),
    "Zone": shape(
        "A zone that something pending follows, or followed.",
        "name version changed",
        name=text("Its IANA name."),
        version=text("The version of tzdata by which it was last computed."),
        changed={"type": "boolean", "description": "Whether its rules are other ones now."},
    ),
    "Moved": shape(
        "A pending occurrence that was moved.",
        "at cause id occurrence before after",
        at=instant("When it was moved."),
        cause=text("By what."),
        id=text("The schedule."),
        occurrence=number("Its number."),
        before=instant("When it was due."),
        after=or_null(instant("When it is due; null: nothing is left.")),
        zone=text("Of what an apply moved: its zone."),
        after_local=text("What the clocks of its zone show at the new time."),
    ),
    "Tzdata": shape(
        "The rules of zones.",
        "version zones moved",
        version=text("The version in use."),
        zones=array(ref("Zone")),
        moved=array(ref("Moved"), "What was moved lately, the latest first."),
    ),
    "TzdataApplied": shape(
        "What was computed again.",
        "version changed moved movements",
        version=text("The version in use."),
        changed=array(text("A zone."), "The zones whose rules had changed."),
        movements=array(ref("Moved"), "What it moved of this tenant's, the latest first, up to 100."),
        moved=_MOVED,
    ),
}

_CALENDAR = {"name": "holidays", "days": 2, "changed_at": INSTANT}
_WITH_DATES = _CALENDAR | {"dates": ["2026-12-25", "2027-01-01"]}
_TZDATA = {
    "version": "2026b",
    "zones": [{"name": "Europe/Berlin", "version": "2026b", "changed": False}],
    "moved": [
        {
            "at": INSTANT,
            "cause": "tzdata 2026a to 2026b",
            "id": "report",
            "occurrence": 7,
            "before": "2026-11-23T08:00:00.000000Z",
            "after": "2026-11-23T09:00:00.000000Z",
        }
    ],
}


_APPLIED = {"version": "2026b", "changed": ["Europe/Berlin"], "moved": 1, "movements": _TZDATA["moved"]}


def date_paths() -> dict[str, Schema]:
    """Calendars, and the rules of zones."""
    shown = answer("The calendar with its dates.", "Calendar", _WITH_DATES)
    listed = answer("By name.", "Calendars", {"calendars": [_CALENDAR]})
    kept = answer("Kept, and applied to what is pending.", "CalendarKept", {"name": "holidays", "days": 2, "moved": 1})
    dropped = {"name": "holidays", "dropped": True, "moved": 0}
    gone = answer("What was pending by it goes on without.", "CalendarDropped", dropped)
    body = sent("NewCalendar", {"dates": _WITH_DATES["dates"]})
    zones = answer("The version, the zones in use, what moved.", "Tzdata", _TZDATA)
    applied = answer("Done.", "TzdataApplied", _APPLIED)
    limit = query("limit", "At most so many of what was moved.", number("", minimum=1, maximum=1000, default=100))
    put = "Put it there, and compute what is pending by it again"
    return {
        "/v1/calendars": {"get": operation("Calendars", "listCalendars", "List", {200: listed})},
        "/v1/calendars/{name}": {
            "get": operation("Calendars", "showCalendar", "Show one", {200: shown}, "404", parameters=[_NAME]),
            "put": operation("Calendars", "putCalendar", put, {200: kept}, "413 415", parameters=[_NAME], body=body),
            "delete": operation("Calendars", "dropCalendar", "Drop it", {200: gone}, "404", parameters=[_NAME]),
        },
        "/v1/tzdata": {
            "get": operation("Calendars", "showTzdata", "The rules of zones", {200: zones}, parameters=[limit]),
            "post": operation("Calendars", "applyTzdata", "Apply rules that have changed", {200: applied}),
        },
    }
