"""`preview`: the next moments of a recurrence, before anything is scheduled."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen
from tidings.edges.cli.timing import add_timing, timing_of

MARKS = {
    "moved": "moved: clocks jump over it",
    "skipped": "skipped: clocks jump over it",
    "first": "the first of two",
    "second": "the second of two",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    add_timing(parser, required=True, ends=False)
    parser.add_argument(
        "--after", metavar="TIME", help="only what comes after: a time, local in --zone, or +1d; left out: from now on"
    )
    parser.add_argument(
        "--count",
        type=positive,
        metavar="N",
        help="how many moments to show, 1 to 1000 (10); how often a rule itself occurs is its COUNT=N",
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
        screen.note("nothing follows")
    if note := document.get("note"):
        screen.note(note)
    return Exit.DONE


def _local(moment: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    local = str(moment["due_at_local"]).replace("T", " ")
    mark = MARKS.get(str(moment.get("mark")), "")
    return moment.get("occurrence"), local, screen.moment(moment.get("due_at")), mark
