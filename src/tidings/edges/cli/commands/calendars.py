"""`calendars` and `tzdata`: the days on which nothing is released, and the time zone rules."""

import argparse
import sys
from pathlib import Path
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive, sentence
from tidings.edges.cli.client import segment
from tidings.edges.cli.exit_codes import Exit, Failure, program
from tidings.edges.cli.screen import Screen, count_of

VERBS = {
    "list": "list the calendars",
    "show": "show the dates of a calendar",
    "put": "store a calendar, and recompute the schedules that use it",
    "drop": "delete a calendar; schedules that use it continue without it",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `calendars`."""
    verbs = parser.add_subparsers(metavar="list|show|put|drop", required=True)
    runs = {"list": index, "show": show, "put": put, "drop": drop}
    for verb, purpose in VERBS.items():
        command = verbs.add_parser(verb, help=purpose, description=sentence(purpose), allow_abbrev=False)
        if verb != "list":
            command.add_argument("name", metavar="NAME", help="the name of the calendar")
        if verb == "put":
            help_text = "an .ics file, or a file with one date per line (# for comments); - for standard input"
            command.add_argument("source", metavar="FILE", nargs="?", help=help_text)
            command.add_argument("--date", action="append", default=[], metavar="DATE", help="a date; repeatable")
        add_server(command)
        command.set_defaults(run=runs[verb])


def index(arguments: Arguments, screen: Screen) -> int:
    """List the calendars by name."""
    document = client_of(arguments).call("GET", "/v1/calendars")
    found = document["calendars"]
    if arguments.json:
        screen.json(document)
    elif found:
        rows = [(one["name"], one["days"], screen.moment(one["changed_at"])) for one in found]
        screen.table(("name", "days", "changed"), rows)
    else:
        screen.note(f"there are no calendars: create one with `{program()} calendars put NAME FILE`")
    return Exit.DONE


def show(arguments: Arguments, screen: Screen) -> int:
    """Print the dates, one on each line, as `put` accepts them."""
    document = _one(arguments, "GET")
    if arguments.json:
        screen.json(document)
    else:
        for date in document["dates"]:
            screen.say(date)
    return Exit.DONE


def put(arguments: Arguments, screen: Screen) -> int:
    """Store a calendar from a file, or from dates."""
    path = f"/v1/calendars/{segment(arguments.name)}"
    document = client_of(arguments).call("PUT", path, body=_days(arguments))
    days = "1 day" if document["days"] == 1 else f"{document['days']} days"
    return _show_outcome(document, f"stored {arguments.name}: {days}", arguments, screen)


def drop(arguments: Arguments, screen: Screen) -> int:
    """Delete a calendar."""
    document = _one(arguments, "DELETE")
    return _show_outcome(document, f"deleted {arguments.name}", arguments, screen)


def _one(arguments: Arguments, method: str) -> Any:
    """Call the path of one calendar; if it does not exist, the failure names the command that lists them."""
    try:
        return client_of(arguments).call(method, f"/v1/calendars/{segment(arguments.name)}")
    except Failure as failure:
        if failure.code == Exit.NOT_FOUND:
            text = f"there is no calendar named {arguments.name!r}: `{program()} calendars list` lists them"
            raise Failure(failure.code, text, failure.document) from None
        raise


def _show_outcome(document: dict[str, Any], what: str, arguments: Arguments, screen: Screen) -> int:
    if arguments.json:
        screen.json(document)
    else:
        screen.say(f"{what}; {count_of(document['moved'], 'pending schedule')} moved")
        if note := document.get("note"):
            screen.note(note)
    return Exit.DONE


def _days(arguments: Arguments) -> dict[str, Any]:
    if (arguments.source is None) == (not arguments.date):
        raise Failure(
            Exit.USAGE, "the days are missing: give either a FILE (- for standard input) or --date for each day"
        )
    if arguments.source is None:
        return {"dates": arguments.date}
    try:
        text = sys.stdin.read() if arguments.source == "-" else Path(arguments.source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(Exit.USAGE, f"cannot read {arguments.source}: {error}") from None
    return {"ics": text} if "BEGIN:VCALENDAR" in text[:1_000].upper() else {"dates": text.splitlines()}


def configure_tzdata(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tzdata`."""
    parser.add_argument(
        "--apply", action="store_true", help="recompute the pending schedules of zones whose rules changed, now"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="how many moved schedules to show (default: 100)")
    add_server(parser)
    parser.set_defaults(run=tzdata)


def tzdata(arguments: Arguments, screen: Screen) -> int:
    """Show the version, the time zones in use and what moved recently; with `--apply`, what that moved."""
    client = client_of(arguments)
    if arguments.apply:
        applied = client.call("POST", "/v1/tzdata")
        if arguments.json:
            screen.json(applied)
            return Exit.DONE
        zones = ", ".join(applied["changed"]) or "no zone"
        screen.say(
            f"tzdata {applied['version']}: {zones} changed, {count_of(applied['moved'], 'pending schedule')} moved"
        )
        _show_moved(applied["movements"], screen)
        return Exit.DONE
    query = None if arguments.limit is None else {"limit": arguments.limit}
    document = client.call("GET", "/v1/tzdata", query=query)
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    screen.say(f"tzdata {document['version']}")
    if zones := document["zones"]:
        rows = [(zone["name"], zone["version"], "changed" if zone["changed"] else "") for zone in zones]
        screen.table(("zone", "computed by", ""), rows)
    _show_moved(document["moved"], screen)
    return Exit.DONE


def _show_moved(moved: list[dict[str, Any]], screen: Screen) -> None:
    """Print the schedules that moved, and from when to when."""
    if not moved:
        return
    lines = [
        (m["id"], m["occurrence"], screen.moment(m["before"]), screen.moment(m["after"]) or "nothing", _by(m))
        for m in moved
    ]
    screen.table(("moved", "occurrence", "before", "after", "by"), lines)


def _by(moved: dict[str, Any]) -> str:
    """The time zone with the local time, or the cause."""
    local = str(moved.get("after_local", "")).replace("T", " ")
    return f"{moved['zone']}: {local}" if local else str(moved["cause"])
