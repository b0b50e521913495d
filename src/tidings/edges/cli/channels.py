"""`channels`: which providers send what, in which order, within which limits, and whether they answer."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    add_server(parser)
    parser.set_defaults(run=channels)


def channels(arguments: Arguments, screen: Screen) -> int:
    """The providers, in the order in which they are tried."""
    document = client_of(arguments).call("GET", "/v1/channels")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    heads = ("name", "provider", "sends", "limit", "of this tenant", "breaker", "until", "why")
    screen.table(heads, [_row(way, screen) for way in document["providers"]])
    return Exit.DONE


def _row(way: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    return (
        way["name"],
        way["provider"],
        ", ".join(way["channels"]),
        _limit(way.get("limit")),
        _limit(way.get("tenant_limit")),
        way["breaker"],
        screen.moment(way.get("until")),
        way.get("reason"),
    )


def _limit(limit: dict[str, Any] | None) -> str:
    return "" if limit is None else f"{limit['per_s']:g}/s, {limit['burst']} at once"
