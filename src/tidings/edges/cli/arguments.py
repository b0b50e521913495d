"""What commands share: the server to call, options derived from fields of the HTTP API, paging and outcomes."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tidings.domain.names import BUSES, NOT_RELEASED
from tidings.edges.cli.client import Client
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen, shown

if TYPE_CHECKING:
    from msgspec import Struct

    from tidings.config import Config
    from tidings.config.checks import StoreUrl
    from tidings.ports import ApiKey
    from tidings.timeline.migrations import Plan, StepDone
    from tidings.timeline.transfer.protocol import Move
    from tidings.timeline.transfer.run import OnProgress


TENANT_VARIABLE = "TIDINGS_TENANT"
URL_DEFAULT = "http://127.0.0.1:8460"
PAGE_ROWS = 500
LIMIT_DEFAULT = 50
FINISHED_STATES = ("cancelled", "ended", "missed", "released")

Arguments = argparse.Namespace
Run = Callable[[Arguments, Screen], int]
Rows = list[dict[str, Any]]
ShowRows = Callable[[Rows, bool], None]


class Hooks(Protocol):
    """What the command line uses of the node; `tidings.__main__` provides it."""

    def run_node(self, config: "Config", member: str | None) -> int:
        """Serve until a signal stops it; returns the exit code."""
        ...

    def check_channels(self, config: "Config") -> None:
        """Raise for channel settings that are not valid, so that no secret in them is printed."""
        ...

    def create_key(self, store: str, schema: str | None, name: str, tenant: str, admin: bool) -> str:
        """Create a key and return it; only its digest is stored."""
        ...

    def list_keys(self, store: str, schema: str | None) -> "list[ApiKey]":
        """The keys by name."""
        ...

    def revoke_key(self, store: str, schema: str | None, name: str) -> bool:
        """Revoke a key; False if there is none of that name."""
        ...

    def migrate_store(self, store: "StoreUrl", check: bool, on_step: "Callable[[StepDone], None]") -> "Plan":
        """Migrate a store to the current layout; with `check`, only return what would be done."""
        ...

    def copy_store(self, source: "StoreUrl", target: "StoreUrl", leave_log: bool, on_progress: "OnProgress") -> Any:
        """Move everything from one store to another; it can be repeated after an interruption."""
        ...

    def take_back(self, source: "StoreUrl") -> "Move":
        """Allow a store that has moved to be served again; returns where it had moved to."""
        ...


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, with the command that shows the help."""

    def error(self, message: str) -> NoReturn:
        raise Failure(Exit.USAGE, f"{_with_suggestion(message)}\nsee `{self.prog} --help`")


def _with_suggestion(message: str) -> str:
    """The message; for an unknown word with the closest known ones."""
    head, marker, choices = message.partition(" (choose from ")
    if not marker:
        return message
    from difflib import get_close_matches

    word = head.rpartition(": ")[2].strip("'")
    known = [choice.strip("' ") for choice in choices.rstrip(")").split(",")]
    near = get_close_matches(word, known, n=2)
    return f"{head}; did you mean {' or '.join(near)}?" if near else f"{head}; choose from {', '.join(known)}"


def sentence(text: str) -> str:
    """A summary as a sentence; names such as API and Kafka keep their capitals."""
    return f"{text[0].upper()}{text[1:]}."


