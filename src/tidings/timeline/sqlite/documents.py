"""The document store in the file."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import apsw

from tidings.ports import ANY, Change, Document, Key, Place, Put, Remove, Unchanged
from tidings.timeline.sqlite.database import BUSY_MS, connect, queries, translated
from tidings.timeline.sqlite.writer import DatabaseThread, Writer
from tidings.timeline.store_rules import FIRST, LAST, check_changes, decode_tags, encode_tags

SHORT_KEYS_MAX = 16  # read on the event loop; more keys are read on a thread
WIPES_MAX = 40
WIPE_PAUSE_S = 0.05

_SQL = queries("documents")


class SqliteDocuments:
    """Reads a few documents on the event loop, and many documents or lists on a thread of its own.

    So neither the loop waits for them, nor they for the scans of schedules. The writer thread makes all changes.
    """

    def __init__(self, path: str, writer: Writer, writer_thread: DatabaseThread, reader: apsw.Connection) -> None:
        self._writer = writer
        self._writer_thread = writer_thread
        self._reader = reader
        self._lister = connect(path, reader=True)
        self._lister_thread = DatabaseThread("tidings-documents")

    @translated
    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        if len(keys) <= SHORT_KEYS_MAX:
            return _get(self._reader, keys, now)
        return await self._lister_thread.run(_get, self._lister, keys, now)

    async def find(
        self,
        tenant: str,
        kind: str,
        tag: str,
        now: int,
        *,
        after: Place | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Document]:
        place = after or (LAST if newest else FIRST)
        values = (tenant, kind, tag, *place, now, limit)
        return await self._lister_thread.run(_find, self._lister, _SQL["find_newest" if newest else "find"], values)

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        check_changes(groups)
        return await self._writer_thread.run(self._change, groups, now)

    def _change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        with self._writer.transaction() as connection:
            return change(connection, groups, now)

    async def wipe(self) -> None:
        for _ in range(WIPES_MAX):  # a reader with an older snapshot delays it; readers are short
            if await self._writer_thread.run(self._wipe):
                return
            await asyncio.sleep(WIPE_PAUSE_S)

    def _wipe(self) -> bool:
        """Copy all commits into the file and truncate the write-ahead log; False if a reader prevents it."""
        connection = self._writer.connection
        connection.set_busy_timeout(0)  # the caller tries again
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        finally:
            connection.set_busy_timeout(BUSY_MS)
        return True

    async def close(self) -> None:
        """Stop the thread and close its connection."""
        await self._lister_thread.close()
        self._lister.close()


def _get(connection: apsw.Connection, keys: Sequence[Key], now: int) -> list[Document | None]:
    with connection:  # one snapshot
        return [get(connection, key, now) for key in keys]


def get(connection: apsw.Connection, key: Key, now: int) -> Document | None:
    """The document of a key; None if there is none."""
    row = connection.execute(_SQL["get"], (key.tenant, key.kind, key.name, now)).fetchone()
    return None if row is None else Document(key, row[0], row[1], decode_tags(row[2]), row[3], row[4])


def _find(connection: apsw.Connection, sql: str, values: tuple[str | int, ...]) -> list[Document]:
    tenant, kind = str(values[0]), str(values[1])
    return [
        Document(Key(tenant, kind, name), body, version, decode_tags(tags), order, until)
        for name, body, version, tags, order, until in connection.execute(sql, values)
    ]


def change(connection: apsw.Connection, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
    """Apply each group of changes whose expected versions match, inside the caller's transaction."""
    changes = _DocumentChanges(connection, now)
    answers = [changes.add(group) for group in groups]
    with _overwriting(connection):
        changes.save()
    return answers


def expire(connection: apsw.Connection, now: int, rows_max: int) -> int:
    """Delete some expired documents, inside the caller's transaction; returns how many."""
    gone = connection.execute(_SQL["expired"], (now, rows_max)).fetchall()
    with _overwriting(connection):
        for _, tenant, kind, name, order, tags in gone:
            connection.executemany(_SQL["untag"], [(tenant, kind, tag, order, name) for tag in decode_tags(tags)])
        connection.executemany(_SQL["delete"], [(document,) for document, *_ in gone])
    return len(gone)


@contextlib.contextmanager
def _overwriting(connection: apsw.Connection) -> Iterator[None]:
    """Overwrite deleted data, as the erasure of a person requires.

    The timeline does without, because it is slower and its pages name no person. SQLite applies the pragma when the
    statement is compiled, so the statement must not be cached.
    """
    connection.execute("PRAGMA secure_delete = ON", can_cache=False)
    try:
        yield
    finally:
        connection.execute("PRAGMA secure_delete = OFF", can_cache=False)


_Kept = tuple[int, int, int, int | None, bytes]  # document, version, order, until, tags
_Rows = list[tuple[str | int | bytes | None, ...]]
_WRITES = ("untag", "delete", "insert", "update", "tag")  # in this order


class _DocumentChanges:
    """Decides groups in memory, each on the result of those before it, and writes the final state once."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._kept: dict[Key, _Kept | None] = {}
        self._versions: dict[Key, int] = {}
        self._given: dict[Key, int] = {}
        self._last: dict[Key, Put | Remove] = {}
        self._rows: dict[str, _Rows] = {name: [] for name in _WRITES}
        self._first_version = self._version = int(connection.execute("SELECT version FROM cabinet").get)

    def add(self, group: Sequence[Change]) -> int:
        """Apply a group in memory; returns the version of its last `Put`, or 0 if an expected version differs."""
        if any(change.expected not in {ANY, self._version_of(change.key)} for change in group):
            return 0
        answer = 1
        for change in group:
            if isinstance(change, Unchanged):
                continue
            self._last[change.key] = change
            self._versions[change.key] = 0
            if isinstance(change, Put):
                self._version += 1
                self._given[change.key] = answer = self._version
                if self._is_alive(change.until):
                    self._versions[change.key] = self._version
        return answer

    def _is_alive(self, until: int | None) -> bool:
        return until is None or until > self._now

    def _version_of(self, key: Key) -> int:
        """The current version of a document; 0 if there is none."""
        version = self._versions.get(key)
        if version is None:
            row = self._connection.execute(_SQL["kept"], (key.tenant, key.kind, key.name)).fetchone()
            self._kept[key] = row
            self._versions[key] = version = row[1] if row is not None and self._is_alive(row[3]) else 0
        return version

    def save(self) -> None:
        """Write the final state of each document."""
        for key, last in self._last.items():
            kept = self._kept[key]
            if isinstance(last, Put):
                self._put(last, kept)
            elif kept is not None:
                self._untag(key, kept)
                self._rows["delete"].append((kept[0],))
        for name, rows in self._rows.items():
            if rows:
                self._connection.executemany(_SQL[name], rows)
        if self._version != self._first_version:
            self._connection.execute("UPDATE cabinet SET version = ?", (self._version,))

    def _put(self, put: Put, kept: _Kept | None) -> None:
        key, tags = put.key, encode_tags(put.tags)
        state = (self._given[key], put.order, put.until, tags, put.body)
        if kept is None:
            self._rows["insert"].append((key.tenant, key.kind, key.name, *state))
        else:
            self._rows["update"].append((*state, kept[0]))
            if (kept[2], kept[4]) == (put.order, tags):
                return
            self._untag(key, kept)
        self._rows["tag"] += [(key.tenant, key.kind, tag, put.order, key.name) for tag in put.tags]

    def _untag(self, key: Key, kept: _Kept) -> None:
        self._rows["untag"] += [(key.tenant, key.kind, tag, kept[2], key.name) for tag in decode_tags(kept[4])]
