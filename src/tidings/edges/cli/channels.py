"""`channels`: which providers send what, in which order, within which limits, and whether they answer."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen, shown


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers. `channels` alone lists."""
    add_server(parser)
    parser.set_defaults(run=channels)
    verbs = parser.add_subparsers(metavar="close")
    closing = verbs.add_parser(
        "close",
        help="close the circuit breaker of a provider, once its problem is fixed",
        description="Close the circuit breaker of a provider, or of a webhook receiver: it is called again at once.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    closing.add_argument("name", metavar="NAME", help="the provider, as `channels` names it")
    closing.add_argument("--receiver", metavar="URL", help="of webhooks: only this receiver, as `channels` names it")
    add_server(closing)
    closing.set_defaults(run=close)


def channels(arguments: Arguments, screen: Screen) -> int:
    """The providers, in the order in which they are tried."""
    document = client_of(arguments).call("GET", "/v1/channels")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    heads = ("name", "provider", "sends", "limit", "of this tenant", "breaker", "until", "why")
    rows = []
    for way in document["providers"]:
        rows += [_row(way, screen), *(_receiver(each, screen) for each in way.get("receivers", ()))]
        if way.get("more_receivers"):
            rows.append(("  and more receivers", *[""] * (len(heads) - 1)))
    screen.table(heads, rows)
    for warning in document.get("warnings", ()):
        screen.note(f"warning: {warning}")
    return Exit.DONE


def close(arguments: Arguments, screen: Screen) -> int:
    """Close the breaker of a provider, or of a receiver."""
    receiver = getattr(arguments, "receiver", None)
    path = f"/v1/channels/{segment(arguments.name)}/close"
    answer = client_of(arguments).call("POST", path, query={"receiver": receiver})
    if arguments.json:
        screen.json(answer)
    else:
        name = screen.paint(shown(receiver or arguments.name), "bold")
        screen.say(
            f"closed the breaker of {name}" if answer["outcome"] == "closed" else f"the breaker of {name} was not open"
        )
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


def _receiver(receiver: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    until = screen.moment(receiver.get("until"))
    return (f"  {receiver['receiver']}", "", "", "", "", receiver["breaker"], until, receiver["reason"])


def _limit(limit: dict[str, Any] | None) -> str:
    return "" if limit is None else f"{limit['per_s']:g}/s, {limit['burst']} at once"
