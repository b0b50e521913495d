"""`preview`: the next moments of a recurrence, before anything is scheduled."""

import argparse

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--at", help="+5s, PT5S, or a time such as 2026-11-20T09:00:00Z")
    when.add_argument("--every", metavar="INTERVAL", help="PT10M, or R/2026-11-20T09:00:00Z/PT1H")
    parser.add_argument("--count", type=positive, metavar="N", help="how many moments (10)")
    add_server(parser)
    parser.set_defaults(run=preview)


def preview(arguments: Arguments, screen: Screen) -> int:
    """The moments, each with its number."""
    given = {"at": arguments.at, "every": arguments.every, "count": arguments.count}
    body = {name: value for name, value in given.items() if value is not None}
    document = client_of(arguments).call("POST", "/v1/preview", body=body)
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    if moments := document["moments"]:
        screen.table(("occurrence", "due"), [(m["occurrence"], screen.moment(m["due_at"])) for m in moments])
    if note := document.get("note"):
        screen.note(note)
    return Exit.DONE
