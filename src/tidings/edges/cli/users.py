"""`users`: the recipients of notifications, with their addresses, preferences and quiet hours."""

import argparse
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_field, add_verb, client_of, pair
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.pages import Rows, add_paging, show_pages
from tidings.edges.cli.screen import Screen, shown
from tidings.shapes.fields import fields_of, help_of
from tidings.shapes.user import Profile, QuietHours

TEXTS = ("name", "email", "phone", "webhook", "zone", "locale")
FIELDS = (*TEXTS, "devices", "preferences", "quiet", "variables")
YES_OR_NO = {"yes": True, "true": True, "no": False, "false": False}
KINDS = {
    "user": "profile",
    "notification": "notifications",
    "delivery": "deliveries",
    "inbox": "inbox lines",
    "dedupe": "dedupe keys",
    "sent": "ids at providers",
}
SPARED = {"spare": True, "hold": False}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the seven."""
    verbs = parser.add_subparsers(metavar="put|change|get|list|delete|import|erase", required=True)
    _add_profile(add_verb(verbs, "put", "create or replace a user", put, "user"))
    changing = add_verb(verbs, "change", "change some fields of a user, and keep the rest", change, "user")
    _add_profile(changing)
    changing.add_argument(
        "--remove", action="append", default=[], choices=FIELDS, metavar="FIELD", help=f"one of {', '.join(FIELDS)}"
    )
    add_verb(verbs, "get", "show a user", get, "user")
    listing = add_verb(verbs, "list", "list users by id", index)
    listing.add_argument("--prefix", help="only ids with this prefix")
    add_paging(listing)
    add_verb(verbs, "delete", "delete a user, and keep their notifications", delete, "user")
    bulk = add_verb(verbs, "import", "import users from a file: CSV, or one JSON object per line", import_users)
    bulk.add_argument("source", metavar="FILE", help="the file, - for standard input")
    bulk.add_argument(
        "--format", choices=("csv", "ndjson"), help="the format; left out: detected from the name or the content"
    )
    add_verb(verbs, "erase", "erase a user and all their data, permanently", erase, "user")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    for name in TEXTS:
        add_field(parser, Profile, name)
    add_field(parser, Profile, "quiet", metavar="HOURS")
    then = fields_of(QuietHours)["then"]
    parser.add_argument("--in-quiet", choices=then.choices, help=help_of(QuietHours, "then"))
    parser.add_argument("--high", choices=tuple(SPARED), help="whether messages of high priority are sent in them")
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="apns:TOKEN|fcm:TOKEN",
        help="a device for push messages; may be repeated",
    )
    parser.add_argument(
        "--prefer",
        action="append",
        default=[],
        type=pair,
        metavar="WHAT=yes|no",
        help="A preference by channel, category or channel/category: sms=no, news=no, sms/news=yes; may be repeated",
    )
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a variable for templates; repeatable",
    )


def profile_of(arguments: Arguments) -> dict[str, Any]:
    """The profile that the flags describe, as the HTTP API takes it."""
    document: dict[str, Any] = {name: value for name in TEXTS if (value := getattr(arguments, name)) is not None}
    quiet = {"hours": arguments.quiet, "then": arguments.in_quiet, "spares_high": SPARED.get(arguments.high)}
    if given := {name: value for name, value in quiet.items() if value is not None}:
        document["quiet"] = given
    if arguments.device:
        document["devices"] = [_device(text) for text in arguments.device]
    if arguments.prefer:
        document["preferences"] = {name: _yes_or_no(name, text) for name, text in arguments.prefer}
    if arguments.var:
        document["variables"] = dict(arguments.var)
    return document


def put(arguments: Arguments, screen: Screen) -> int:
    """Keep a user."""
    document = profile_of(arguments)
    if "quiet" in document and "hours" not in document["quiet"]:
        raise Failure(Exit.USAGE, "--quiet is missing: give the hours, such as --quiet 22:00-07:00")
    return _tell(client_of(arguments).call("PUT", _path(arguments), body=document), arguments, screen)


def change(arguments: Arguments, screen: Screen) -> int:
    """Change single fields."""
    document = profile_of(arguments)
    if both := [name for name in arguments.remove if name in document]:
        raise Failure(Exit.USAGE, f"{both[0]}: give it or --remove it, not both")
    document |= dict.fromkeys(arguments.remove)
    if not document:
        raise Failure(Exit.USAGE, "nothing to change: give a flag such as --email, or --remove FIELD")
    return _tell(client_of(arguments).call("PATCH", _path(arguments), body=document), arguments, screen)


def get(arguments: Arguments, screen: Screen) -> int:
    """One user."""
    document = client_of(arguments).call("GET", _path(arguments))
    if arguments.json:
        screen.json(document)
    else:
        screen.facts((name, _value(name, value)) for name, value in document.items())
    return Exit.DONE


def index(arguments: Arguments, screen: Screen) -> int:
    """Users by id."""
    query, empty = {"prefix": arguments.prefix}, "no users: `users put ID` creates one, `users import FILE` many"
    if arguments.prefix:
        empty = "no users match"
    return show_pages(arguments, screen, "/v1/users", "users", partial(_show_rows, screen=screen), query, empty)


def delete(arguments: Arguments, screen: Screen) -> int:
    """Remove a user alone."""
    return _tell(client_of(arguments).call("DELETE", _path(arguments)), arguments, screen)


def import_users(arguments: Arguments, screen: Screen) -> int:
    """Keep the users of a file."""
    from tidings.edges.cli.importing import import_file

    return import_file(arguments, screen)


def erase(arguments: Arguments, screen: Screen) -> int:
    """Remove all that is known of a person, and say what that was."""
    document = client_of(arguments).call("POST", f"{_path(arguments)}/erase")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    counts = [(KINDS.get(kind, kind), f"{count:,}") for kind, count in document["removed"].items()]
    screen.say(f"erased {screen.paint(arguments.which, 'bold')}")
    screen.facts([*counts, ("cancelled", document["cancelled"]), ("kept as a digest", document["suppressions"] or "")])
    if document["providers"]:
        screen.say(
            f"What {', '.join(document['providers'])} may still store messages to this user: ask them to erase those."
        )
    return Exit.DONE


def _path(arguments: Arguments) -> str:
    return f"/v1/users/{segment(arguments.which)}"


def _tell(document: dict[str, Any], arguments: Arguments, screen: Screen) -> int:
    if arguments.json:
        screen.json(document)
    else:
        screen.say(f"{screen.word(document['outcome'])} {screen.paint(shown(document['id']), 'bold')}")
    return Exit.DONE


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    columns = ("id", "name", "email", "phone", "zone", "quiet")
    cells = [[_value(column, row.get(column)) for column in columns] for row in rows]
    screen.table(columns, cells, heading=first, states=False)


def _value(name: str, value: Any) -> Any:
    match name:
        case "devices":
            return ", ".join(f"{device['platform']}:{device['token']}" for device in value)
        case "preferences":
            return ", ".join(f"{what}={'yes' if wish else 'no'}" for what, wish in value.items())
        case "variables":
            return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
        case "quiet" if isinstance(value, dict):
            told = [*(["drop"] if value.get("then") == "drop" else []), *(["high too"] if _holds_high(value) else [])]
            return value["hours"] + (f" ({', '.join(told)})" if told else "")
        case _:
            return value


def _holds_high(quiet: dict[str, Any]) -> bool:
    return quiet.get("spares_high") is False


def _device(text: str) -> dict[str, str]:
    platform, separator, token = text.partition(":")
    if not separator or not token:
        raise Failure(Exit.USAGE, f"--device {text}: write the platform first, apns:{text} or fcm:{text}")
    return {"platform": platform, "token": token}


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in YES_OR_NO:
        raise Failure(Exit.USAGE, f"--prefer {name}={text}: say yes or no")
    return YES_OR_NO[text.lower()]
