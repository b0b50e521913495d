"""`users import`: any number of people over one request, with a bar while it lasts and the bad lines at its end."""

from itertools import chain
from pathlib import PurePath
from typing import Any

from tidings.clock import SystemClock
from tidings.edges.cli.arguments import Arguments, client_of
from tidings.edges.cli.bulk import BAD_LINES_SHOWN, NDJSON, blocks_of, exchange, open_source
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.progress import Progress
from tidings.edges.cli.screen import Screen, shown

TYPES = {"csv": "text/csv", "ndjson": NDJSON}
ENDINGS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson"}


def import_file(arguments: Arguments, screen: Screen) -> int:
    """Keep each user of a file; a bad line is reported, the rest go on. The exit code is 1 if there was one."""
    clock = SystemClock()
    started = clock.elapsed()
    bad: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    with open_source(arguments.source) as (source, size), Progress(size, clock) as progress:
        blocks = blocks_of(source, progress)
        first = next(blocks, b"")
        kind = TYPES[arguments.format or _guess(arguments.source, first)]
        given = chain([first], blocks) if first else blocks  # an empty block would end the request
        for document in exchange(client_of(arguments), "/v1/users/import", given, kind):
            if "created" not in document:
                raise Failure(Exit.FAILED, shown(document.get("detail") or document), document)
            last = document
            bad += document.get("bad_lines") or []
            progress.answered(document["lines"])
    if last is None or not last.pop("done", False):
        raise Failure(Exit.FAILED, "the server stopped before the end: run the import again, it is safe to repeat")
    _summarise({**last, "bad_lines": bad}, clock.elapsed() - started, arguments, screen)
    return Exit.FAILED if last["bad"] else Exit.DONE


def _guess(name: str, first: bytes) -> str:
    """By the file's name, else by its beginning: a JSON object begins like one."""
    if known := ENDINGS.get(PurePath(name).suffix.lower()):
        return known
    return "ndjson" if first.lstrip().startswith(b"{") else "csv"


def _summarise(document: dict[str, Any], elapsed_us: int, arguments: Arguments, screen: Screen) -> None:
    shown_ones = document["bad_lines"][:BAD_LINES_SHOWN]
    for line in shown_ones:
        screen.note(f"line {line.get('line')}: {shown(line.get('field'))}: {shown(line.get('reason'))}")
    if hidden := document["bad"] - len(shown_ones):
        screen.note(f"... and {hidden:,} more; --json shows the first thousand")
    counts = f"{document['created']:,} created, {document['replaced']:,} replaced, {document['bad']:,} bad"
    rate = document["lines"] * 1_000_000 // max(elapsed_us, 1)
    text = f"{counts} in {elapsed_us / 1_000_000:,.1f} s ({rate:,}/s)"
    if arguments.json:
        screen.json(document)
        screen.note(text)
    else:
        screen.say(text)
