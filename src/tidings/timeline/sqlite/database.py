"""Opening the file: connections, pragmas, migrations, and the queries by name."""

import contextlib
import functools
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from tidings import crash
from tidings.clock import Clock
from tidings.domain.errors import StoreError
from tidings.timeline.migrations import Done, Layouts, Plan, Tell

BUSY_MS = 5_000
SWITCHES_MAX = 100
CACHE_KIB = 16 * 1024
PAGE_BYTES = 4_096  # with 8 KiB the many tails of intake make every commit half as large again
APPLICATION_ID = 0x7469_6469  # "tidi"

Verb = TypeVar("Verb", bound=Callable[..., Awaitable[Any]])

_SQL = files(__package__) / "sql"
LAYOUTS = Path(str(_SQL))


def queries(name: str) -> dict[str, str]:
    """The statements of a .sql file, each under its `-- name:` line."""
    text = (_SQL / f"{name}.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def connect(path: str, *, reader: bool = False) -> apsw.Connection:
    """A connection with our pragmas: write-ahead log, and every commit on disk before it returns."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_MS)
    pragmas = [
        f"page_size={PAGE_BYTES}",
        "synchronous=FULL",
        f"cache_size=-{CACHE_KIB}",
        "temp_store=MEMORY",
        "foreign_keys=OFF",
    ]
    if reader:
        pragmas.append("query_only=ON")
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def prepare(path: str, layouts: Path = LAYOUTS, tell: Tell | None = None, clock: Clock | None = None) -> None:
    """Make the file if it is new, bring an older layout up to date, refuse what we do not know.

    Who wants to be told of each step gives a clock to time it by.
    """
    with _explained(path):
        if Path(path).parent.is_dir() and not Path(path).exists():
            Path(path).touch(mode=0o600)  # it will hold everybody's messages
        connection = _opened(path)
        try:
            _switch_to_wal(connection)
            _migrate(connection, path, Layouts(layouts), tell, clock)
        finally:
            connection.close()


def plan(path: str, layouts: Path = LAYOUTS) -> Plan:
    """What `prepare` would do to a file that is there."""
    with _explained(path):
        connection = _opened(path)
        try:
            return Layouts(layouts).plan(connection.pragma("user_version"), path)
        finally:
            connection.close()


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """What goes wrong with a file, as errors of ours."""
    try:
        yield

    except apsw.NotADBError as error:
        raise StoreError(f"{path} is not a Tidings store: {error}. Name another file with --store.") from None
    except (apsw.CantOpenError, OSError) as error:
        raise StoreError(f"{path} cannot be opened: {error}. Does its folder exist, and may we write there?") from None
    except apsw.ReadOnlyError:
        raise StoreError(f"{path} is read-only: Tidings needs to write to it and beside it.") from None
    except apsw.Error as error:
        raise StoreError(f"{path}: {explain(error)}") from None


def _opened(path: str) -> apsw.Connection:
    """A file that is ours, or empty."""
    connection = connect(path)
    application = connection.pragma("application_id")
    if application not in {0, APPLICATION_ID} or (application == 0 and _has_tables(connection)):
        connection.close()
        raise StoreError(f"{path} is a database of another program. Name another file with --store.")
    return connection


def _has_tables(connection: apsw.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _switch_to_wal(connection: apsw.Connection) -> None:
    """Where several switch a new file at once, SQLite refuses all but one of them without waiting, lest they wait for
    each other. A transaction does wait for the one that is at it; from then on there is nothing left to switch."""
    for _ in range(SWITCHES_MAX):
        with contextlib.suppress(apsw.BusyError):
            connection.pragma("journal_mode", "wal")
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    connection.pragma("journal_mode", "wal")


def _migrate(connection: apsw.Connection, path: str, layouts: Layouts, tell: Tell | None, clock: Clock | None) -> None:
    """Step by step, each in a transaction of its own; whoever comes second goes on from where the first one was."""
    while True:
        begun = 0 if clock is None else clock.elapsed()
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.pragma("user_version")
            layouts.plan(version, path)
            if version == layouts.known:
                connection.execute("ROLLBACK")
                return
            step = layouts.steps[version]
            connection.execute(step.text)
            connection.pragma("user_version", step.number)
            connection.pragma("application_id", APPLICATION_ID)
            crash.point("migrate.written")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        crash.point("migrate.committed")
        if tell is not None and clock is not None:
            tell(Done(step.label, clock.elapsed() - begun))


def file_bytes(path: str) -> int:
    """What the store takes on disk, its write-ahead log included."""
    files_there = (Path(path + end) for end in ("", "-wal"))
    return sum(file.stat().st_size for file in files_there if file.exists())


def explain(error: apsw.Error) -> str:
    """What went wrong in the file, and what to do."""
    match error:
        case apsw.FullError():
            return "the disk is full: nothing was changed. Free some space; Tidings goes on by itself."
        case apsw.BusyError():
            return "the store is locked by another program for more than 5 s: end what holds it."
        case apsw.IOError():
            return f"the disk failed: {error}. Nothing was acknowledged."
        case apsw.CorruptError():
            return f"the file is damaged: {error}. Put back a copy, or name another file with --store."
        case _:
            return f"the store failed: {error}"


def translated(verb: Verb) -> Verb:
    """Reads that are done where they are asked for fail like those on the threads: as errors of ours."""

    @functools.wraps(verb)
    async def answer(*arguments: Any, **options: Any) -> Any:
        try:
            return await verb(*arguments, **options)
        except apsw.Error as error:
            raise StoreError(explain(error)) from error

    return cast(Verb, answer)


WAL_PAGES_MAX = 4_000
REST_PAGES_MAX = 1_000
PASSES_MAX = 20


class Checkpointer:
    """Copies the write-ahead log into the file whenever it has grown, and lets it begin anew."""

    def __init__(self, path: str, finish: Callable[[], None]) -> None:
        self._path = path
        self._finish = finish
        self._grown = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tidings-checkpoint", daemon=True)
        self._thread.start()

    def committed(self, pages: int) -> None:
        """A commit has made the write-ahead log that long."""
        if pages >= WAL_PAGES_MAX:
            self._grown.set()

    def close(self) -> None:
        """End the thread after the pass in hand."""
        self._closing = True
        self._grown.set()
        self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while self._grown.wait() and not self._closing:
            self._grown.clear()
            try:
                if connection is None:
                    connection = connect(self._path)
                    connection.wal_autocheckpoint(0)
                self._copy(connection)
            except apsw.Error:
                continue  # the next commit asks again
            crash.point("checkpoint.done")
            self._finish()
        if connection is not None:
            connection.close()

    def _copy(self, connection: apsw.Connection) -> None:
        """Passes until little is left; the writer then does the rest between two transactions."""
        for _ in range(PASSES_MAX):
            total, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if total - copied <= REST_PAGES_MAX or self._closing:
                return