def add_server(parser: argparse.ArgumentParser, *, has_tenant: bool = True) -> None:
    """The options that name the server, the API key and the tenant."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", help=f"the server's URL (or TIDINGS_URL; default {URL_DEFAULT})")
    group.add_argument("--api-key", metavar="KEY", help="your API key (or TIDINGS_KEY)")
    if has_tenant:
        purpose = "act for this tenant (or TIDINGS_TENANT); needs an admin key, or a server without keys"
        group.add_argument("--tenant", dest="acts_for", metavar="NAME", help=purpose)
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of text for people")


def add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    purpose: str,
    run: Run,
    subject: str | None = None,
) -> argparse.ArgumentParser:
    """Add a subcommand; `subject` names its positional argument."""
    parser = verbs.add_parser(name, help=purpose, description=sentence(purpose), allow_abbrev=False)
    if subject is not None:
        parser.add_argument("which", metavar=subject.upper(), help=f"the {subject}")
    add_server(parser)
    parser.set_defaults(run=run, verb=parser.prog)
    return parser


def add_bare_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, purpose: str, run: Run
) -> argparse.ArgumentParser:
    """Add a subcommand to a command that also works without one; options may then precede the subcommand too."""
    parser = verbs.add_parser(
        name, help=purpose, description=sentence(purpose), allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    add_server(parser)
    parser.set_defaults(run=run, verb=parser.prog)
    return parser


def add_schema(parser: argparse.ArgumentParser) -> None:
    """The option for the PostgreSQL schema, for commands that use a store without a server."""
    parser.add_argument(
        "--schema", metavar="NAME", help="the PostgreSQL schema (default: store.schema of the settings, or tidings)"
    )


def add_field(
    parser: "argparse.ArgumentParser | argparse._ActionsContainer", shape: "type[Struct]", name: str, **more: Any
) -> None:
    """The option for a field of the HTTP API: its name, help and choices are those of the field."""
    from tidings.shapes.fields import fields_of, help_of

    field = fields_of(shape)[name]
    option: dict[str, Any] = {"help": help_of(shape, name)}
    if field.choices:
        option["choices"] = field.choices
    elif field.is_duration:
        option["metavar"] = "DURATION"
    parser.add_argument(f"--{name.replace('_', '-')}", **(option | more))


def add_bus(parser: argparse.ArgumentParser) -> None:
    """The option for the bus of a topic."""
    parser.add_argument(
        "--bus", choices=BUSES, help="the bus of the topic; default: the bus that the server releases to"
    )


def client_of(arguments: Arguments) -> Client:
    """The client for the server that the arguments or the environment name."""
    environment = os.environ
    url = arguments.url or environment.get("TIDINGS_URL") or URL_DEFAULT
    return Client(url, arguments.api_key or environment.get("TIDINGS_KEY"), tenant_of(arguments))


def tenant_of(arguments: Arguments) -> str | None:
    """The tenant that the arguments or the environment name; None for the tenant of the key."""
    if "acts_for" not in arguments:
        return None
    named: str | None = arguments.acts_for
    return named if named is not None else os.environ.get(TENANT_VARIABLE) or None


def pair(text: str) -> tuple[str, str]:
    """Split `name=value`."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def add_paging(parser: argparse.ArgumentParser) -> None:
    """The options for how many rows to list, and from where."""
    parser.add_argument(
        "--limit", type=positive, default=LIMIT_DEFAULT, help=f"the most to list (default: {LIMIT_DEFAULT})"
    )
    parser.add_argument("--all", action="store_true", help="list all of them")
    parser.add_argument("--cursor", help="continue from the cursor that an earlier list printed")


def show_pages(
    arguments: Arguments,
    screen: Screen,
    path: str,
    noun: str,
    show_rows: ShowRows,
    query: Mapping[str, object] | None = None,
    empty: str = "nothing matches",
) -> int:
    """Show the rows that a path lists as `noun`. `show_rows` gets each page, and whether it is the first one."""
    cursor, found = None, 0
    for page in pages(client_of(arguments), path, noun, query or {}, arguments):
        cursor, rows = page.get("cursor"), page[noun]
        if arguments.json:
            for row in rows:
                screen.json(row)
        elif rows:
            show_rows(rows, found == 0)
        found += len(rows)
    if not found:
        screen.note(empty)
    if cursor is not None:
        screen.note(f"there are more: use --all, or continue with --cursor {cursor}")
    return Exit.DONE


def pages(
    client: Client, path: str, noun: str, query: Mapping[str, object], arguments: Arguments
) -> Iterator[dict[str, Any]]:
    """Pages until there are enough rows. A page may be short, or empty, although more follow."""
    cursor, left = arguments.cursor, None if arguments.all else arguments.limit
    while left is None or left > 0:
        limit = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page = client.call("GET", path, query={**query, "cursor": cursor, "limit": limit})
        cursor = page.get("cursor")
        left = None if left is None else left - len(page[noun])
        yield page
        if cursor is None:
            return


def show_outcome(document: dict[str, Any], where: str, arguments: Arguments, screen: Screen) -> int:
    """Print the outcome of a change on one line."""
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    due = screen.moment(document.get("due_at"))
    words = [screen.word(document.get("outcome")), screen.paint(shown(document.get("id")), "bold"), where]
    state, note = document.get("state"), document.get("note")
    if is_missed(note):
        screen.say(missed_line(document, screen))
        return Exit.DONE
    if state in FINISHED_STATES:
        end = f": it is already {state}, and nothing new will be released"
    else:
        end = f", due {due}" if due else ""
    screen.say(" ".join(word for word in words if word) + end)
    if note:
        screen.note(f"note: {shown(note)}")
    if (number := document.get("in_flight")) is not None:
        which = f"occurrence {number}" if number > 0 else "a record that was fired"
        screen.note(f"note: {which} is on its way to Kafka already, and will appear")
    return Exit.DONE


def is_missed(note: object) -> bool:
    """Whether the note of an answer says that nothing will be released."""
    return NOT_RELEASED in str(note or "")


def missed_line(document: dict[str, Any], screen: Screen) -> str:
    """The line for something that is missed already: its due time, without a note, would read as a promise."""
    return f"{screen.paint(shown(document.get('id')), 'bold')}: {shown(document.get('note'))}"
