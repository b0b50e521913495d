"""`copy`: move everything from one store to another, for good."""

import argparse
from shlex import quote
from typing import TYPE_CHECKING, Any

from tidings.clock import SystemClock
from tidings.config.addresses import Place, without_password
from tidings.edges.cli.arguments import Arguments, add_schema
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.program import program
from tidings.edges.cli.progress import Counted
from tidings.edges.cli.screen import Screen, shown

if TYPE_CHECKING:
    from tidings.timeline.carrying import Kind, Progress

NAMES = {
    "one_shots": "one-shots",
    "recurring": "recurring",
    "paused": "paused",
    "finished": "finished, remembered",
    "receipts": "idempotency keys",
    "documents": "documents",
    "keys": "API keys",
    "positions": "positions in request topics",
}
SHOWN_MAX = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
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
    """Move everything; ends with 4 if something stood in the way of something."""
    if arguments.take_back:
        return _take_back(arguments, screen)
    if arguments.target is None:
        raise Failure(Exit.USAGE, f"--to is missing: give the store to move to\nsee `{program()} copy --help`")
    clock = SystemClock()
    started, counted = clock.elapsed(), Counted("done", clock)

    def tell(progress: "Progress", cargo: "dict[Kind, int]") -> None:
        counted.tell(sum(progress.seen(kind) for kind in cargo), sum(cargo.values()))

    try:
        target = Place(arguments.target, arguments.to_schema or arguments.schema)
        done = arguments.hooks.copy_store(_source(arguments), target, arguments.leave_log, tell)
    finally:
        counted.end()
    if arguments.json:
        screen.json(_document(done))
    else:
        _show(done, clock.elapsed() - started, screen)
    return Exit.CONFLICT if done.progress.conflicts else Exit.DONE


def _source(arguments: Arguments) -> Place:
    return Place(arguments.source, arguments.from_schema or arguments.schema)


def _take_back(arguments: Arguments, screen: Screen) -> int:
    if arguments.target is not None:
        raise Failure(Exit.USAGE, "--take-back needs no --to: the store knows where it went")
    move = arguments.hooks.take_back(_source(arguments))
    source = without_password(arguments.source)
    if arguments.json:
        screen.json({"from": source, "taken_back_from": move.to, "taken_back_from_schema": move.schema})
    else:
        screen.say(f"{shown(source)} can be served again")
        screen.note(
            f"warning: what was copied is in {shown(move.where)} as well, and leaves there too if that is served:\n"
            "stop its nodes and empty it before you serve this one"
        )
    return Exit.DONE


def _document(done: Any) -> dict[str, Any]:
    progress = done.progress
    return {
        "from": done.source,
        "from_schema": done.source_schema,
        "to": done.target,
        "to_schema": done.target_schema,
        "done_before": done.since is not None,
        "moved": {kind: progress.moved.get(kind, 0) for kind in NAMES},
        "there_already": {kind: progress.left.get(kind, 0) for kind in NAMES},
        "conflicts": {kind: progress.conflicts.get(kind, 0) for kind in NAMES},
        "conflicting": list(progress.named),
        "fired_records": progress.fired,
        "left_behind": {"log_records": done.records, "groups": list(done.groups)},
    }


def _show(done: Any, elapsed_us: int, screen: Screen) -> None:
    from tidings.domain.iso8601 import format_instant
    from tidings.timeline.carrying import placed, records_of

    progress = done.progress
    to = shown(placed(done.target, done.target_schema))
    if done.since is None:
        tallies = (progress.moved, progress.left, progress.conflicts)
        rows = [(name, *(f"{tally.get(kind, 0):,}" for tally in tallies)) for kind, name in NAMES.items()]
        screen.table(("", "moved", "there already", "conflicts"), rows, states=False)
    for name in progress.named[:SHOWN_MAX]:
        screen.note(f"conflict: {shown(name)}: it is another one there, and was left as it is")
    if (more := sum(progress.conflicts.values()) - min(len(progress.named), SHOWN_MAX)) > 0:
        screen.note(f"... and {more:,} more; --json names them")
    if done.since is not None:
        screen.say(f"nothing left to do: this store has moved to {to} at {format_instant(done.since)}")
    else:
        moved, elapsed_s = sum(progress.moved.values()), elapsed_us / 1_000_000
        source = shown(placed(done.source, done.source_schema))
        screen.say(f"{moved:,} moved in {elapsed_s:,.1f} s, from {source} to {to}")
    if done.records:
        screen.note(f"left behind: {records_of(done.records)}, released to the log, and where groups stood")
    named = quote(done.source) + ("" if done.source_schema is None else f" --from-schema {done.source_schema}")
    screen.note("the old store is closed: no server starts on it. To open it again:")
    screen.note(f"{program()} copy --from {shown(named)} --take-back")
