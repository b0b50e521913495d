"""`calendars`: days on which nothing happens, under names that recurring schedules can give."""

import argparse
import sys
from pathlib import Path
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, sentence
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.program import program
from tidings.edges.cli.screen import Screen, count_of

VERBS = {
    "list": "list the calendars",
    "show": "show the dates of a calendar",
    "put": "store a calendar, and recompute the schedules that use it",
    "drop": "delete a calendar; schedules that use it continue without it",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the four."""
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
    """The calendars by name."""
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
    """The dates, one a line, as `put` takes them."""
    document = _one(arguments, "GET")
    if arguments.json:
        screen.json(document)
    else:
        for date in document["dates"]:
            screen.say(date)
    return Exit.DONE


def put(arguments: Arguments, screen: Screen) -> int:
    """Keep a calendar from a file, or from dates."""
    path = f"/v1/calendars/{segment(arguments.name)}"
    document = client_of(arguments).call("PUT", path, body=_days(arguments))
    days = "1 day" if document["days"] == 1 else f"{document['days']} days"
    return _tell(document, f"kept {arguments.name}: {days}", arguments, screen)


def drop(arguments: Arguments, screen: Screen) -> int:
    """Forget a calendar."""
    document = _one(arguments, "DELETE")
    return _tell(document, f"dropped {arguments.name}", arguments, screen)


def _one(arguments: Arguments, method: str) -> Any:
    """Ask about one that must be there; if it is not, say so in the words of the command line."""
    try:
        return client_of(arguments).call(method, f"/v1/calendars/{segment(arguments.name)}")
    except Failure as failure:
        if failure.code == Exit.NOT_FOUND:
            told = f"there is no calendar named {arguments.name!r}: `{program()} calendars list` lists them"
            raise Failure(failure.code, told, failure.document) from None
        raise


def _tell(document: dict[str, Any], what: str, arguments: Arguments, screen: Screen) -> int:
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
