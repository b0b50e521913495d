"""`tzdata`: the rules of zones that are in use, and what a change of them moved."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of, positive
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen, count_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument(
        "--apply", action="store_true", help="recompute the pending schedules of zones whose rules changed, now"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="how many moved schedules to show (default: 100)")
    add_server(parser)
    parser.set_defaults(run=tzdata)


def tzdata(arguments: Arguments, screen: Screen) -> int:
    """The version, the zones in use, and what was moved lately; of `--apply` what it moved."""
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
    """What was moved, from when to when; of one apply with the zones, for what moved it is said already."""
    if not moved:
        return
    lines = [
        (m["id"], m["occurrence"], screen.moment(m["before"]), screen.moment(m["after"]) or "nothing", _by(m))
        for m in moved
    ]
    screen.table(("moved", "occurrence", "before", "after", "by"), lines)


def _by(moved: dict[str, Any]) -> str:
    """The zone with what its clocks show, or the cause."""
    local = str(moved.get("after_local", "")).replace("T", " ")
    return f"{moved['zone']}: {local}" if local else str(moved["cause"])
