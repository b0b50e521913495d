"""`keys`, `nodes`, `migrate` and `copy`: administration, of a running server or directly of a store."""

import argparse
from collections import Counter
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING, Any

from tidings.clock import SystemClock
from tidings.config.checks import StoreUrl, without_password
from tidings.domain.fleet import ROLES, ranges
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.edges.cli.arguments import Arguments, add_schema, add_server, client_of, sentence
from tidings.edges.cli.client import segment
from tidings.edges.cli.exit_codes import Exit, Failure, program
from tidings.edges.cli.screen import ProgressCount, Screen, instant, length, relative, shown

if TYPE_CHECKING:
    from tidings.ports import ApiKey
    from tidings.timeline.migrations import StepDone
    from tidings.timeline.transfer.protocol import Kind, Progress


VERBS = {
    "create": "create a key and print it, once",
    "list": "list the keys",
    "revoke": "revoke a key",
}

NO_OWNER = "nobody"
ID_SHOWN = 8

NAMES = {
    "one_shots": "one-shots",
    "recurring": "recurring",
    "paused": "paused",
    "finished": "finished, remembered",
    "receipts": "idempotency keys",
    "rows": "rows of notifications",
    "keys": "API keys",
    "positions": "positions in request topics",
}
CONFLICTS_SHOWN_MAX = 20


