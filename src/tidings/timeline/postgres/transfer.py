"""A schema of a PostgreSQL database as the source or target of a transfer. The target's nodes may be running."""

from collections.abc import Sequence
from uuid import uuid4

import msgspec

from tidings import crash
from tidings.domain.errors import Moved, NotOwner, StoreError
from tidings.domain.fleet import Predecessor, Report
from tidings.domain.notifications.notification import GROUP, TOPICS
from tidings.domain.notifications.tables import TABLES, Table
from tidings.domain.schedules.command import Priority
from tidings.domain.schedules.schedule import Event, is_kafka
from tidings.ports.tables import ChangeGroup, Put
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.intake import TRIES_MAX, Run
from tidings.timeline.postgres.apply.unit_of_work import (
    Found,
    IdTaken,
    ScheduleRow,
    finished_row,
    key_of,
    recurring_row,
    timeline_row,
)
from tidings.timeline.postgres.calendars import Calendars
from tidings.timeline.postgres.context import BLOCK, Arrivals, StoreContext
from tidings.timeline.postgres.database import Connection, Contended, queries
from tidings.timeline.postgres.names import PRIORITIES, TO_KAFKA
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.postgres.tables import PostgresTables
from tidings.timeline.transfer import protocol
from tidings.timeline.transfer.protocol import (
    CHUNK_COST,
    ITEM_COST,
    LEAST,
    Chunk,
    Exporter,
    Id,
    ImportResult,
    Item,
    Move,
    Progress,
    RowPosition,
    ScheduleItem,
    Stage,
)

# A stage's query up to the row that fills a chunk.
_PAGE = """
SELECT * FROM (
    SELECT *, sum({item} + size) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) - size - {item} AS before
    FROM ({query} LIMIT {rows_max}) AS page
) AS page WHERE before < {chunk} ORDER BY {order}
"""
# Counting reads whole tables, which is slow in a large store. It blocks nothing, because the store is closed.
_PATIENT = b"SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on"
_PAGE_COLUMNS = 2  # that it adds: the size, and the cost of the rows before


