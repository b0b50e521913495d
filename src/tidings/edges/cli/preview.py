"""`preview`: when a recurrence would occur, before anything is scheduled."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_field, add_server, client_of, positive
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen
from tidings.edges.cli.timing import add_timing, timing_of
from tidings.shapes.schedule import Preview

MARKS = {
    "moved": "moved: DST skips this time",
    "skipped": "skipped: DST skips this time",
    "first": "the first of two",
    "second": "the second of two",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    add_timing(parser, Preview, required=True, ends=False)
    add_field(parser, Preview, "after", metavar="TIME")
    add_field(parser, Preview, "count", type=positive, metavar="N")
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
