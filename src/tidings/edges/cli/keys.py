"""`keys`: who may use this Tidings, and as which tenant. Over a running server, or straight in a store."""

import argparse
from typing import TYPE_CHECKING, Any

from tidings.config.addresses import without_password
from tidings.edges.cli.arguments import Arguments, add_schema, add_server, client_of, sentence
from tidings.edges.cli.client import segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.program import program
from tidings.edges.cli.screen import Screen

if TYPE_CHECKING:
    from tidings.ports import ApiKey

VERBS = {
    "create": "create a key and print it, once",
    "list": "list the keys",
    "revoke": "revoke a key",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parsers of the three."""
    verbs = parser.add_subparsers(metavar="create|list|revoke", required=True)
    runs = {"create": create, "list": show, "revoke": revoke}
    for verb, purpose in VERBS.items():
        command = verbs.add_parser(verb, help=purpose, description=sentence(purpose), allow_abbrev=False)
        if verb != "list":
            command.add_argument("name", metavar="NAME", help="the name of the key")
        if verb == "create":
            command.add_argument("--tenant", default="default", help="the tenant that it acts for (default: default)")
            command.add_argument(
                "--admin", action="store_true", help="also allow it to manage keys, and to act for any tenant"
            )
        command.add_argument(
            "--store",
            metavar="STORE",
            help="change this store directly (a file, or postgres://...), without a server",
        )
        add_schema(command)
        add_server(command, of_tenant=False)
        command.set_defaults(run=runs[verb])


def create(arguments: Arguments, screen: Screen) -> int:
    """Make a key. It is shown now and never again."""
    document: dict[str, Any] = {"name": arguments.name, "tenant": arguments.tenant, "admin": arguments.admin}
    if arguments.store is not None:
        where = arguments.store, arguments.schema
        document["key"] = arguments.hooks.create_key(*where, arguments.name, arguments.tenant, arguments.admin)
        keys = _keys(arguments)
    else:
        keys = [document, *([] if arguments.admin else _keys(arguments))]  # after the first one only an admin may ask
        document = client_of(arguments).call("POST", "/v1/keys", body=document)
    if arguments.json:
        screen.json(document)
    else:
        screen.say(document["key"])
        screen.note("keep it safe: it is not shown again. Use it as TIDINGS_KEY, or `Authorization: Bearer <key>`")
    if not any(key["admin"] for key in keys):
        store = without_password(arguments.store or "FILE")
        store += "" if arguments.schema is None else f" --schema {arguments.schema}"
        screen.note(
            "warning: from now on every call needs a key, and there is no admin key to manage keys\n"
            f"create one: {program()} keys create NAME --admin --store {store}"
        )
    return Exit.DONE


def show(arguments: Arguments, screen: Screen) -> int:
    """The keys by name, without the keys themselves."""
    keys = _keys(arguments)
    if arguments.json:
        screen.json({"keys": keys})
    elif keys:
        rows = [(k["name"], k["tenant"], "admin" if k["admin"] else "", screen.moment(k["created_at"])) for k in keys]
        screen.table(("name", "tenant", "may", "created"), rows)
    else:
        screen.note("there are no keys: the server accepts calls from this machine only, as tenant default")
    return Exit.DONE


def revoke(arguments: Arguments, screen: Screen) -> int:
    """Take a key's rights away."""
    if not _revoked(arguments):
        raise Failure(Exit.NOT_FOUND, f"there is no key {arguments.name!r}: `{program()} keys list` shows them")
    if arguments.json:
        screen.json({"name": arguments.name, "revoked": True})
    else:
        screen.say(f"revoked {arguments.name}")
    return Exit.DONE


def _keys(arguments: Arguments) -> list[dict[str, Any]]:
    if arguments.store is not None:
        return [_shown(key) for key in arguments.hooks.list_keys(arguments.store, arguments.schema)]
    keys: list[dict[str, Any]] = client_of(arguments).call("GET", "/v1/keys")["keys"]
    return keys


def _revoked(arguments: Arguments) -> bool:
    """Whether there was such a key."""
    if arguments.store is not None:
        return bool(arguments.hooks.revoke_key(arguments.store, arguments.schema, arguments.name))
    try:
        client_of(arguments).call("DELETE", f"/v1/keys/{segment(arguments.name)}")
    except Failure as failure:
        if failure.code == Exit.NOT_FOUND:
            return False
        raise
    return True


def _shown(key: "ApiKey") -> dict[str, Any]:
    from tidings.domain.iso8601 import format_instant

    return {
        "name": key.name,
        "tenant": key.tenant,
        "admin": key.admin,
        "created_at": format_instant(key.created),
    }
