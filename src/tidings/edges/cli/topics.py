"""`topics`: list topics and their sizes."""

import argparse

from tidings.edges.cli.arguments import Arguments, add_bus, add_server, client_of
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    add_bus(parser)
    add_server(parser)
    parser.set_defaults(run=topics)


def topics(arguments: Arguments, screen: Screen) -> int:
    """The topics by name, with their sizes."""
    document = client_of(arguments).call("GET", "/v1/topics", query={"bus": arguments.bus})
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    if document.get("bus") == "kafka":
        screen.table(("topic", "partitions"), [(t["name"], len(t["partitions"])) for t in document["topics"]])
        return Exit.DONE
    rows = [(t["name"], f"{t.get('records', 0):,}", size(t.get("bytes", 0))) for t in document["topics"]]
    if rows:
        screen.table(("topic", "records", "size"), rows)
    else:
        screen.note("there are no topics yet: a topic is created by the first release to it")
    return Exit.DONE


def size(count: int) -> str:
    """Bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
