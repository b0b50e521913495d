"""`notify` and `notifications`: send notifications, and show what happened to them."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

from tidings.domain.names import Policy
from tidings.domain.notifications.notification import InlineContent
from tidings.edges.cli.arguments import (
    Arguments,
    Rows,
    add_bare_verb,
    add_field,
    add_paging,
    add_server,
    client_of,
    is_missed,
    missed_line,
    show_outcome,
    show_pages,
)
from tidings.edges.cli.client import Client, faults, in_commands, segment
from tidings.edges.cli.commands.deliveries import SPARE, STATES, add_filters, heads, row_of
from tidings.edges.cli.commands.schedule import (
    BESIDE,
    LISTS,
    WHEN,
    add_timing,
    add_unset,
    send_lines,
    text_of,
    timing_of,
    with_removed,
)
from tidings.edges.cli.commands.templates import PARTS, add_variables, variables_of
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen, clock_text, shown
from tidings.shapes.fields import fields_of, lowered, names_of
from tidings.shapes.notification import NewNotification
from tidings.shapes.schedule import When

CONTENT = ("title", "text", "html")
# Fields with an option of another name or form; every other field has an option of its own name.
SPECIAL_FIELDS = {
    *names_of(When),
    *("user", "users", "to", "channel", "channels", "version", "variables", "content", "words", "count"),
}
OPTIONS = tuple(name for name in names_of(NewNotification) if name not in SPECIAL_FIELDS)
CHANGEABLE = tuple(name for name in OPTIONS if name not in {"id", "dedupe_key", "dedupe_window"})
LINE_FIELDS = ("users", "to", "channel", "version", "var", "vars", *CONTENT, *OPTIONS, *WHEN, *BESIDE, *LISTS, "count")
REPLACE = "replace a pending notification, or add it"
CHANGE = "change single fields of a pending notification"
CODES = {"rejected": Exit.USAGE, "conflict": Exit.CONFLICT}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `notify`."""
    parser.add_argument(
        "users", metavar="USER", nargs="*", help="the recipients; local times are in each user's own time zone"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="send each line of a file of JSON lines; - for standard input",
    )
    _add_request(parser, OPTIONS)
    add_server(parser)
    parser.set_defaults(run=notify)


def _add_request(parser: argparse.ArgumentParser, options: Sequence[str]) -> None:
    """Add the options for the channels, the content, when, and these fields."""
    parser.add_argument("--to", metavar="ADDRESS", help="a bare address instead, with its --channel")
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        choices=(*PARTS, "all"),
        help="channel to use; repeated: in order of preference; all: each of them "
        f"(default: {fields_of(NewNotification)['channel'].absent})",
    )
    add_field(parser, NewNotification, "version", metavar="N")
    add_variables(parser)
    for name in CONTENT:
        content = lowered(fields_of(InlineContent)[name].description.rstrip("."))
        parser.add_argument(
            f"--{name}", metavar="TEXT", help=f"{content}, instead of a template; @FILE for a file, - for stdin"
        )
    for name in options:
        add_field(parser, NewNotification, name)
    add_timing(parser, NewNotification)


def notify(arguments: Arguments, screen: Screen) -> int:
    """Send the request, and print an outcome for each user; or send each line of a file."""
    if arguments.source is not None:
        given = [name for name in LINE_FIELDS if getattr(arguments, name)]
        if given:
            name = given[0].removesuffix("s") if given[0] in LISTS else given[0]
            option = "USER" if name == "users" else f"--{name.replace('_', '-')}"
            raise Failure(Exit.USAGE, f"with --from, each line gives its own fields: leave out {option}")
        return send_lines(arguments, screen, "/v1/notifications")
    answer = client_of(arguments).call("POST", "/v1/notifications", body=_document(arguments))
    if len(arguments.users) < 2:
        return _show_outcome(answer, arguments, screen)
    codes = {_show_outcome(each, arguments, screen) for each in answer["notifications"]} - {Exit.DONE}
    return Exit.FAILED if len(codes) > 1 or Exit.USAGE in codes else max(codes, default=Exit.DONE)


