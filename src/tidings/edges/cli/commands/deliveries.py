"""`deliveries` and `channels`: what was sent, with each attempt, and the providers that send."""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import (
    Arguments,
    Rows,
    add_bare_verb,
    add_paging,
    add_server,
    client_of,
    pages,
    show_pages,
)
from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.commands.templates import PARTS
from tidings.edges.cli.exit_codes import Exit, Failure, program
from tidings.edges.cli.screen import Screen, clock_text, instant, length, shown

STATES = (
    "pending", "processing", "sent", "delivered", "bounced", "complained", "failed", "cancelled", "expired", "skipped",
)  # fmt: skip


SPARE = ("provider's id", "provider", "channel", "late")  # columns that a narrow terminal leaves out, in this order
RETRIED = ("failed", "expired", "bounced", "skipped")  # states that can be sent again
FILTERS = ("user", "state", "channel", "notification", "since", "until")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `deliveries`. Without one it lists, with the options of `list`."""
    _add_search(parser)
    add_server(parser)
    parser.set_defaults(run=index)
    verbs = parser.add_subparsers(metavar="list|show|retry")
    for name, purpose, run in (
        ("list", "list deliveries, those due last first", index),
        ("show", "show a delivery with each attempt", show),
        ("retry", "send failed deliveries again", retry),
    ):
        verb = add_bare_verb(verbs, name, purpose, run)
        if name == "list":
            _add_search(verb)
        elif name == "show":
            verb.add_argument("name", metavar="DELIVERY", help="the delivery, such as order-42/1")
        else:
            verb.add_argument(
                "names", metavar="DELIVERY", nargs="*", default=[], help="the deliveries, such as order-42/1"
            )
            _add_filters(verb, RETRIED, "instead: all deliveries in this state")


def _add_search(parser: argparse.ArgumentParser) -> None:
    _add_filters(parser, STATES, "only in this state")
    add_paging(parser)


def _add_filters(parser: argparse.ArgumentParser, states: tuple[str, ...], of_state: str) -> None:
    add_filters(parser, "due", states, of_state)
    parser.add_argument("--notification", metavar="ID", help="only of this notification")


def add_filters(
    parser: argparse.ArgumentParser,
    event: str,
    states: tuple[str, ...] = STATES,
    of_state: str = "only in this state",
) -> None:
    """The filters that deliveries and notifications share; `event` is what the times are compared with."""
    parser.add_argument("--user", help="only to this user")
    parser.add_argument("--state", choices=states, help=of_state)
    parser.add_argument("--channel", choices=tuple(PARTS), help="only by this channel")
    parser.add_argument("--since", metavar="TIME", help=f"only {event} at or after: -1h, or a time")
    parser.add_argument("--until", metavar="TIME", help=f"only {event} before, likewise")


def _query(arguments: Arguments) -> dict[str, object]:
    return {name: getattr(arguments, name) for name in FILTERS}


def index(arguments: Arguments, screen: Screen) -> int:
    """List the deliveries that match."""
    query = _query(arguments)
    rows = partial(_show_rows, screen=screen)
    empty = "no deliveries match: `notifications list` shows what is scheduled"
    return show_pages(arguments, screen, "/v1/deliveries", "deliveries", rows, query, empty)


def show(arguments: Arguments, screen: Screen) -> int:
    """Show one delivery."""
    document = client_of(arguments).call("GET", _path(arguments.name))
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    attempts = document.pop("attempts", None) or []
    reports = document.pop("news", None) or []
    screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    if attempts:
        screen.say("")
        names = ("attempt", "channel", "provider", "started", "took", "outcome", "why")
        screen.table(names, map(_attempt, attempts), spare=("provider", "channel"))
    if reports:
        screen.say("")
        rows = [(screen.moment(report["at"]), report["state"], report.get("reason")) for report in reports]
        screen.table(("reported at", "what", "why"), rows)
    return Exit.DONE


def retry(arguments: Arguments, screen: Screen) -> int:
    """Send each again, and continue if one cannot be sent; returns the highest exit code."""
    client, worst = client_of(arguments), Exit.DONE
    for name in _names(client, arguments, screen):
        try:
            answer = client.call("POST", f"{_path(name)}/retry")
        except Failure as failure:
            if failure.code == Exit.UNREACHABLE:
                raise
            if arguments.json and failure.document is not None:
                screen.json(failure.document)
            screen.note(f"tidings: {name}: {failure}")
            worst = max(worst, failure.code)
            continue
        if arguments.json:
            screen.json(answer)
        else:
            screen.say(f"{screen.paint(shown(name), 'bold')} is {screen.word(answer.get('state') or 'pending')} again")
    return worst


def _names(client: Client, arguments: Arguments, screen: Screen) -> Iterator[str]:
    """The deliveries to send again: those named, or all that match. Each leaves the list when it is sent again."""
    filters = [f"--{name}" for name, value in _query(arguments).items() if value is not None]
    if bool(arguments.names) == bool(filters) or (filters and arguments.state is None):
        states = "|".join(RETRIED)
        raise Failure(Exit.USAGE, f"name a DELIVERY (or several), or give --state {states}, with other filters")
    if arguments.names:
        yield from arguments.names
        return
    found, every = 0, argparse.Namespace(cursor=None, all=True)
    for page in pages(client, "/v1/deliveries", "deliveries", _query(arguments), every):
        found += len(page["deliveries"])
        yield from (delivery["name"] for delivery in page["deliveries"])
    if not found:
        screen.note(f"no deliveries match: `{program()} deliveries --state {arguments.state}` lists all in this state")


def heads() -> tuple[str, ...]:
    """The columns of `row_of`."""
    return ("delivery", "to", "channel", "provider", "state", "late", "sent", "provider's id", "why")


def row_of(delivery: dict[str, Any]) -> tuple[object, ...]:
    """A delivery as a row."""
    return (
        delivery["name"],
        delivery.get("user") or delivery.get("address"),
        delivery.get("channel"),
        delivery.get("provider"),
        delivery["state"],
        late_text(delivery),
        _clock(delivery.get("sent_at")),
        delivery.get("provider_id"),
        delivery.get("reason"),
    )


def late_text(delivery: dict[str, Any]) -> str:
    """How long after its due time it was sent."""
    late_ms = delivery.get("late_ms")
    if late_ms is None:
        return ""
    return f"{late_ms:,.1f} ms" if late_ms < 1_000 else length(int(late_ms * 1_000))


def _path(name: str) -> str:
    return f"/v1/deliveries/{segment(name)}"


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    screen.table(heads(), [row_of(row) for row in rows], heading=first, spare=SPARE)


def _attempt(attempt: dict[str, Any]) -> tuple[object, ...]:
    begun, ended = instant(attempt.get("begun_at")), instant(attempt.get("ended_at"))
    took = "" if begun is None or ended is None else f"{(ended - begun) / 1_000:,.1f} ms"
    return (
        attempt.get("number"),
        attempt.get("channel"),
        attempt.get("provider"),
        _clock(attempt.get("begun_at")),
        took,
        attempt.get("outcome") or "in progress, or interrupted",
        attempt.get("detail"),
    )


def _clock(at: object) -> str:
    return "" if at is None else clock_text(str(at))


def _value(name: str, value: Any, screen: Screen) -> Any:
    return screen.moment(value) or value if name.endswith("_at") else value


def configure_channels(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `channels`. Without one it lists."""
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
    """List the providers, in the order in which they are tried."""
    document = client_of(arguments).call("GET", "/v1/channels")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    heads = ("name", "provider", "sends", "limit", "tenant limit", "breaker", "until", "why")
    rows = []
    for provider in document["providers"]:
        rows += [_row(provider, screen), *(_receiver(each, screen) for each in provider.get("receivers", ()))]
        if provider.get("more_receivers"):
            rows.append(("  and more receivers", *[""] * (len(heads) - 1)))
    screen.table(heads, rows, spare=("tenant limit", "limit", "provider"))
    for warning in document.get("warnings", ()):
        screen.note(f"warning: {warning}")
    return Exit.DONE


def close(arguments: Arguments, screen: Screen) -> int:
    """Close the circuit breaker of a provider, or of a webhook receiver."""
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


def _row(provider: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    return (
        provider["name"],
        provider["provider"],
        ", ".join(provider["channels"]),
        _limit(provider.get("limit")),
        _limit(provider.get("tenant_limit")),
        provider["breaker"],
        screen.moment(provider.get("until")),
        provider.get("reason"),
    )


def _receiver(receiver: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    until = screen.moment(receiver.get("until"))
    return (f"  {receiver['receiver']}", "", "", "", "", receiver["breaker"], until, receiver["reason"])


def _limit(limit: dict[str, Any] | None) -> str:
    return "" if limit is None else f"{limit['per_s']:g}/s, {limit['burst']} at once"
