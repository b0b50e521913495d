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
    """The channels, each with its providers in order."""
    document = client_of(arguments).call("GET", "/v1/channels")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    rows = [_row(channel, provider, screen) for channel in document["channels"] for provider in channel["providers"]]
    screen.table(("channel", "provider", "limit", "breaker", "until", "why"), rows)
    return Exit.DONE


def _row(channel: dict[str, Any], provider: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    breaker = provider.get("breaker") or {}
    rate = provider.get("rate")
    return (
        channel["name"],
        provider["name"],
        "" if rate is None else f"{rate:,}/s",
        breaker.get("state") or "closed",
        screen.moment(breaker.get("until")),
        breaker.get("reason"),
    )
