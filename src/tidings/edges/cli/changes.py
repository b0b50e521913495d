"""`cancel`, `pause`, `resume` and `fire`: change schedules by their ids."""

import argparse
from typing import get_args

from tidings.domain.vocabulary import Policy
from tidings.edges.cli.arguments import Arguments, add_server, client_of
from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.schedule import tell
from tidings.edges.cli.screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser of one of these commands."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="the ids of the schedules")
    if parser.get_default("command") == "resume":
        parser.add_argument(
            "--missed",
            choices=get_args(Policy),
            help="what to do with occurrences that fell due while paused; default: the policy of the schedule (--late)",
        )
    add_server(parser)
    parser.set_defaults(run=change)


def change(arguments: Arguments, screen: Screen) -> int:
    """Change each, and go on when one cannot be; the exit code is the worst."""
    client = client_of(arguments)
    worst = Exit.DONE
    for schedule_id in arguments.ids:
        try:
            _change(client, schedule_id, arguments, screen)
        except Failure as failure:
            if failure.code == Exit.UNREACHABLE:
                raise
            if arguments.json and failure.document is not None:
                screen.json(failure.document)
            screen.note(f"tidings: {schedule_id}: {failure}")
            worst = max(worst, failure.code)
    return worst


def _change(client: Client, schedule_id: str, arguments: Arguments, screen: Screen) -> None:
    path = f"/v1/schedules/{segment(schedule_id)}"
    if arguments.command == "cancel":
        answer = client.call("DELETE", path)
    else:
        missed = getattr(arguments, "missed", None)
        query = None if missed is None else {"missed": missed}
        answer = client.call("POST", f"{path}/{arguments.command}", query=query)
    tell(answer, "", arguments, screen)