def configure_keys(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `keys`."""
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
        add_server(command, has_tenant=False)
        command.set_defaults(run=runs[verb])


def create(arguments: Arguments, screen: Screen) -> int:
    """Create a key, which is shown only this once."""
    document: dict[str, Any] = {"name": arguments.name, "tenant": arguments.tenant, "admin": arguments.admin}
    if arguments.store is not None:
        where = arguments.store, arguments.schema
        document["key"] = arguments.hooks.create_key(*where, arguments.name, arguments.tenant, arguments.admin)
        keys = _keys(arguments)
    else:
        keys = [
            document,
            *([] if arguments.admin else _keys(arguments)),
        ]  # after the first key, only admin keys may list
        document = client_of(arguments).call("POST", "/v1/keys", body=document)
    if arguments.json:
        screen.json(document)
    else:
        screen.say(document["key"])
        screen.note("store it safely: it is not shown again. Use it as TIDINGS_KEY, or `Authorization: Bearer <key>`")
    if not any(key["admin"] for key in keys):
        store = without_password(arguments.store or "FILE")
        store += "" if arguments.schema is None else f" --schema {arguments.schema}"
        screen.note(
            "warning: from now on every call needs a key, and there is no admin key to manage keys\n"
            f"create one: {program()} keys create NAME --admin --store {store}"
        )
    return Exit.DONE


def show(arguments: Arguments, screen: Screen) -> int:
    """List the keys by name, without the keys themselves."""
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
    """Revoke a key."""
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
    """Revoke a key; False if there is none of that name."""
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
    from tidings.domain.schedules.iso8601 import format_instant

    return {
        "name": key.name,
        "tenant": key.tenant,
        "admin": key.admin,
        "created_at": format_instant(key.created),
    }


def configure_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nodes`."""
    add_server(parser, has_tenant=False)
    parser.set_defaults(run=nodes)


def nodes(arguments: Arguments, screen: Screen) -> int:
    """Show the nodes and the lanes, in two tables."""
    document = client_of(arguments).call("GET", "/v1/nodes")
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    labels = _labels(document["nodes"])
    heads = (
        *("node", "version", "up", "roles", "channels"),
        *("lanes", "released", "late p50", "p99", "max", "overdue", "clock"),
    )
    rows = [_node(node, labels[node["id"]], screen) for node in document["nodes"]]
    screen.table(heads, rows, spare=("version", "max", "clock", "p99", "released", "roles"))
    screen.say("")
    screen.table(("lanes", "owner", "since", "overdue"), _lanes(document, labels, screen))
    for name, times in Counter(node["name"] for node in document["nodes"] if node["state"] == "alive").items():
        if times > 1:
            screen.note(f"warning: {times} nodes are named {name}: give each a node.name of its own")
    return Exit.DONE


def _labels(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """The label of each node: its name, with a part of its id if the name is not unique."""
    times = Counter(node["name"] for node in nodes)
    return {
        node["id"]: node["name"] if times[node["name"]] == 1 else f"{node['name']} ({node['id'][:ID_SHOWN]})"
        for node in nodes
    }


def _node(node: dict[str, Any], label: str, screen: Screen) -> tuple[object, ...]:
    late = node["lateness"]
    up = length(max(0, screen.now - (instant(node["since"]) or 0)))
    gone = f"gone {relative(min(0, (instant(node['lease_until']) or 0) - screen.now))}"
    roles = "all" if set(node["roles"]) == set(ROLES) else ", ".join(node["roles"])
    channels = "all" if set(node["channels"]) == set(CHANNEL_NAMES) else ", ".join(node["channels"]) or "-"
    ahead = node["clock_ahead_ms"]
    return (
        label,
        node["version"],
        up if node["state"] == "alive" else gone,
        roles,
        channels,
        len(node["owns"]),
        f"{late['released']:,}",
        *("-" if late[name] is None else _amount(late[name]) for name in ("p50_ms", "p99_ms", "max_ms")),
        _amount(max((lane["overdue_ms"] for lane in node["owns"]), default=0)),
        ("-" if round(ahead, 1) < 0 else "+") + _amount(abs(ahead)),
    )


def _lanes(document: dict[str, Any], labels: dict[str, str], screen: Screen) -> list[tuple[object, ...]]:
    """The rows of lanes, by node and time. Lanes that a node has owned since the same time are one row."""
    owned = [(labels[node["id"]], lane) for node in document["nodes"] for lane in _by_time(node["owns"])]
    free = [(NO_OWNER, lane) for lane in document["free_lanes"]]
    rows: list[tuple[object, ...]] = []
    for (owner, since), group in groupby(owned + free, lambda each: (each[0], each[1]["since"])):
        lanes = [lane for _, lane in group]
        overdue = max(lane["overdue_ms"] for lane in lanes)
        rows.append((ranges([lane["lane"] for lane in lanes]), owner, screen.moment(since), _amount(overdue)))
    return rows


def _by_time(lanes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(lanes, key=lambda lane: (lane["since"] or "", lane["lane"]))


def _amount(ms: float) -> str:
    """A duration in milliseconds; from a second on, in larger units."""
    return f"{ms:.1f} ms" if ms < 1_000 else length(int(ms * 1_000))


def configure_migrate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `migrate`."""
    parser.add_argument(
        "--store",
        metavar="STORE",
        help="a file, or postgres://user@host/database (default: store.path of the settings, or tidings.db)",
    )
    add_schema(parser)
    parser.add_argument(
        "--check", action="store_true", help="only show what would be done; exit code 4 if there is something to do"
    )
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of text for people")
    parser.set_defaults(run=migrate)


def migrate(arguments: Arguments, screen: Screen) -> int:
    """Run the steps, and print the name and the duration of each."""
    steps_done: list[StepDone] = []

    def on_step(done: "StepDone") -> None:
        steps_done.append(done)
        if not arguments.json:
            screen.say(f"{done.name}  {done.elapsed_us / 1_000:,.1f} ms")

    plan = arguments.hooks.migrate_store(StoreUrl(arguments.store, arguments.schema), arguments.check, on_step)
    if arguments.json:
        steps = [{"name": done.name, "elapsed_ms": done.elapsed_us / 1_000} for done in steps_done]
        to_do = list(plan.steps) if arguments.check else []
        version = plan.version if arguments.check else plan.known
        screen.json({"from": plan.version, "to": plan.known, "version": version, "steps": steps, "to_do": to_do})
    elif not plan.steps:
        screen.say(f"layout {plan.version}: nothing to do")
    elif arguments.check:
        what = f"layout {plan.version}" if plan.version else "there is no store here"
        screen.say(f"{what}, this version needs {plan.known}; to do: {', '.join(plan.steps)}")
    elif plan.version == 0:
        screen.say(f"there was no store here: created a new one, layout {plan.known}")
    else:
        screen.say(f"layout {plan.version} -> {plan.known}")
    return Exit.CONFLICT if arguments.check and plan.steps else Exit.DONE


def configure_copy(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `copy`."""
    where = "sqlite:FILE, a file, or postgres://user@host/database"
    parser.add_argument("--from", dest="source", required=True, metavar="STORE", help=f"the store to move: {where}")
    parser.add_argument(
        "--to", dest="target", metavar="STORE", help="the store to move to; created if it does not exist"
    )
    parser.add_argument("--from-schema", metavar="NAME", help="the PostgreSQL schema of the store to move")
    parser.add_argument("--to-schema", metavar="NAME", help="the PostgreSQL schema of the store to move to")
    add_schema(parser)
    parser.add_argument(
        "--leave-log",
        action="store_true",
        help="move even if consumer groups have not read all of the log, which is left behind",
    )
    parser.add_argument(
        "--take-back", action="store_true", help="allow a store that was moved to be served again; nothing is copied"
    )
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of text for people")
    parser.set_defaults(run=copy)


def copy(arguments: Arguments, screen: Screen) -> int:
    """Move everything to another store; the exit code is 4 if there were conflicts."""
    if arguments.take_back:
        return _take_back(arguments, screen)
    if arguments.target is None:
        raise Failure(Exit.USAGE, f"--to is missing: give the store to move to\nsee `{program()} copy --help`")
    clock = SystemClock()
    started, bar = clock.elapsed(), ProgressCount("done", clock)

    def on_progress(progress: "Progress", counts: "dict[Kind, int]") -> None:
        bar.update(sum(progress.seen(kind) for kind in counts), sum(counts.values()))

    try:
        target = StoreUrl(arguments.target, arguments.to_schema or arguments.schema)
        copied = arguments.hooks.copy_store(_source(arguments), target, arguments.leave_log, on_progress)
    finally:
        bar.end()
    if arguments.json:
        screen.json(_document(copied))
    else:
        _show(copied, clock.elapsed() - started, screen)
    return Exit.CONFLICT if copied.result.progress.conflicts else Exit.DONE


def _source(arguments: Arguments) -> StoreUrl:
    return StoreUrl(arguments.source, arguments.from_schema or arguments.schema)


def _take_back(arguments: Arguments, screen: Screen) -> int:
    if arguments.target is not None:
        raise Failure(Exit.USAGE, "--take-back needs no --to: the store knows its target")
    move = arguments.hooks.take_back(_source(arguments))
    source = without_password(arguments.source)
    if arguments.json:
        screen.json({"from": source, "taken_back_from": move.to, "taken_back_from_schema": move.schema})
    else:
        screen.say(f"{shown(source)} can be served again")
        screen.note(
            f"warning: everything copied is in {shown(move.where)} as well, and would be sent from both:\n"
            "stop the nodes there and empty it before you serve this store"
        )
    return Exit.DONE


def _document(copied: Any) -> dict[str, Any]:
    result = copied.result
    progress, remainder = result.progress, result.remainder
    tallies = {"moved": progress.moved, "there_already": progress.existing, "conflicts": progress.conflicts}
    return {
        "from": copied.source,
        "from_schema": copied.source_schema,
        "to": copied.target,
        "to_schema": copied.target_schema,
        "done_before": result.since is not None,
        **{name: {kind: tally.get(kind, 0) for kind in NAMES} for name, tally in tallies.items()},
        "conflicting": list(progress.named),
        "fired_records": progress.fired,
        "left_behind": {
            "log_records": remainder.records,
            "groups": [f"{lag.group} on {lag.tenant}/{lag.topic}" for lag in remainder.behind],
        },
    }


def _show(copied: Any, elapsed_us: int, screen: Screen) -> None:
    from tidings.domain.schedules.iso8601 import format_instant
    from tidings.timeline.transfer.protocol import located, record_count

    result, progress = copied.result, copied.result.progress
    to = shown(located(copied.target, copied.target_schema))
    if result.since is None:
        tallies = (progress.moved, progress.existing, progress.conflicts)
        rows = [(name, *(f"{tally.get(kind, 0):,}" for tally in tallies)) for kind, name in NAMES.items()]
        screen.table(("", "moved", "there already", "conflicts"), rows, states=False)
    for name in progress.named[:CONFLICTS_SHOWN_MAX]:
        screen.note(f"conflict: {shown(name)}: the target has a different one, which was not changed")
    if (more := sum(progress.conflicts.values()) - min(len(progress.named), CONFLICTS_SHOWN_MAX)) > 0:
        screen.note(f"... and {more:,} more; --json lists them")
    if result.since is not None:
        screen.say(f"nothing left to do: this store has moved to {to} at {format_instant(result.since)}")
    else:
        moved, elapsed_s = sum(progress.moved.values()), elapsed_us / 1_000_000
        source = shown(located(copied.source, copied.source_schema))
        screen.say(f"{moved:,} moved in {elapsed_s:,.1f} s, from {source} to {to}")
    if result.remainder.records:
        screen.note(f"not copied: {record_count(result.remainder.records)} on the log, and consumer group positions")
    named = quote(copied.source) + ("" if copied.source_schema is None else f" --from-schema {copied.source_schema}")
    screen.note("the old store is closed: no server starts on it. To open it again:")
    screen.note(f"{program()} copy --from {shown(named)} --take-back")
