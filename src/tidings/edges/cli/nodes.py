"""`nodes`: who shares the store, who owns which lanes and since when, and how late each runs."""

import argparse
from collections import Counter
from itertools import groupby
from typing import Any

from tidings.domain.fleet import ROLES, ranges
from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen
from tidings.edges.cli.times import instant, length, relative

NOBODY = "nobody"
ID_SHOWN = 8


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
    labels = _labels(document["nodes"])
    heads = ("node", "version", "up", "roles", "lanes", "released", "late p50", "p99", "max", "overdue", "clock")
    rows = [_node(node, labels[node["id"]], screen) for node in document["nodes"]]
    screen.table(heads, rows, spare=("version", "max", "clock"))
    screen.say("")
    screen.table(("lanes", "owner", "since", "overdue"), _lanes(document, labels, screen))
    for name, times in Counter(node["name"] for node in document["nodes"] if node["state"] == "alive").items():
        if times > 1:
            screen.note(f"warning: {times} nodes are named {name}: give each a node.name of its own")
    return Exit.DONE


def _labels(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """What each is called: by its name, and by a part of its id too where that is not enough."""
    times = Counter(node["name"] for node in nodes)
    return {
        node["id"]: node["name"] if times[node["name"]] == 1 else f"{node['name']} ({node['id'][:ID_SHOWN]})"
        for node in nodes
    }


def _node(node: dict[str, Any], label: str, screen: Screen) -> tuple[object, ...]:
    late = node["lateness"]
    up = length(max(0, screen.now - (instant(node["since"]) or 0)))
    gone = f"gone {relative(min(0, (instant(node['lease_until']) or 0) - screen.now))}"
    roles = "all" if set(node["roles"]) == set(ROLES) else ", ".join(node["roles"])
    ahead = node["clock_ahead_ms"]
    return (
        label,
        node["version"],
        up if node["state"] == "alive" else gone,
        roles,
        len(node["owns"]),
        f"{late['released']:,}",
        *("-" if late[name] is None else _amount(late[name]) for name in ("p50_ms", "p99_ms", "max_ms")),
        _amount(max((lane["overdue_ms"] for lane in node["owns"]), default=0)),
        ("-" if round(ahead, 1) < 0 else "+") + _amount(abs(ahead)),
    )


def _lanes(document: dict[str, Any], labels: dict[str, str], screen: Screen) -> list[tuple[object, ...]]:
    """In the order of the nodes, then of time. Lanes that one node has owned for the same time are one row."""
    owned = [(labels[node["id"]], lane) for node in document["nodes"] for lane in _by_time(node["owns"])]
    free = [(NOBODY, lane) for lane in document["free_lanes"]]
    rows: list[tuple[object, ...]] = []
    for (owner, since), group in groupby(owned + free, lambda each: (each[0], each[1]["since"])):
        lanes = [lane for _, lane in group]
        overdue = max(lane["overdue_ms"] for lane in lanes)
        rows.append((ranges([lane["lane"] for lane in lanes]), owner, screen.moment(since), _amount(overdue)))
    return rows


def _by_time(lanes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(lanes, key=lambda lane: (lane["since"] or "", lane["lane"]))


def _amount(ms: float) -> str:
    """Milliseconds for people; what is long in the units that one thinks of it in."""
    return f"{ms:.1f} ms" if ms < 1_000 else length(int(ms * 1_000))
