"""What the command line needs of the node, given to it from above: edges do not know how a node is built."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidings.config import Config
    from tidings.config.checks import StoreUrl
    from tidings.ports import ApiKey
    from tidings.timeline.migrations import Plan, StepDone
    from tidings.timeline.transfer.protocol import Move
    from tidings.timeline.transfer.run import OnProgress

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from tidings.domain.schedules.schedule import BUSES
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen

if TYPE_CHECKING:
    from msgspec import Struct

    from tidings.edges.cli.client import Client

from collections.abc import Iterator, Mapping

from tidings.edges.cli.client import Client


class Hooks(Protocol):
    """Run a node, and care for stores that no server need have open: API keys, layouts, moves."""

    def run_node(self, config: "Config") -> int:
        """Serve until told to stop; answers the exit code."""
        ...

    def check_channels(self, config: "Config") -> None:
        """Refuse tables of channels that cannot be used, so that no secret is shown that stands among them."""
        ...

    def create_key(self, store: str, schema: str | None, name: str, tenant: str, admin: bool) -> str:
        """Make a key and answer it: only its digest is kept."""
        ...

    def list_keys(self, store: str, schema: str | None) -> "list[ApiKey]":
        """The keys by name."""
        ...

    def revoke_key(self, store: str, schema: str | None, name: str) -> bool:
        """Forget a key; False if there is none of that name."""
        ...

    def migrate_store(self, place: "StoreUrl", check: bool, tell: "Callable[[StepDone], None]") -> "Plan":
        """Bring a store up to date, or say what would be done."""
        ...

    def copy_store(self, source: "StoreUrl", target: "StoreUrl", leave_log: bool, tell: "OnProgress") -> Any:
        """Move everything from one store to another; run it again after an interruption."""
        ...

    def take_back(self, source: "StoreUrl") -> "Move":
        """Let a store that has moved be served again; returns where it had moved to."""
        ...


TENANT_VARIABLE = "TIDINGS_TENANT"
URL_DEFAULT = "http://127.0.0.1:8460"

Arguments = argparse.Namespace
Run = Callable[[Arguments, Screen], int]


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where to read more, and ends with the code for wrong usage."""

    def error(self, message: str) -> NoReturn:
        raise Failure(Exit.USAGE, f"{_guessed(message)}\nsee `{self.prog} --help`")


def _guessed(message: str) -> str:
    """The message; for a mistyped word with the nearest ones that there are."""
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


def add_server(parser: argparse.ArgumentParser, *, short_key: bool = True, of_tenant: bool = True) -> None:
    """Which server to talk to, and for whom. `--key` is the API key only where no record's key can be meant."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", help=f"the server's URL (or TIDINGS_URL; default {URL_DEFAULT})")
    names = ["--api-key", "--key"] if short_key else ["--api-key"]
    group.add_argument(*names, dest="api_key", metavar="KEY", help="your API key (or TIDINGS_KEY)")
    if of_tenant:
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
    """One of several things that a command can do; `subject` is what it does it to."""
    parser = verbs.add_parser(name, help=purpose, description=sentence(purpose), allow_abbrev=False)
    if subject is not None:
        parser.add_argument("which", metavar=subject.upper(), help=f"the {subject}")
    add_server(parser)
    parser.set_defaults(run=run, verb=parser.prog)
    return parser


def add_bare_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, purpose: str, run: Run
) -> argparse.ArgumentParser:
    """A verb of a command that does something without one: what is not said behind it may have been said before it."""
    parser = verbs.add_parser(
        name, help=purpose, description=sentence(purpose), allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    add_server(parser)
    parser.set_defaults(run=run, verb=parser.prog)
    return parser


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Which schema of a database, for commands that work on a store without a server."""
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
    """The bus of a topic."""
    parser.add_argument(
        "--bus", choices=BUSES, help="the bus of the topic; default: the bus that the server releases to"
    )


def client_of(arguments: Arguments) -> "Client":
    """The client for the server that the arguments or the environment name."""
    from tidings.edges.cli.client import Client

    environment = os.environ
    url = arguments.url or environment.get("TIDINGS_URL") or URL_DEFAULT
    return Client(url, arguments.api_key or environment.get("TIDINGS_KEY"), tenant_of(arguments))


def tenant_of(arguments: Arguments) -> str | None:
    """The tenant that the arguments or the environment name, None for the key's own. Keys are of no tenant."""
    if "acts_for" not in arguments:
        return None
    named: str | None = arguments.acts_for
    return named if named is not None else os.environ.get(TENANT_VARIABLE) or None


def pair(text: str) -> tuple[str, str]:
    """`name=value` as two."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


PAGE_ROWS = 500
LIMIT_DEFAULT = 50

Rows = list[dict[str, Any]]
ShowRows = Callable[[Rows, bool], None]


def add_paging(parser: argparse.ArgumentParser) -> None:
    """How many, and from where on."""
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
    """Show what a path lists under a noun; `show_rows` is told whether these are the first, which need a heading."""
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
    """Page after page until there are enough. A page may be short, or empty, while there is more."""
    cursor, left = arguments.cursor, None if arguments.all else arguments.limit
    while left is None or left > 0:
        limit = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page = client.call("GET", path, query={**query, "cursor": cursor, "limit": limit})
        cursor = page.get("cursor")
        left = None if left is None else left - len(page[noun])
        yield page
        if cursor is None:
            return
