"""`schedule`, `replace` and `publish`."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_field, add_server, client_of
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.message import add_message, add_schedule, message_of, schedule_of
from tidings.edges.cli.screen import Screen, shown
from tidings.shapes.fields import help_of
from tidings.shapes.schedule import NewSchedule

FINISHED_STATES = ("cancelled", "ended", "missed", "released")


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser of one of these commands."""
    name = parser.get_default("command")
    topic = help_of(NewSchedule, "topic")
    match name:
        case "schedule":
            parser.add_argument("--to", metavar="TOPIC", help=topic)
            add_field(parser, NewSchedule, "id")
            parser.add_argument(
                "--from",
                dest="source",
                metavar="FILE",
                help="schedule each line of a file of JSON lines; - for standard input",
            )
            parser.set_defaults(run=schedule)
        case "replace":
            parser.add_argument("id", metavar="ID", help="the schedule to replace")
            parser.add_argument("--to", metavar="TOPIC", required=True, help=topic)
            parser.add_argument(
                "--reuse", action="store_true", help="start a new schedule under this id if the old one is finished"
            )
            kept = "continue the occurrence numbers; past occurrences count against --count"
            parser.add_argument("--keep-count", action="store_true", help=kept)
            parser.set_defaults(run=replace)
        case _:
            parser.add_argument("topic", metavar="TOPIC", help=topic)
            parser.set_defaults(run=publish)
    add_message(parser, needed=name != "schedule")
    if name != "publish":
        add_schedule(parser)
    add_server(parser, short_key=False)


def schedule(arguments: Arguments, screen: Screen) -> int:
    """Schedule one message, or each line of a file."""
    if arguments.source is not None:
        from tidings.edges.cli.bulk import send_file

        return send_file(arguments, screen)
    if arguments.to is None:
        raise Failure(Exit.USAGE, "--to is missing: give the topic with --to TOPIC")
    document = schedule_of(arguments)
    if arguments.id is not None:
        document["id"] = arguments.id
    answer = client_of(arguments).call("POST", "/v1/schedules", body=document)
    tell(answer, f"to {arguments.to}", arguments, screen)
    finished = answer.get("outcome") == "unchanged" and answer.get("state") in FINISHED_STATES
    return Exit.CONFLICT if finished else Exit.DONE


def replace(arguments: Arguments, screen: Screen) -> int:
    """Put a message in place of what an id holds."""
    query = {name: "true" for name in ("reuse", "keep_count") if getattr(arguments, name)} or None
    path = f"/v1/schedules/{segment(arguments.id)}"
    answer = client_of(arguments).call("PUT", path, query=query, body=schedule_of(arguments))
    return tell(answer, f"to {arguments.to}", arguments, screen)


def publish(arguments: Arguments, screen: Screen) -> int:
    """Put a record on a topic now."""
    path = f"/v1/topics/{segment(arguments.topic)}/records"
    answer = client_of(arguments).call("POST", path, body=message_of(arguments))
    if arguments.json:
        screen.json(answer)
    else:
        screen.say(f"{screen.word('published')} {screen.paint(shown(answer.get('id')), 'bold')} to {arguments.topic}")
    return Exit.DONE


def tell(document: dict[str, Any], where: str, arguments: Arguments, screen: Screen) -> int:
    """Show the answer to a change in one line."""
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    due = screen.moment(document.get("due_at"))
    words = [screen.word(document.get("outcome")), screen.paint(shown(document.get("id")), "bold"), where]
    state = document.get("state")
    if state in FINISHED_STATES:
        end = f": it is already {state}, and nothing new will be released"
    else:
        end = f", due {due}" if due else ""
    screen.say(" ".join(word for word in words if word) + end)
    if note := document.get("note"):
        screen.note(f"{shown(document.get('id'))}: {shown(note)}")
    if (number := document.get("in_flight")) is not None:
        screen.note(f"{shown(document.get('id'))}: occurrence {number} is on its way to Kafka already, and will appear")
    return Exit.DONE
