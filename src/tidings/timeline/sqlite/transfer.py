"""The SQLite file as the source or target of a transfer. Every step runs on one of the store's threads."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import apsw
import msgspec
import numpy as np

from tidings import crash
from tidings.domain.errors import Moved, StoreError
from tidings.domain.fleet import Predecessor, Report
from tidings.domain.notifications.notification import GROUP, TOPICS
from tidings.domain.notifications.tables import TABLES
from tidings.domain.schedules.schedule import Event
from tidings.ports.tables import ChangeGroup, Put
from tidings.timeline.sqlite import id_lookup, row_writes, tables, writer
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.id_lookup import Found
from tidings.timeline.sqlite.maintenance import Maintenance
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_MASK, HEAD, NO_DEADLINE, unpack
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, DatabaseThread, Lease, Writer
from tidings.timeline.transfer import protocol
from tidings.timeline.transfer.protocol import (
    ITEM_COST,
    LEAST,
    Chunk,
    Exporter,
    Id,
    ImportResult,
    Item,
    Move,
    Progress,
    Row,
    RowPosition,
    ScheduleItem,
    Stage,
)

NAME = "tidings copy"  # of the process that holds the lease
ALWAYS = 0  # as `now`: a time at which no finished schedule is past its retention

_SQL = queries("transfer") | {f"{protocol.ROWS}{table}": tables.export_sql(table) for table in TABLES}
_MARK = "INSERT OR REPLACE INTO moved VALUES (1, ?)"
_DELIVERY_TOPICS = json.dumps(list(TOPICS))


class SqliteEndpoint:
    """One file. The owner of its lease is its only user, so a source and a target need the same lease."""

    def __init__(
        self,
        writer: Writer,
        file_lease: Lease,
        maintenance: Maintenance,
        *,
        writer_thread: DatabaseThread,
        scanner: apsw.Connection,
        scanner_thread: DatabaseThread,
    ) -> None:
        self._writer = writer
        self._lease = file_lease
        self._maintenance = maintenance
        self._writer_thread = writer_thread
        self._scanner = scanner
        self._scanner_thread = scanner_thread
        schedules = {
            "parcels": Stage((-1,), self._parcels),
            "far": Stage((-1,), self._far),
            "near": Stage((-1, -1, -1), self._near),
            "standing": Stage((-1,), self._recurring),
            "finished": Stage((LEAST, -1), self._finished),
        }
        self._exporter = Exporter(protocol.stages(schedules), self._fetch, self._histories)

    @property
    def identity(self) -> str:
        return self._writer.identity

    async def acquire(self, role: protocol.Role, elapsed: int, lease_us: int) -> bool:  # noqa: ARG002 - both need the same
        def acquire() -> bool:
            owns, is_new = self._lease.acquire(elapsed, lease_us, Report(name=NAME), moved_too=True)
            if is_new:
                self._maintenance.begin()
            self._writer.refresh()
            return owns

        return await self._writer_thread.run(acquire)

    async def release(self) -> None:
        await self._writer_thread.run(self._lease.resign)

    async def status(self) -> protocol.Status:
        """No node can be alive besides the owner of the lease."""

        def status() -> protocol.Status:
            return protocol.Status(
                move=writer.moved(self._scanner),
                nodes=(),
                positions=outbox.positions(self._scanner),
                remainder=_remainder(self._scanner),
                arrival=self._writer.arrival,
            )

        return await self._scanner_thread.run(status)

    # Source

    async def close(self, move: Move, check: protocol.Check) -> Move:
        def close() -> Move:
            with self._writer.transaction() as connection:
                check(_remainder(connection))
                row_writes.sweep_unfinished(connection, ())
                _, end = outbox.span(connection)
                transfers = connection.execute("SELECT progress FROM carried")
                predecessors = (*protocol.predecessors_of(transfers), Predecessor(self.identity, (end,)))
                totals = connection.execute(_SQL["counts"]).fetchone()
                counts = protocol.kind_counts(totals, connection.execute(_SQL["pending_terms"]))
                marked = msgspec.structs.replace(move, predecessors=predecessors, counts=counts)
                connection.execute(_MARK, (protocol.encode_move(marked),))
            crash.point("transfer.marked")
            return marked

        return await self._writer_thread.run(close)

    async def mark(self, move: Move | None) -> None:
        def mark() -> None:
            with self._writer.transaction() as connection:
                if move is None:
                    connection.execute("DELETE FROM moved")
                else:
                    connection.execute(_MARK, (protocol.encode_move(move),))

        await self._writer_thread.run(mark)

    async def export(self, after: str | None) -> Chunk | None:
        return await self._exporter.chunk(after)

    async def _fetch(self, stage: str, after: RowPosition) -> list[Row]:
        return await self._scan(stage, after, _parcel_cost if stage == "parcels" else _cost)

    async def _scan(self, query: str, values: tuple[Any, ...], cost: Callable[[Row], int] = lambda _: 0) -> list[Row]:
        return await self._scanner_thread.run(
            lambda: list(protocol.bounded(self._scanner.execute(_SQL[query], values), cost))
        )

    def _parcels(self, rows: Sequence[Row]) -> list[Item]:
        parcels = [unpack(heads, bodies) for _, heads, bodies in rows]
        found = [
            id_lookup.plain("far", 0, 0, parcel.plain(index)) for parcel in parcels for index in range(len(parcel))
        ]
        return [self._item(each) for each in found]

    def _far(self, rows: Sequence[Row]) -> list[Item]:
        return [self._item(id_lookup.plain("far", row[0] & ARRIVAL_MASK, row[0], row[1:])) for row in rows]

    def _near(self, rows: Sequence[Row]) -> list[Item]:
        return [self._item(id_lookup.plain("near", row[2], 0, row[3:])) for row in rows]

    def _recurring(self, rows: Sequence[Row]) -> list[Item]:
        return [self._item(id_lookup.recurring_row(row[0], row[1:-1]), json.loads(row[-1])) for row in rows]

    def _finished(self, rows: Sequence[Row]) -> list[Item]:
        return [self._item(id_lookup.finished(arrival, due, tuple(row))) for due, arrival, *row in rows]

    def _item(self, found: Found, extras: Sequence[tuple[int, int]] = ()) -> ScheduleItem:
        tenant, priority = self._writer.stream_names[found.stream]
        topic = self._writer.topic_names[found.partition // PARTITIONS_MAX][1]
        item = ScheduleItem(tenant=tenant, topic=topic, priority=priority, extras=extras, **protocol.columns(found))
        if found.deadline == NO_DEADLINE:
            item.deadline, item.reason = None, found.reason if found.at is not None else None
        return item

    async def _histories(self, ids: Sequence[Id]) -> dict[Id, list[Event]]:
        hashes = np.array([self._writer.idmap.hash(*each) for each in ids], dtype=np.int64)
        histories: dict[Id, list[Event]] = {}
        for tenant, schedule_id, *line in await self._scan("histories", (apsw.carray(hashes),)):
            histories.setdefault((tenant, schedule_id), []).append(Event(*line))
        return histories

    # Target

    async def begin(self, move: Move, arrival: int) -> Progress:
        def begin() -> Progress:
            progress = protocol.encode_progress(Progress(predecessors=move.predecessors))
            with self._writer.transaction() as connection:
                self._writer.skip_arrivals(arrival)  # ids made here stay unique
                connection.execute("INSERT OR IGNORE INTO carried VALUES (?, ?)", (move.transfer, progress))
                return _progress(connection, move)

        return await self._writer_thread.run(begin)

    async def load(self, move: Move, before: Progress, chunk: Chunk, now: int) -> Progress:
        def load() -> Progress:
            self._maintenance.flush()
            with self._writer.transaction() as connection:
                if _progress(connection, move).after != before.after:
                    raise Moved("another copy is running")
                progress = before.advanced(chunk, self._put_all(chunk.items, now))
                row = (move.transfer, protocol.encode_progress(progress))
                connection.execute("INSERT OR REPLACE INTO carried VALUES (?, ?)", row)
                crash.point("transfer.written")
            crash.point("transfer.committed")
            return progress

        return await self._writer_thread.run(load)

    def _put_all(self, items: Sequence[Item], now: int) -> list[ImportResult]:
        """Write the items of a chunk, which are all of one kind."""
        rows = [item for item in items if isinstance(item, Put)]
        return self._put_rows(rows, now) if rows else [self._put(item) for item in items]

    def _put_rows(self, items: Sequence[Put], now: int) -> list[ImportResult]:
        connection = self._writer.connection
        written = tables.apply(connection, [ChangeGroup((item,)) for item in items], now)
        known = tables.get(connection, [item.key for item in items], now)
        results = zip(items, written, known, strict=True)
        return [protocol.result(done.version != 0, protocol.is_same_row(item, row)) for item, done, row in results]

    def _put(self, item: Item) -> ImportResult:
        connection = self._writer.connection
        if isinstance(item, ScheduleItem):
            return self._put_schedule(item)
        name, values = type(item).__name__, msgspec.structs.asdict(item)
        is_new = connection.execute(_SQL[f"put_{name}"], values).fetchone() is not None
        return protocol.result(is_new, connection.execute(_SQL[f"same_{name}"], values).fetchone() is not None)

    def _put_schedule(self, item: ScheduleItem) -> ImportResult:
        writer = self._writer
        known = id_lookup.find(writer.connection, writer, item.tenant, item.id, ALWAYS)
        result, generation = protocol.resolve(item, known)
        if result != "moved":
            return result
        if known is not None:
            key = (known.origin, known.arrival)
            writer.connection.execute("DELETE FROM finished WHERE due = ? AND arrival = ?", key)
        if not writer.may_open(item.tenant, item.topic):
            raise StoreError(
                f"{item.tenant} has too many topics in the target to add {item.topic}: the copy stops here"
            )
        found = self._found(item, generation)
        row_writes.remember(writer, found)
        if item.at is not None:
            row_writes.finish(writer, found, item.state, item.at, item.reason)
        elif item.terms is None:
            row_writes.insert_plain(writer, found, item.accepted)
        else:
            row_writes.insert_recurring(writer, found, item.terms)
            if item.state == "pending":
                row_writes.insert_pointer(writer, found)
        for due, n in item.extras:
            extra = self._found(item, generation)
            extra.due, extra.n, extra.deadline, extra.reason = due, n, NO_DEADLINE, None
            row_writes.insert_extra(writer, extra, found.arrival)
        for event in item.history:
            row_writes.note(writer, found, event)
        return "moved"

    def _found(self, item: ScheduleItem, generation: int) -> Found:
        """The row of an item, under a new arrival number."""
        writer = self._writer
        topic = writer.topic_of(item.tenant, item.topic)
        columns: dict[str, Any] = protocol.columns(item) | {
            "generation": generation,
            "deadline": NO_DEADLINE if item.deadline is None else min(item.deadline, NO_DEADLINE),
        }
        return Found(
            table="standing",
            arrival=writer.next_arrival(),
            place=0,
            stream=writer.stream_of(item.tenant, item.priority, item.topic),
            partition=topic + item.partition_hash % writer.partitions,
            origin=item.due,
            **columns,
        )


def _cost(row: Row) -> int:
    return ITEM_COST + sum(len(value) for value in row if isinstance(value, bytes))


def _parcel_cost(row: Row) -> int:
    return len(row[1]) // HEAD.itemsize * ITEM_COST + len(row[2])


def _remainder(connection: apsw.Connection) -> protocol.Remainder:
    outgoing, held, records = connection.execute(_SQL["remainder"]).fetchone()
    behind = tuple(protocol.Lag(*row) for row in connection.execute(_SQL["behind"], (GROUP, _DELIVERY_TOPICS)))
    return protocol.Remainder(outgoing - held, held, records, behind)


def _progress(connection: apsw.Connection, move: Move) -> Progress:
    return protocol.decode_progress(
        connection.execute("SELECT progress FROM carried WHERE passage = ?", (move.transfer,)).get
    )