def _document(arguments: Arguments) -> dict[str, Any]:
    """The notification that the arguments ask for."""
    document = {**_recipient(arguments), **_content(arguments), **timing_of(arguments)}
    given = {name: getattr(arguments, name) for name in ("count", *OPTIONS)}
    return document | {name: value for name, value in given.items() if value is not None}


def _recipient(arguments: Arguments) -> dict[str, Any]:
    if arguments.users and arguments.to is not None:
        raise Failure(Exit.USAGE, "give either a USER (or several) or --to ADDRESS, not both")
    if not arguments.users and arguments.to is None:
        raise Failure(
            Exit.USAGE, "no recipient: give a USER (or several), or an address with --to ADDRESS and its --channel"
        )
    channels = _channels(arguments)
    if arguments.to is not None:
        return {"to": _address(arguments.to, arguments.channel), **channels}
    if len(arguments.users) == 1:
        return {"user": arguments.users[0], **channels}
    return {"users": arguments.users, **channels}


def _channels(arguments: Arguments) -> dict[str, Any]:
    if "all" in arguments.channel:
        if len(arguments.channel) > 1:
            raise Failure(Exit.USAGE, "--channel all means every channel: leave the others out")
        return {"channels": "all"}
    if not arguments.channel:
        return {}
    return {"channel": arguments.channel[0]} if len(arguments.channel) == 1 else {"channels": arguments.channel}


def _address(text: str, channels: list[str]) -> Any:
    """The address; for push a device, written as `apns:TOKEN`."""
    if channels != ["push"]:
        return text
    platform, separator, token = text.partition(":")
    if not separator:
        raise Failure(Exit.USAGE, f"--to {text}: write the platform first, apns:{text} or fcm:{text}")
    return {"platform": platform, "token": token}


def _content(arguments: Arguments) -> dict[str, Any]:
    content = _inline(arguments)
    if arguments.template is not None and content:
        raise Failure(Exit.USAGE, f"give either --template or a literal text (--{next(iter(content))}), not both")
    if arguments.template is None and not content:
        raise Failure(Exit.USAGE, "nothing to send: give a --template, or the text as --text")
    if content:
        if "text" not in content:
            raise Failure(Exit.USAGE, "--text is missing: give it too")
        if arguments.version is not None or arguments.var or arguments.vars is not None:
            raise Failure(Exit.USAGE, "a literal text is sent as it is: --var, --vars and --version need --template")
        return {"content": content}
    return _values(arguments)


def _inline(arguments: Arguments) -> dict[str, str]:
    return {name: text_of(text, f"--{name}") for name in CONTENT if (text := getattr(arguments, name)) is not None}


def _values(arguments: Arguments) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if variables := variables_of(arguments):
        document["variables"] = variables
    if arguments.version is not None:
        document["version"] = _version(arguments.version)
    return document


def _version(text: str) -> int | str:
    if text == "current":
        return text
    if not (text.isascii() and text.isdigit() and int(text)):
        raise Failure(Exit.USAGE, f"--version {text}: give a number from 1 on, or current")
    return int(text)


def _show_outcome(answer: dict[str, Any], arguments: Arguments, screen: Screen) -> Exit:
    """Print the outcome for one recipient on one line."""
    outcome, state = str(answer.get("outcome")), answer.get("state")
    code = Exit.CONFLICT if state == "cancelled" else CODES.get(outcome, Exit.DONE)
    if arguments.json:
        screen.json(answer)
        return code
    whom = shown(answer.get("user") or arguments.to)
    words = [screen.word(outcome), screen.paint(shown(answer.get("id")), "bold"), f"to {whom}"]
    if channels := answer.get("channels"):
        words.append(f"by {', '.join(channels)}")
    local = str(answer.get("due_at_local") or "").replace("T", " ")
    due = " = ".join(text for text in (local, screen.moment(answer.get("due_at"))) if text)
    end = f", due {due}" if due else ""
    if state not in {None, "pending", "processing"}:
        end = f": it is already {shown(state)}, and nothing new will be sent"
    if reason := answer.get("reason") or "; ".join(faults(answer)):
        first = f" of {shown(answer['first'])}" if answer.get("first") else ""
        end = f": {in_commands(shown(reason), '/v1/notifications', answer.get('id'))}{first}"
    note = answer.get("note")
    if is_missed(note):
        screen.say(missed_line(answer, screen))
        return code
    screen.say(" ".join(words) + end)
    if note:
        screen.note(f"note: {shown(note)}")
    return code


