"""The database file: connections, pragmas, migrations, named queries, error messages and checkpoints."""

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
from tidings.timeline.migrations import Layouts, OnStep, Plan, StepDone

BUSY_MS = 5_000
SWITCHES_MAX = 100
CACHE_KIB = 16 * 1024
PAGE_BYTES = 4_096  # with 8 KiB, commits of intake would be half as large again
APPLICATION_ID = 0x7469_6469  # "tidi"
WAL_PAGES_MAX = 4_000
REST_PAGES_MAX = 250  # left for the writer, which a release waits for
PASSES_MAX = 20

Verb = TypeVar("Verb", bound=Callable[..., Awaitable[Any]])

_SQL = files(__package__) / "sql"
LAYOUTS = Path(str(_SQL))


def queries(name: str) -> dict[str, str]:
    """The statements of a .sql file, by the name in their `-- name:` line."""
    text = (_SQL / f"{name}.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def connect(path: str, *, reader: bool = False) -> apsw.Connection:
    """Open a connection with our pragmas: every commit is on disk before it returns."""
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


def prepare(path: str, layouts: Path = LAYOUTS, on_step: OnStep | None = None, clock: Clock | None = None) -> Plan:
    """Create the file if it is new, migrate an older layout, and reject files that are not ours.

    Returns the plan that was carried out; its version is 0 if the file was new. `on_step` is called after each
    migration step; it needs a clock to measure the duration.
    """
    with _explained(path):
        if Path(path).parent.is_dir() and not Path(path).exists():
            Path(path).touch(mode=0o600)  # it will hold the messages of all tenants
        connection = _opened(path)
        try:
            _switch_to_wal(connection)
            return _migrate(connection, path, Layouts(layouts), on_step, clock)
        finally:
            connection.close()


def plan(path: str, layouts: Path = LAYOUTS) -> Plan:
    """What `prepare` would do to an existing file."""
    with _explained(path):
        connection = _opened(path)
        try:
            return Layouts(layouts).plan(connection.pragma("user_version"), path)
        finally:
            connection.close()


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Translate errors while opening a file into `StoreError`."""
    try:
        yield
    except apsw.NotADBError as error:
        raise StoreError(f"{path} is not a Tidings store: {error}. Name another file with --store.") from None
    except (apsw.CantOpenError, OSError) as error:
        raise StoreError(f"{path} cannot be opened: {error}. Check that its folder exists and is writable.") from None
    except apsw.ReadOnlyError:
        raise StoreError(f"{path} is read-only: Tidings needs to write to it and beside it.") from None
    except apsw.Error as error:
        raise StoreError(f"{path}: {explain(error)}") from None


def _opened(path: str) -> apsw.Connection:
    """Open a file that is empty or a Tidings store."""
    connection = connect(path)
    application = connection.pragma("application_id")
    if application not in {0, APPLICATION_ID} or (application == 0 and _has_tables(connection)):
        connection.close()
        raise StoreError(f"{path} is a database of another program. Name another file with --store.")
    return connection


def _has_tables(connection: apsw.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _switch_to_wal(connection: apsw.Connection) -> None:
    """Switch a file to write-ahead logging.

    If several processes switch a new file at the same time, SQLite rejects all but one of them without waiting. So a
    rejected process waits by means of a transaction; after that the switch is done.
    """
    for _ in range(SWITCHES_MAX):
        with contextlib.suppress(apsw.BusyError):
            connection.pragma("journal_mode", "wal")
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    connection.pragma("journal_mode", "wal")


def _migrate(
    connection: apsw.Connection, path: str, layouts: Layouts, on_step: OnStep | None, clock: Clock | None
) -> Plan:
    """Run the missing steps, each in its own transaction. Several processes may do so at the same time."""
    plan = layouts.plan(connection.pragma("user_version"), path)
    while True:
        started = 0 if clock is None else clock.elapsed()
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.pragma("user_version")
            layouts.plan(version, path)
            if version == layouts.known:
                connection.execute("ROLLBACK")
                return plan
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
        if on_step is not None and clock is not None:
            on_step(StepDone(step.label, clock.elapsed() - started))


def file_bytes(path: str) -> int:
    """The size of the store on disk, including its write-ahead log."""
    files_there = (Path(path + end) for end in ("", "-wal"))
    return sum(file.stat().st_size for file in files_there if file.exists())


def explain(error: apsw.Error) -> str:
    """What went wrong, and what to do."""
    match error:
        case apsw.FullError():
            return "the disk is full: nothing was changed. Free some space; Tidings continues by itself."
        case apsw.BusyError():
            return "the store has been locked by another program for more than 5 s: stop that program."
        case apsw.IOError():
            return f"the disk failed: {error}. Nothing was acknowledged."
        case apsw.CorruptError():
            return f"the file is damaged: {error}. Restore a backup, or name another file with --store."
        case _:
            return f"the store failed: {error}"


def translated(verb: Verb) -> Verb:
    """Translate the errors of reads on the event loop into `StoreError`, as the threads do."""

    @functools.wraps(verb)
    async def answer(*arguments: Any, **options: Any) -> Any:
        try:
            return await verb(*arguments, **options)
        except apsw.Error as error:
            raise StoreError(explain(error)) from error

    return cast(Verb, answer)


@contextlib.contextmanager
def overwriting(connection: apsw.Connection) -> Iterator[None]:
    """Overwrite deleted data, as the erasure of a person requires. Inserts need it too: they move rows to other pages.

    The timeline does without, because it is slower and its pages name no person. SQLite applies the pragma when the
    statement is compiled, so the statement must not be cached.
    """
    connection.execute("PRAGMA secure_delete = ON", can_cache=False)
    try:
        yield
    finally:
        connection.execute("PRAGMA secure_delete = OFF", can_cache=False)


class Checkpointer:
    """Checkpoints the write-ahead log on a thread of its own whenever it has grown."""

    def __init__(self, path: str, finish: Callable[[], None]) -> None:
        self._path = path
        self._finish = finish
        self._grown = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tidings-checkpoint", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """The write-ahead log is long."""
        self._grown.set()

    def close(self) -> None:
        """Stop the thread after its current pass."""
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
                continue  # the next commit tries again
            crash.point("checkpoint.done")
            self._finish()
        if connection is not None:
            connection.close()

    def _copy(self, connection: apsw.Connection) -> None:
        """Copy pages until few are left; the writer does the rest between two transactions."""
        for _ in range(PASSES_MAX):
            total, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if total - copied <= REST_PAGES_MAX or self._closing:
                return
