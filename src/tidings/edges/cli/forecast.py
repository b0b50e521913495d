"""`forecast`: the future as a bar chart."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen
from tidings.edges.cli.times import clock_text

STEPS = ("minute", "hour", "day")
BAR_WIDTH = 40
EIGHTHS = " ▏▎▍▌▋▊▉"


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument("--by", choices=STEPS, default="minute", help="the length of a step (default: minute)")
    parser.add_argument("--from", dest="start", metavar="TIME", help="start of the forecast (default: now)")
    parser.add_argument(
        "--to",
        dest="end",
        metavar="TIME",
        help="end of the forecast (default: an hour, two days or a month ahead, as --by)",
    )
    add_server(parser)
    parser.set_defaults(run=forecast)


def forecast(arguments: Arguments, screen: Screen) -> int:
    """How much is pending in each step of time."""
    query = {"by": arguments.by, "from": arguments.start, "to": arguments.end}
    document = client_of(arguments).call("GET", "/v1/forecast", query=query)
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    steps = document.get("steps") or []
    if not steps:
        screen.note(f"nothing is pending from {clock_text(document['from'])} to {clock_text(document['to'])}")
    for line in chart(steps, screen):
        screen.say(line)
    if not document.get("complete", True):
        screen.note("not complete: choose a shorter range, or longer steps with --by")
    return Exit.DONE


def chart(steps: list[dict[str, Any]], screen: Screen) -> list[str]:
    """One line for each step that holds something."""
    most = max((step["pending"] for step in steps), default=1)
    width = len(f"{most:,}")
    return [
        f"{clock_text(step['at'])[:16]}Z  {step['pending']:>{width},}  "
        f"{screen.paint(bar(step['pending'], most), 'cyan')}"
        for step in steps
    ]


def bar(count: int, most: int) -> str:
    """A bar to scale, to an eighth of a character; something is never nothing."""
    whole, eighths = divmod(max(1, count * BAR_WIDTH * 8 // most), 8)
    return "█" * whole + EIGHTHS[eighths].strip()
