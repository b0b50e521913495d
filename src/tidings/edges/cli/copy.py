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
    from tidings.timeline.transfer.protocol import Kind, Progress

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
CONFLICTS_SHOWN_MAX = 20


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
    """Move everything; the exit code is 4 if there were conflicts."""
    if arguments.take_back:
        return _take_back(arguments, screen)
    if arguments.target is None:
        raise Failure(Exit.USAGE, f"--to is missing: give the store to move to\nsee `{program()} copy --help`")
    clock = SystemClock()
    started, bar = clock.elapsed(), Counted("done", clock)

    def on_progress(progress: "Progress", counts: "dict[Kind, int]") -> None:
        bar.tell(sum(progress.seen(kind) for kind in counts), sum(counts.values()))

    try:
        target = Place(arguments.target, arguments.to_schema or arguments.schema)
        copied = arguments.hooks.copy_store(_source(arguments), target, arguments.leave_log, on_progress)
    finally:
        bar.end()
    if arguments.json:
        screen.json(_document(copied))
    else:
        _show(copied, clock.elapsed() - started, screen)
    return Exit.CONFLICT if copied.result.progress.conflicts else Exit.DONE


def _source(arguments: Arguments) -> Place:
    return Place(arguments.source, arguments.from_schema or arguments.schema)


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
    from tidings.domain.iso8601 import format_instant
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