def configure_notifications(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `notifications`. Without one it lists, with the options of `list`."""
    _add_search(parser)
    add_server(parser)
    parser.set_defaults(run=index)
    verbs = parser.add_subparsers(metavar="list|show|explain|replace|change|reschedule|pause|resume|cancel")
    for name, purpose, run in (
        ("list", "list notifications, the latest first", index),
        ("show", "show a notification and its deliveries", show),
        ("explain", "show the history of a notification, from acceptance to the receipt", explain),
        ("reschedule", "change when a pending notification is due", reschedule),
        ("pause", "pause notifications until they are resumed", hold),
        ("resume", "resume paused notifications", hold),
        ("cancel", "cancel notifications that have not been sent", cancel),
    ):
        verb = add_bare_verb(verbs, name, purpose, run)
        verb.set_defaults(verb=name)
        if name == "list":
            _add_search(verb)
        elif name == "reschedule":
            verb.add_argument("which", metavar="NOTIFICATION", help="the notification")
            add_timing(verb, NewNotification, required=True)
            verb.set_defaults(**dict.fromkeys((*WHEN, *BESIDE, "count")), **{field: [] for field in LISTS})
        elif name in {"cancel", "pause", "resume"}:
            verb.add_argument("ids", metavar="NOTIFICATION", nargs="+", help="the notifications")
            if name == "resume":
                missed = "what to do with occurrences that fell due while paused; default: the policy (--late)"
                verb.add_argument("--missed", choices=get_args(Policy), help=missed)
        else:
            verb.add_argument("which", metavar="NOTIFICATION", help="the notification")

    _configure_replace(verbs.add_parser("replace", help=REPLACE, description=REPLACE))
    _configure_change(verbs.add_parser("change", help=CHANGE, description=CHANGE))


def _configure_replace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", metavar="NOTIFICATION", help="the notification")
    configure(parser)
    parser.add_argument("--reuse", action="store_true", help="begin again with an id that was cancelled or has ended")
    parser.set_defaults(run=replace)


def _configure_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", metavar="NOTIFICATION", help="the notification")
    add_field(parser, NewNotification, "user")
    _add_request(parser, CHANGEABLE)
    add_unset(parser)
    add_server(parser)
    parser.set_defaults(run=change)


def _add_search(parser: argparse.ArgumentParser) -> None:
    add_filters(parser, "accepted", (*STATES, "paused"))
    parser.add_argument("--to", metavar="ADDRESS", help="only to this bare address")
    parser.add_argument("--template", metavar="NAME", help="only of this template")
    parser.add_argument("--batch", metavar="NAME", help="only of this batch")
    parser.add_argument("--category", help="only of this category")
    parser.add_argument("--priority", choices=("high", "normal", "low"), help="only of this priority")
    add_paging(parser)


def index(arguments: Arguments, screen: Screen) -> int:
    """List the notifications that match."""
    names = ("user", "to", "state", "channel", "template", "batch", "category", "priority", "since", "until")
    query = {name: getattr(arguments, name) for name in names}
    rows = partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/notifications", "notifications", rows, query)


def show(arguments: Arguments, screen: Screen) -> int:
    """Show a notification and its deliveries."""
    document = client_of(arguments).call("GET", _path(arguments.which))
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    deliveries = document.pop("deliveries", None) or []
    screen.facts((name, _value(name, value, screen)) for name, value in document.items())
    if deliveries:
        screen.say("")
        screen.table(heads(), [row_of(delivery) for delivery in deliveries], spare=SPARE)
    return Exit.DONE


def explain(arguments: Arguments, screen: Screen) -> int:
    """Show the history of a notification, oldest first."""
    document = client_of(arguments).call("GET", f"{_path(arguments.which)}/explain")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    state = screen.word(document["state"]) if "state" in document else ""
    screen.say(f"{screen.paint(shown(document.get('id')), 'bold')} {state}".rstrip())
    history = document["history"]
    is_named = len({event["delivery"] for event in history if "delivery" in event}) > 1
    named = ("delivery",) if is_named else ()
    names = ("when", "what", *named, "try", "channel", "provider", "its id", "due", "late", "why")
    spare = ("its id", "due", "provider", "channel")
    rows = [_event(event, screen, is_named=is_named) for event in history]
    screen.table(names, rows, spare=spare)
    return Exit.DONE


def replace(arguments: Arguments, screen: Screen) -> int:
    """Replace a pending notification, or add it."""
    if len(arguments.users) > 1:
        raise Failure(Exit.USAGE, "a notification has one recipient: give one USER")
    query = {"reuse": "true"} if arguments.reuse else None
    answer = client_of(arguments).call("PUT", _path(arguments.which), query=query, body=_document(arguments))
    show_outcome(answer, "", arguments, screen)
    return Exit.DONE


def change(arguments: Arguments, screen: Screen) -> int:
    """Change only the given fields of a pending notification."""
    document = {} if arguments.user is None else {"user": arguments.user}
    if arguments.to is not None:
        document["to"] = _address(arguments.to, arguments.channel)
    if content := _inline(arguments):
        document["content"] = content
    document |= {**_channels(arguments), **_values(arguments), **timing_of(arguments)}
    given = {name: getattr(arguments, name) for name in ("count", *CHANGEABLE)}
    document |= {name: value for name, value in given.items() if value is not None}
    body = with_removed(document, arguments.unset)
    return show_outcome(client_of(arguments).call("PATCH", _path(arguments.which), body=body), "", arguments, screen)


def reschedule(arguments: Arguments, screen: Screen) -> int:
    """Change when a pending notification is due, and nothing else."""
    body = timing_of(arguments) | ({} if arguments.count is None else {"count": arguments.count})
    answer = client_of(arguments).call("PATCH", _path(arguments.which), body=body)
    show_outcome(answer, "", arguments, screen)
    return Exit.DONE


def hold(arguments: Arguments, screen: Screen) -> int:
    """Pause or resume each."""
    missed = getattr(arguments, "missed", None)
    query = None if missed is None else {"missed": missed}
    verb = arguments.verb
    return _change_each(
        arguments, screen, lambda client, name: client.call("POST", f"{_path(name)}/{verb}", query=query)
    )


def cancel(arguments: Arguments, screen: Screen) -> int:
    """Cancel each."""
    return _change_each(arguments, screen, lambda client, name: client.call("DELETE", _path(name)))


def _change_each(arguments: Arguments, screen: Screen, change: Callable[[Client, str], Any]) -> int:
    """Change each, and continue if one cannot be changed; returns the highest exit code."""
    client, worst = client_of(arguments), Exit.DONE
    for name in arguments.ids:
        try:
            show_outcome(change(client, name), "", arguments, screen)
        except Failure as failure:
            if failure.code == Exit.UNREACHABLE:
                raise
            if arguments.json and failure.document is not None:
                screen.json(failure.document)
            screen.note(f"tidings: {name}: {failure}")
            worst = max(worst, failure.code)
    return worst


def _path(name: str) -> str:
    return f"/v1/notifications/{segment(name)}"


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    cells = [
        (
            row["id"],
            row.get("user") or _value("to", row.get("to"), screen),
            ", ".join(row.get("channels") or ()),
            row.get("template"),
            row["state"],
            screen.moment(row.get("due_at")),
            row.get("reason"),
        )
        for row in rows
    ]
    names = ("id", "to", "channels", "template", "state", "due", "why")
    screen.table(names, cells, heading=first, spare=("channels", "template"))


def _event(event: dict[str, Any], screen: Screen, *, is_named: bool) -> tuple[object, ...]:
    late = event.get("late_ms")
    return (
        screen.moment(event.get("at")),
        event.get("event"),
        *((event.get("delivery"),) if is_named else ()),
        event.get("attempt"),
        event.get("channel"),
        event.get("provider"),
        event.get("provider_id"),
        clock_text(str(event["due_at"])) if event.get("due_at") else "",
        "" if late is None else f"{late:,.1f} ms",
        event.get("reason"),
    )


def _value(name: str, value: Any, screen: Screen) -> Any:
    if name.endswith("_at"):
        return screen.moment(value) or value
    if name == "to" and isinstance(value, dict):
        return f"{value['platform']}:{value['token']}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
    return ", ".join(map(shown, value)) if isinstance(value, list) else value