class PostgresEndpoint:
    """One schema."""

    def __init__(self, context: StoreContext, tables: PostgresTables) -> None:
        self._context = context
        self._tables = tables
        self._us = uuid4()
        self._sql = queries("transfer", context.options.schema)
        schedules = {
            "one_shots": Stage((-1, -1, LEAST, -1), self._one_shots),
            "standing": Stage((-1,), self._recurring),
            "finished": Stage((-1, LEAST, -1), self._finished),
        }
        self._sql |= {f"{protocol.ROWS}{name}": context.inside(_rows_query(table)) for name, table in TABLES.items()}
        stages = protocol.stages(schedules)
        self._pages = {name: _page(self._sql[name]) for name in stages}
        self._exporter = Exporter(stages, self._fetch, self._histories)

    @property
    def identity(self) -> str:
        return self._context.identity

    async def acquire(self, role: protocol.Role, elapsed: int, lease_us: int) -> bool:  # noqa: ARG002 - the server's clock counts
        """A source needs every lane; nodes keep theirs until they stop. A target needs nothing: its nodes may run."""
        if role == "target":
            return True
        owned = await self._context.pool.call(self._sql["acquire"], {"us": self._us, "lease": lease_us})
        if len(owned) == self._context.lanes:
            return True
        await self.release()
        return False

    async def release(self) -> None:
        await self._context.pool.call(self._sql["release"], {"us": self._us})

    async def status(self) -> protocol.Status:
        move = await self._call("move")
        ((block,),) = await self._call("arrival")
        nodes = await self._context.pool.read(self._context.sql["nodes"])
        async with self._context.pool.connection() as connection:
            remainder = await self._remainder(connection)
        return protocol.Status(
            move=protocol.decode_move(move[0][0]) if move else None,
            nodes=[
                msgspec.json.decode(report, type=Report).name or node.hex
                for node, _, _, is_alive, report in nodes
                if is_alive
            ],
            positions=await self._context.positions(),
            remainder=remainder,
            arrival=int((block + 1) * BLOCK),
        )

    # Source

    async def close(self, move: Move, check: protocol.Check) -> Move:
        """Close the tables themselves: any node accepts changes, also one that owns no lane.

        Lanes are locked before tables, in the order of a release, so that records it put into the outbox are seen.
        """
        async with self._context.pool.transaction() as connection:
            ends = await rows(connection, self._sql["lock_lanes"], (self._us,))
            if len(ends) < self._context.lanes:
                raise NotOwner("another process owns lanes of this store")
            await rows(connection, self._sql["fence"], (True,))
            check(await self._remainder(connection))
            this = Predecessor(self.identity, tuple(end for (end,) in ends))
            predecessors = (*protocol.predecessors_of(await rows(connection, self._sql["transfers"])), this)
            await connection.execute(_PATIENT)
            (totals,) = await rows(connection, self._sql["counts"])
            counts = protocol.kind_counts(totals, await rows(connection, self._sql["pending_terms"]))
            move = msgspec.structs.replace(move, predecessors=predecessors, counts=counts)
            await rows(connection, self._sql["mark"], (protocol.encode_move(move),))
        crash.point("transfer.marked")
        return move

    async def mark(self, move: Move | None) -> None:
        if move is not None:
            await self._call("mark", protocol.encode_move(move))
            return
        async with self._context.pool.transaction() as connection:
            await rows(connection, self._sql["fence"], (False,))
            await rows(connection, self._sql["unmark"])

    async def export(self, after: str | None) -> Chunk | None:
        await self._context.names.load()
        return await self._exporter.chunk(after)

    async def _fetch(self, stage: str, after: RowPosition) -> list[Row]:
        return [row[:-_PAGE_COLUMNS] for row in await self._context.pool.read(self._pages[stage], after)]

    def _one_shots(self, found: Sequence[Row]) -> list[Item]:
        return [self._item(timeline_row(row[4:])) for row in found]

    def _recurring(self, found: Sequence[Row]) -> list[Item]:
        return [self._item(recurring_row(row[:-1]), row[-1]) for row in found]

    def _finished(self, found: Sequence[Row]) -> list[Item]:
        return [self._item(finished_row(row[3:])) for row in found]

    def _item(self, found: Found, extras: Sequence[tuple[int, int]] = ()) -> ScheduleItem:
        names = self._context.names
        return ScheduleItem(
            tenant=names.tenant_of(found.stream),
            topic=names.destination(found.topic)[1],
            priority=Priority(found.stream % PRIORITIES),
            extras=extras,
            **protocol.columns(found),
        )

    async def _histories(self, ids: Sequence[Id]) -> dict[Id, list[Event]]:
        keys = {key_of(*each): each for each in ids}
        histories: dict[Id, list[Event]] = {}
        for key, *line in await self._call("histories", database.uuids(list(keys))):
            histories.setdefault(keys[key], []).append(Event(*line))
        return histories

    async def _remainder(self, connection: Connection) -> protocol.Remainder:
        ((outgoing, held, records),) = await rows(connection, self._sql["remainder"])
        behind = await rows(connection, self._sql["behind"], (GROUP, list(TOPICS)))
        return protocol.Remainder(outgoing - held, held, records, tuple(protocol.Lag(*row) for row in behind))

    # Target

    async def begin(self, move: Move, arrival: int) -> Progress:  # noqa: ARG002 - ids made here are checked for uniqueness
        await self._call(
            "begin_progress", move.transfer, protocol.encode_progress(Progress(predecessors=move.predecessors))
        )
        return _progress(await self._call("progress", move.transfer))

    async def load(self, move: Move, before: Progress, chunk: Chunk, now: int) -> Progress:
        schedules = [item for item in chunk.items if isinstance(item, ScheduleItem)]
        for tenant, topic in await self._context.names.make_all(
            {(item.tenant, item.topic): None for item in schedules}
        ):
            raise StoreError(f"{tenant} has too many topics in the target to add {topic}: the copy stops here")
        for _ in range(TRIES_MAX):
            try:
                return await self._load(move, before, chunk, now)
            except (IdTaken, Contended):  # a node has just used one of the ids: try again
                continue
        return await self._load(move, before, chunk, now)

    async def _load(self, move: Move, before: Progress, chunk: Chunk, now: int) -> Progress:
        async with self._context.pool.transaction() as connection:
            if _progress(await rows(connection, self._sql["progress"], (move.transfer,))).after != before.after:
                raise Moved("another copy is running")
            run = Run(self._context, Calendars(self._context), connection, now)
            results = await self._put(connection, run, chunk.items, now)
            await run.save()
            progress = before.advanced(chunk, results)
            await rows(connection, self._sql["keep_progress"], (protocol.encode_progress(progress), move.transfer))
            crash.point("transfer.written")
        crash.point("transfer.committed")
        await run.announce()
        return progress

    async def _put(self, connection: Connection, run: Run, items: Sequence[Item], now: int) -> list[ImportResult]:
        """Write the items of a chunk, which are all of one kind."""
        schedules = [item for item in items if isinstance(item, ScheduleItem)]
        table_rows = [item for item in items if isinstance(item, Put)]
        if schedules:
            return await self._put_schedules(run, schedules)
        if table_rows:
            return await self._put_rows(connection, table_rows, now)
        name, values = type(items[0]).__name__, [msgspec.structs.asdict(item) for item in items]
        new = await _each(connection, self._sql[f"put_{name}"], values)
        same = await _each(connection, self._sql[f"same_{name}"], values)
        return [protocol.result(*result) for result in zip(new, same, strict=True)]

    async def _put_rows(self, connection: Connection, items: Sequence[Put], now: int) -> list[ImportResult]:
        written = await self._tables.write(connection, [ChangeGroup((item,)) for item in items], now)
        known = await self._tables.read(connection, [item.key for item in items], now)
        results = zip(items, written, known, strict=True)
        return [protocol.result(bool(done.version), protocol.is_same_row(item, there)) for item, done, there in results]

    async def _put_schedules(self, run: Run, items: list[ScheduleItem]) -> list[ImportResult]:
        keys = [key_of(item.tenant, item.id) for item in items]
        entries = await run.load(set(keys))
        arrivals = await self._context.arrivals(sum(1 + len(item.extras) for item in items))
        results = [self._put_schedule(item, entries[key], arrivals) for item, key in zip(items, keys, strict=True)]
        self._context.give_back(arrivals)
        return results

    def _put_schedule(self, item: ScheduleItem, entry: ScheduleRow, arrivals: Arrivals) -> ImportResult:
        result, generation = protocol.resolve(item, entry.now)
        if result != "moved":
            return result
        names, parts = self._context.names, self._context.parts
        entry.now = found = Found(
            table="finished" if item.at is not None else "timeline" if item.terms is None else "standing",
            arrival=arrivals.take(),
            lane=entry.lane,
            stream=names.stream(item.tenant, item.priority, item.topic),
            topic=names.topic(item.tenant, item.topic),
            part=TO_KAFKA if is_kafka(item.topic) else entry.lane * parts + item.partition_hash % parts,
            **(protocol.columns(item) | {"generation": generation}),
        )
        for due, n in item.extras:
            extra = msgspec.structs.replace(found, table="timeline", state="pending", arrival=arrivals.take())
            extra.due, extra.n, extra.deadline, extra.reason, extra.terms = due, n, None, None, None
            entry.fired.append(extra)
        for event in item.history:
            entry.notes.append(event)
        return "moved"

    async def _call(self, name: str, *values: object) -> list[Row]:
        return await self._context.pool.call(self._sql[name], values)


def _rows_query(table: Table) -> str:
    """The rows of a table after a key, with its columns in their order."""
    columns = "".join(f"{column.name}, " for column in table.columns)
    return (
        f"SELECT tenant, {table.key}, body, until, {columns}octet_length(body) AS size FROM tidings.{table.name}"
        f" WHERE (tenant, {table.key}) > (%s, %s) ORDER BY tenant, {table.key}"
    )


def _page(query: str) -> str:
    order, rows_max = query.rpartition("ORDER BY ")[2], CHUNK_COST // ITEM_COST
    return _PAGE.format(query=query, order=order, rows_max=rows_max, item=ITEM_COST, chunk=CHUNK_COST)


async def _each(connection: Connection, statement: str, values: Sequence[dict[str, object]]) -> list[bool]:
    """Whether a statement has an answer, for each of some values; all in one round trip."""
    async with connection.cursor() as cursor:
        await cursor.executemany(statement.encode(), values, returning=True)
        answers = [cursor.rowcount > 0]
        while cursor.nextset():
            answers.append(cursor.rowcount > 0)
        return answers


def _progress(found: list[Row]) -> Progress:
    return protocol.decode_progress(found[0][0])
