"""The document store in the database. Any node reads and changes documents, in one round trip for each call."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate
from uuid import UUID

import msgspec

from tidings.ports import Change, Document, Key, Place, Put, Unchanged
from tidings.timeline.postgres import database
from tidings.timeline.postgres.database import Connection, Contended, queries
from tidings.timeline.postgres.pool import Pool, Row, rows
from tidings.timeline.store_rules import FIRST, LAST, check_changes, decode_tags, encode_tags

TRIES_MAX = 10

_NOTHING = Put(Key("", "", ""), b"", 0)  # stands in for a change that is not a `Put`
_encode = msgspec.msgpack.Encoder().encode


class PostgresDocuments:
    """The documents of one schema. A change locks its documents in the order of their keys, and nothing else."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self.sql = queries("documents", schema)

    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        digests = [digest(key) for key in keys]
        found = await self._pool.read(self.sql["get"], (database.uuids(digests), now))
        return _documents(keys, digests, found)

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
        order, name = after or (LAST if newest else FIRST)
        shelf = UUID(bytes=digest(Key(tenant, kind, tag)))
        values = {"shelf": shelf, "order": order, "name": name.encode(), "now": now, "limit": limit}
        found = await self._pool.read(self.sql["find_newest" if newest else "find"], values)
        return [
            Document(Key(tenant, kind, name.decode()), body, version, decode_tags(tags), order, until)
            for name, body, version, tags, order, until in found
        ]

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        check_changes(groups)
        if not groups:
            return []
        values = _columns(groups, now)
        for _ in range(TRIES_MAX):
            try:
                return _answers(await self._pool.call(self.sql["change"], values))
            except Contended:  # another transaction has just created one of the documents: try again
                continue
        return _answers(await self._pool.call(self.sql["change"], values))

    async def wipe(self) -> None:
        """Nothing to do: VACUUM removes deleted rows. The write-ahead log and backups are not under our control."""

    async def expire(self, now: int, rows_max: int) -> int:
        """Delete some expired documents; returns how many."""
        ((gone,),) = await self._pool.call(self.sql["expire"], (now, rows_max))
        return int(gone)


def digest(key: Key) -> bytes:
    """The stored key of a document, or of a tag (then `name` is the tag)."""
    return blake2b(_encode(key), digest_size=16).digest()


async def get(
    connection: Connection, statements: dict[str, str], keys: Sequence[Key], now: int
) -> list[Document | None]:
    """The documents of some keys, inside the caller's transaction."""
    digests = [digest(key) for key in keys]
    return _documents(keys, digests, await rows(connection, statements["get"], (database.uuids(digests), now)))


async def change(
    connection: Connection, statements: dict[str, str], groups: Sequence[Sequence[Change]], now: int
) -> list[int]:
    """Apply each group whose expected versions match, inside the caller's transaction; `Contended` aborts it."""
    return _answers(await rows(connection, statements["change"], _columns(groups, now)))


def _documents(keys: Sequence[Key], digests: Sequence[bytes], found: Iterable[Row]) -> list[Document | None]:
    there = {key: (body, version, decode_tags(tags), *rest) for key, body, version, tags, *rest in found}
    return [Document(key, *there[one]) if one in there else None for key, one in zip(keys, digests, strict=True)]


def _answers(found: list[Row]) -> list[int]:
    ((answers,),) = found
    return list(answers)


def _columns(groups: Sequence[Sequence[Change]], now: int) -> tuple[object, ...]:
    """The changes of all groups as columns, the parameters of the SQL function."""
    changes = [change for group in groups for change in group]
    digests = [digest(change.key) for change in changes]
    keys = sorted(set(digests))
    slots = {key: slot for slot, key in enumerate(keys, 1)}
    puts = [change if isinstance(change, Put) else _NOTHING for change in changes]
    shelves = [digest(Key(put.key.tenant, put.key.kind, tag)) for put in puts for tag in put.tags]
    return (
        now,
        database.uuids(keys),
        database.int4s(list(accumulate(len(group) for group in groups))),
        database.int4s([slots[each] for each in digests]),
        database.int8s([change.expected for change in changes]),
        database.byteas([None if isinstance(each, Unchanged) else each.key.tenant.encode() for each in changes]),
        database.byteas([put.key.kind.encode() for put in puts]),
        database.byteas([put.key.name.encode() for put in puts]),
        database.byteas([None if put is _NOTHING else put.body for put in puts]),
        database.int8s([put.order for put in puts]),
        database.maybe_int8s([put.until for put in puts]),
        database.byteas([encode_tags(put.tags) for put in puts]),
        database.int4s(list(accumulate((len(put.tags) for put in puts), initial=1))),
        database.uuids(shelves),
    )
