"""`preview`: when a recurrence would occur, before anything is scheduled."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen
from tidings.edges.cli.timing import add_timing, timing_of

MARKS = {
    "moved": "moved: DST skips this time",
    "skipped": "skipped: DST skips this time",
    "first": "the first of two",
    "second": "the second of two",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    add_timing(parser, required=True, ends=False)
    parser.add_argument(
        "--after", metavar="TIME", help="only occurrences after this: a time (local with --zone), or +1d (default: now)"
    )
    parser.add_argument(
        "--count",
        type=positive,
        metavar="N",
        help="how many to show, 1 to 1000 (default: 10); to end the rule itself use COUNT=N in it",
    )
    add_server(parser)
    parser.set_defaults(run=preview)


def preview(arguments: Arguments, screen: Screen) -> int:
    """The moments, each with its number; in a zone with what clocks show, and what changes of them did."""
    body = timing_of(arguments)
    body |= {name: value for name in ("after", "count") if (value := getattr(arguments, name)) is not None}
    document = client_of(arguments).call("POST", "/v1/preview", body=body)
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    if moments := document["moments"]:
        if any("due_at_local" in moment for moment in moments):
            screen.table(("occurrence", "local", "due", ""), [_local(moment, screen) for moment in moments])
        else:
            screen.table(("occurrence", "due"), [(m["occurrence"], screen.moment(m["due_at"])) for m in moments])
    else:
        screen.note("no occurrences follow")
    if note := document.get("note"):
        screen.note(note)
    return Exit.DONE


def _local(moment: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    local = str(moment["due_at_local"]).replace("T", " ")
    mark = MARKS.get(str(moment.get("mark")), "")
    return moment.get("occurrence"), local, screen.moment(moment.get("due_at")), mark
