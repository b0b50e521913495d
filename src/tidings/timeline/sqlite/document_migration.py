"""Moves the documents of a store of version 0.1 into the tables of notifications, when the file is opened.

It runs in slices, each a transaction that also records how far it came, so a process that is killed loses nothing and
the next one continues there. Most of it is done by SQL alone: a million users take about 20 seconds. Suppressions are
moved in Python, because version 0.1 had a key for each way of writing an address, and today's key is the same for all
of them.
"""

import re
from typing import Any

import apsw
import msgspec

from tidings import crash
from tidings.domain.notifications.address_key import address_key, digest
from tidings.domain.notifications.message import ChannelName
from tidings.timeline.sqlite.database import LAYOUTS, connect, overwriting, queries

SLICE_DOCUMENTS = 50_000
CACHE_KIB = 256 * 1024
BUSY_MS = 60_000  # another process may be at the same

_SQL = queries("document_migration")
_INDEX = re.compile(r"^CREATE INDEX (\w+) (ON .+);$", re.MULTILINE)
_INDEXES = {
    name: f"CREATE INDEX IF NOT EXISTS {name} {where}"
    for name, where in _INDEX.findall((LAYOUTS / "0007_tables.sql").read_text())
}
_KINDS = (
    "user",
    "notification",
    "delivery",
    "dedupe",
    "template",
    "template_version",
    "inbox",
    "sent",
    "throttle",
    "breaker",
)


class _Suppression(msgspec.Struct, frozen=True, omit_defaults=True):
    """A suppression as version 0.1 stored it."""

    channel: ChannelName
    address: str | None
    reason: str
    since: int
    category: str | None = None
    user: str | None = None


def migrate_file(path: str) -> bool:
    """Move all documents of a file that has the current layout; whether there were any."""
    connection = connect(path)
    try:
        return migrate_documents(connection)
    finally:
        connection.close()


def migrate_documents(connection: apsw.Connection) -> bool:
    """Move all documents that are not moved yet, on a connection of its own; whether there were any.

    Several processes may do so at once.
    """
    if not _has_documents(connection):
        return False
    connection.create_scalar_function("address_digest", _address_digest, 2, deterministic=True)
    connection.pragma("cache_size", -CACHE_KIB)
    connection.set_busy_timeout(BUSY_MS)
    while _move_slice(connection):
        crash.point("migrate.committed")
    with connection:
        for sql in _INDEXES.values():
            connection.execute(sql)
    _drop_documents(connection)
    return True


def _drop_documents(connection: apsw.Connection) -> None:
    """Delete the moved documents, and overwrite them: they name people, who may be erased later."""
    with connection, overwriting(connection):
        connection.execute(_SQL["drop"])
        crash.point("migrate.written")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _move_slice(connection: apsw.Connection) -> bool:
    """Move the next documents in one transaction; False if there are none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        after, last = 0, None
        if _has_documents(connection):  # another process may have finished it
            after = connection.execute(_SQL["moved"]).get
            last = connection.execute(_SQL["slice_end"], (after, SLICE_DOCUMENTS)).get
        if last is not None:
            if last - after >= SLICE_DOCUMENTS:
                _drop_indexes(connection)
            found = {kind for (kind,) in connection.execute(_SQL["kinds"], (after, last))}
            with overwriting(connection):
                for kind in _KINDS:
                    if kind in found:
                        connection.execute(_SQL[kind], (after, last))
                _move_suppressions(connection, after, last)
            connection.execute(_SQL["advance"], (last,))
            crash.point("migrate.written")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return last is not None


def _drop_indexes(connection: apsw.Connection) -> None:
    """Drop the indexes until all is moved: it is faster to sort a million entries once than to insert each."""
    for name in _INDEXES:
        connection.execute(f"DROP INDEX IF EXISTS {name}")


def _move_suppressions(connection: apsw.Connection, after: int, last: int) -> None:
    """Move suppressions to today's keys. One that was under today's key already replaces one that came there."""
    for tenant, name, version, until, body in connection.execute(_SQL["suppressed"], (after, last)).fetchall():
        kept = msgspec.json.decode(body, type=_Suppression)
        key = _suppression_key(name, kept)
        if key != name:
            assert kept.address is not None, "an address that is not known keeps its key"
            kept = msgspec.structs.replace(kept, address=address_key(kept.channel, kept.address))
            body = msgspec.json.encode(kept)
        connection.execute(
            _SQL["put_suppression" if key == name else "put_rekeyed_suppression"],
            {
                "tenant": tenant,
                "id": key,
                "version": version,
                "until": until,
                "address_key": "/".join(key.split("/")[:2]),
                "body": body,
                **msgspec.structs.asdict(kept),
            },
        )


def _suppression_key(name: str, kept: _Suppression) -> str:
    """Today's key: the channel, the digest of the address, and the category. An erased address keeps the old one."""
    if kept.address is None or kept.channel in {"push", "in_app"}:
        return name
    behind = "" if kept.category is None else f"/{kept.category}"
    return f"{kept.channel}/{digest(kept.channel, kept.address)}{behind}"


def _address_digest(channel: Any, to: Any) -> str:
    """As the columns of addresses have it: the channel and the digest."""
    return f"{channel}/{digest(channel, to)}"


def _has_documents(connection: apsw.Connection) -> bool:
    return int(connection.execute(_SQL["documents_exist"]).get) == 2
