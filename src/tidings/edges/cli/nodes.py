"""`nodes`: who shares the store, who owns which lanes and since when, and how late each runs."""

import argparse
from itertools import groupby
from typing import Any

from tidings.domain.fleet import ROLES, ranges
from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen
from tidings.edges.cli.times import instant, length

NOBODY = "nobody"


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    add_server(parser, of_tenant=False)
    parser.set_defaults(run=nodes)


def nodes(arguments: Arguments, screen: Screen) -> int:
    """Two tables: the nodes, and the lanes."""
    document = client_of(arguments).call("GET", "/v1/nodes")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    heads = ("node", "up", "roles", "lanes", "released", "late p50", "p99", "max", "overdue", "clock")
    screen.table(heads, [_node(node, screen) for node in document["nodes"]])
    screen.say("")
    screen.table(("lanes", "owner", "since", "overdue"), _lanes(document, screen))
    return Exit.DONE


def _node(node: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    late = node["lateness"]
    up = length(max(0, screen.now - (instant(node["since"]) or 0)))
    roles = "all" if set(node["roles"]) == set(ROLES) else ", ".join(node["roles"])
    return (
        node["name"],
        up if node["state"] == "alive" else node["state"],
        roles,
        len(node["owns"]),
        f"{late['released']:,}",
        *((_ms(late[name]) if late["released"] else "-") for name in ("p50_ms", "p99_ms", "max_ms")),
        _ms(max((lane["overdue_ms"] for lane in node["owns"]), default=0)),
        f"{node['clock_ahead_ms']:+,.1f} ms",
    )


def _lanes(document: dict[str, Any], screen: Screen) -> list[tuple[object, ...]]:
    """Lanes that one node has owned for the same time are one row."""
    owned = [(lane["lane"], node["name"], lane) for node in document["nodes"] for lane in node["owns"]]
    free = [(lane["lane"], NOBODY, lane) for lane in document["free_lanes"]]
    rows: list[tuple[object, ...]] = []
    by_owner = sorted(owned + free, key=lambda each: (each[1] == NOBODY, each[1], each[2]["since"] or "", each[0]))
    for (owner, since), group in groupby(by_owner, lambda each: (each[1], each[2]["since"])):
        lanes = list(group)
        overdue = max(lane["overdue_ms"] for _, _, lane in lanes)
        rows.append((ranges([number for number, _, _ in lanes]), owner, screen.moment(since), _ms(overdue)))
    return rows


def _ms(amount: float) -> str:
    return f"{amount:,.1f} ms"
