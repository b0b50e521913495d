"""`show`, `explain`, `list`, `cancel`, `pause`, `resume`, `fire`, `preview` and `forecast`."""

import argparse
from functools import partial
from typing import Any, get_args

from tidings.domain.names import Policy
from tidings.edges.cli.arguments import (
    Arguments,
    add_field,
    add_paging,
    add_server,
    client_of,
    pair,
    positive,
    show_outcome,
    show_pages,
)
from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen, clock_text, shown

STATES = ("pending", "paused", "in_flight", "released", "missed", "cancelled", "ended")
TIMES = ("due_at", "accepted_at", "released_at", "finished_at", "at")

MARKS = {
    "moved": "moved: DST skips this time",
    "skipped": "skipped: DST skips this time",
    "first": "the first of two",
    "second": "the second of two",
}

STEPS = ("minute", "hour", "day")
BAR_WIDTH = 40
EIGHTHS = " ▏▎▍▌▋▊▉"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    name = parser.get_default("command")
    if name == "list":
        _configure_list(parser)
        parser.set_defaults(run=show_list)
    else:
        parser.add_argument("id", metavar="ID", help="the id of the schedule")
        parser.set_defaults(run=show if name == "show" else explain)
    add_server(parser)


def _configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="only schedules of this topic")
    parser.add_argument("--state", choices=STATES, help="only schedules in this state")
    parser.add_argument("--from", dest="due_from", metavar="TIME", help="due at or after this: a time, +1h or -1h")
    parser.add_argument("--to", dest="due_to", metavar="TIME", help="due before this")
    parser.add_argument("--prefix", help="only ids that begin with this")
    parser.add_argument("--label", type=pair, metavar="NAME=VALUE", help="only with this label")
    add_paging(parser)


def show(arguments: Arguments, screen: Screen) -> int:
    """Show one schedule."""
    document = client_of(arguments).call("GET", f"/v1/schedules/{segment(arguments.id)}")
    if arguments.json:
        screen.json(document)
    else:
        screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    return Exit.DONE


def explain(arguments: Arguments, screen: Screen) -> int:
    """Show the history of a schedule."""
    document = client_of(arguments).call("GET", f"/v1/schedules/{segment(arguments.id)}/explain")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    events = document["history"]
    held = f", held: {shown(document['reason'])}" if _is_held(document) else ""
    screen.say(f"{screen.paint(shown(document.get('id')), 'bold')} {screen.word(document.get('state'))}{held}")
    if note := document.get("note"):
        screen.note(f"note: {shown(note)}")
    heads = ("when", "what", "occurrence", "due", "late", "why")
    screen.table(heads, [_event(event, screen) for event in events], spare=("due",))
    return Exit.DONE


def show_list(arguments: Arguments, screen: Screen) -> int:
    """List schedules: pending ones first, by due time, then finished ones, the latest first."""
    query = {
        "topic": arguments.topic,
        "state": arguments.state,
        "from": arguments.due_from,
        "to": arguments.due_to,
        "prefix": arguments.prefix,
        "label": None if arguments.label is None else "=".join(arguments.label),
    }
    show_rows = partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/schedules", "schedules", show_rows, query)


def _show_rows(rows: list[dict[str, Any]], first: bool, screen: Screen) -> None:
    columns = ("id", "topic", "state", "priority")
    cells = [[*map(row.get, columns), screen.moment(row.get("due_at"))] for row in rows]
    screen.table((*columns, "due"), cells, heading=first, spare=("priority",))


def _value(name: str, value: Any, screen: Screen) -> Any:
    if name in TIMES:
        return screen.moment(value) or value
    if name == "headers":
        return ", ".join("=".join(map(shown, header)) for header in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
    return value


def _is_held(document: dict[str, Any]) -> bool:
    """Whether its destination refuses it; one that is in flight without a reason is on its way."""
    return document.get("state") == "in_flight" and bool(document.get("reason"))


def _event(event: dict[str, Any], screen: Screen) -> list[object]:
    late = event.get("late_ms")
    why = event.get("reason") or ""
    if (count := event.get("count") or 1) > 1:
        why = f"{why} ({count} occurrences)".strip()
    return [
        screen.moment(event.get("at")),
        event.get("event"),
        event.get("occurrence"),
        clock_text(str(event["due_at"])) if "due_at" in event else "",
        "" if late is None else f"{late:,.1f} ms",
        why,
    ]


def configure_change(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
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
    """Change each, and continue if one cannot be changed; returns the highest exit code."""
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
    show_outcome(answer, "", arguments, screen)


def configure_preview(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `preview`."""
    from tidings.edges.cli.commands.schedule import add_timing
    from tidings.shapes.schedule import Preview

    add_timing(parser, Preview, required=True, ends=False)
    add_field(parser, Preview, "after", metavar="TIME")
    add_field(parser, Preview, "count", type=positive, metavar="N")
    add_server(parser)
    parser.set_defaults(run=preview)


def preview(arguments: Arguments, screen: Screen) -> int:
    """Show the next moments with their numbers; in a time zone also the local time, and the effect of DST."""
    from tidings.edges.cli.commands.schedule import local_timing_of

    body = local_timing_of(arguments, screen)
    body |= {name: value for name in ("after", "count") if (value := getattr(arguments, name)) is not None}
    document = client_of(arguments).call("POST", "/v1/preview", body=body)
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    if moments := document["moments"]:
        if any("due_at_local" in moment for moment in moments):
            screen.table(("occurrence", "local", "due", ""), [_local(moment, screen) for moment in moments])
        else:
            screen.table(("occurrence", "due"), [(m["occurrence"], screen.moment(m["due_at"])) for m in moments])
    else:
        screen.note("no occurrences follow")
    if note := document.get("note"):
        screen.note(f"note: {shown(note)}")
    return Exit.DONE


def _local(moment: dict[str, Any], screen: Screen) -> tuple[object, ...]:
    local = str(moment["due_at_local"]).replace("T", " ")
    mark = MARKS.get(str(moment.get("mark")), "")
    return moment.get("occurrence"), local, screen.moment(moment.get("due_at")), mark


def configure_forecast(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `forecast`."""
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
    """Show how many schedules are pending in each step of time."""
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
    """One line for each step that is not empty."""
    most = max((step["pending"] for step in steps), default=1)
    width = len(f"{most:,}")
    return [
        f"{clock_text(step['at'])[:16]}Z  {step['pending']:>{width},}  "
        f"{screen.paint(bar(step['pending'], most), 'cyan')}"
        for step in steps
    ]


def bar(count: int, most: int) -> str:
    """A bar to scale, to an eighth of a character, which is the minimum."""
    whole, eighths = divmod(max(1, count * BAR_WIDTH * 8 // most), 8)
    return "█" * whole + EIGHTHS[eighths].strip()
