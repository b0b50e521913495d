"""The file as a store from which or into which everything is carried. The steps are taken by the store's threads."""

from collections.abc import Callable, Sequence

import apsw
import msgspec

from tidings import crash
from tidings.domain.errors import Moved, StoreError
from tidings.domain.fleet import Predecessor, Report
from tidings.ports import ApiKey, Document
from tidings.timeline.carrying import (
    Carried,
    CarriedDates,
    CarriedPosition,
    CarriedReceipt,
    Kind,
    Landing,
    Load,
    Move,
    Progress,
    Rest,
    Thing,
    decode_progress,
    encode_move,
    encode_progress,
    land,
    predecessors_of,
)
from tidings.timeline.filing import brought, is_same
from tidings.timeline.sqlite import cabinet, lease, outbox, single
from tidings.timeline.sqlite.cargo import Cargo
from tidings.timeline.sqlite.dates import Dates, all_calendars, kept_zones
from tidings.timeline.sqlite.keeping import Keeping
from tidings.timeline.sqlite.lease import Lease
from tidings.timeline.sqlite.lookup import Found, find
from tidings.timeline.sqlite.rows import NO_DEADLINE
from tidings.timeline.sqlite.worker import Worker
from tidings.timeline.sqlite.writer import Writer

COPY = "tidings copy"
_MARK = "INSERT OR REPLACE INTO moved VALUES (1, ?)"
FOR_EVER = 0  # a moment at which nothing is old enough to be forgotten


class SqliteCarrier:
    """One file. Who owns its lease is the only one who uses it, so nobody else need be asked to stand still."""

    def __init__(
        self,
        writer: Writer,
        its_lease: Lease,
        keeping: Keeping,
        writing: Worker,
        scanner: apsw.Connection,
        scanning: Worker,
    ) -> None:
        self._writer = writer
        self._lease = its_lease
        self._keeping = keeping
        self._writing = writing
        self._scanner = scanner
        self._scanning = scanning
        self._cargo = Cargo(scanner, writer)
        self._arriving = Arriving(writer)

    @property
    def identity(self) -> str:
        return self._writer.identity

    async def dates(self) -> CarriedDates:
        return await self._scanning.run(self._dates)

    def _dates(self) -> CarriedDates:
        return CarriedDates(all_calendars(self._scanner), kept_zones(self._scanner))

    async def take_dates(self, dates: CarriedDates) -> None:
        await self._writing.run(Dates(self._writer).take, dates.calendars, dates.zones)

    async def seize(self, elapsed: int, lease_us: int) -> bool:
        return await self._writing.run(self._seize, elapsed, lease_us)

    def _seize(self, elapsed: int, lease_us: int) -> bool:
        owns, new = self._lease.acquire(elapsed, lease_us, Report(name=COPY), moved_too=True)
        if new:
            self._keeping.begin()
        self._writer.refresh()
        return owns

    async def enter(self, elapsed: int, lease_us: int) -> bool:
        return await self.seize(elapsed, lease_us)

    async def let_go(self) -> None:
        await self._writing.run(self._lease.resign)

    async def nodes(self) -> list[str]:
        """Whoever lived here would own the lease."""
        return []

    async def moved(self) -> Move | None:
        return await self._scanning.run(lease.moved, self._scanner)

    async def leave(self, move: Move, check: Callable[[Rest], None]) -> Move:
        return await self._writing.run(self._leave, move, check)

    def _leave(self, move: Move, check: Callable[[Rest], None]) -> Move:
        with self._writer.transaction() as connection:
            check(self._cargo.rest(connection))
            _, end = outbox.span(connection)
            passages = connection.execute("SELECT progress FROM carried")
            line = (*predecessors_of(passages), Predecessor(self.identity, (end,)))
            move = msgspec.structs.replace(move, predecessors=line)
            connection.execute(_MARK, (encode_move(move),))
        crash.point("carry.marked")
        return move

    async def move(self, move: Move | None) -> None:
        await self._writing.run(self._move, move)

    def _move(self, move: Move | None) -> None:
        with self._writer.transaction() as connection:
            if move is None:
                connection.execute("DELETE FROM moved")
            else:
                connection.execute(_MARK, (encode_move(move),))

    async def rest(self) -> Rest:
        return await self._scanning.run(self._cargo.rest, self._scanner)

    async def cargo(self) -> dict[Kind, int]:
        return await self._scanning.run(self._cargo.counts)

    async def positions(self) -> dict[tuple[str, int], int]:
        return await self._scanning.run(outbox.positions, self._scanner)

    async def carry_out(self, after: str | None) -> Load | None:
        return await self._scanning.run(self._cargo.load, after)

    async def begin(self, passage: str, predecessors: Sequence[Predecessor]) -> None:
        await self._writing.run(self._begin, passage, predecessors)

    def _begin(self, passage: str, predecessors: Sequence[Predecessor]) -> None:
        progress = encode_progress(Progress(predecessors=tuple(predecessors)))
        with self._writer.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO carried VALUES (?, ?)", (passage, progress))

    async def progress(self, passage: str) -> Progress:
        return await self._scanning.run(_progress, self._scanner, passage)

    async def carry_in(self, passage: str, before: Progress, load: Load, now: int) -> Progress:
        return await self._writing.run(self._carry_in, passage, before, load, now)

    def _carry_in(self, passage: str, before: Progress, load: Load, now: int) -> Progress:
        self._keeping.flush()
        with self._writer.transaction() as connection:
            if _progress(connection, passage).after != before.after:
                raise Moved("another copy is under way")
            self._writer.arrival = max(self._writer.arrival, load.highest)
            progress = before.landed(load, [self._arriving.take(thing, now) for thing in load.things])
            connection.execute("INSERT OR REPLACE INTO carried VALUES (?, ?)", (passage, encode_progress(progress)))
            crash.point("carry.written")
        crash.point("carry.committed")
        return progress


class Arriving:
    """What is carried in, one thing after the other, inside the caller's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def take(self, thing: Thing, now: int) -> Landing:
        """Put it where it belongs, unless something is there."""
        match thing:
            case Carried():
                return self._schedule(thing)
            case CarriedReceipt():
                return self._receipt(thing)
            case CarriedPosition():
                return self._position(thing)
            case ApiKey():
                return self._key(thing)
            case Document():
                return self._document(thing, now)

    def _schedule(self, brought: Carried) -> Landing:
        writer = self._writer
        known = find(writer.connection, writer, brought.tenant, brought.id, FOR_EVER)
        generation = brought.generation
        if known is not None:
            landing = land(brought, known.generation, known.content, known.accepted, known.at)
            if landing != "moved":
                return landing
            if brought.at is None:
                generation = max(generation, known.generation + 1)
            sql = "DELETE FROM finished WHERE due = ? AND arrival = ?"
            writer.connection.execute(sql, (known.origin, known.arrival))
        if not writer.may_open(brought.tenant, brought.topic):
            raise StoreError(f"{brought.tenant} has too many topics here for {brought.topic}: the rest cannot be moved")
        writer.arrival += 1
        found = self._found(brought, generation)
        single.remember(writer, found)
        self._write(brought, found)
        for event in brought.history:
            single.note(writer, found, event)
        return "moved"

    def _write(self, brought: Carried, found: Found) -> None:
        writer = self._writer
        if brought.at is not None:
            single.finish(writer, found, brought.state, brought.at, brought.reason)
        elif brought.terms is None:
            single.insert_plain(writer, found, brought.accepted)
        else:
            single.insert_standing(writer, found, brought.terms)
            if brought.state == "pending":
                single.insert_pointer(writer, found)
        for due, n in brought.extras:
            writer.arrival += 1
            extra = self._found(brought, found.generation)
            extra.due, extra.n, extra.deadline, extra.reason = due, n, NO_DEADLINE, None
            single.insert_extra(writer, extra, found.arrival)

    def _found(self, brought: Carried, generation: int) -> Found:
        writer = self._writer
        topic = writer.topic_of(brought.tenant, brought.topic)
        return Found(
            "standing",
            writer.arrival,
            0,
            writer.stream_of(brought.tenant, brought.priority, brought.topic),
            brought.due,
            topic + brought.partition_hash % writer.partitions,
            generation,
            brought.n,
            brought.accepted,
            brought.content,
            brought.id,
            brought.labels,
            brought.state,
            brought.message,
            NO_DEADLINE if brought.deadline is None else min(brought.deadline, NO_DEADLINE),
            brought.reason,
            origin=brought.due,
            fires=brought.fires,
            released=brought.released,
        )

    def _receipt(self, receipt: CarriedReceipt) -> Landing:
        place = (receipt.tenant, receipt.key)
        known = self._writer.connection.execute("SELECT body FROM receipt WHERE tenant = ? AND key = ?", place).get
        if known is not None:
            return "left" if known == receipt.body else "conflict"
        row = (*place, receipt.body, receipt.outcomes, receipt.at)
        self._writer.connection.execute("INSERT INTO receipt VALUES (?, ?, ?, ?, ?)", row)
        return "moved"

    def _position(self, position: CarriedPosition) -> Landing:
        """Forward only: what the target has read further than the source is not read again."""
        place = (position.topic, position.partition)
        sql = "SELECT next FROM source WHERE topic = ? AND partition = ?"
        known = self._writer.connection.execute(sql, place).get or 0
        if known >= position.next:
            return "left" if known == position.next else "conflict"
        self._writer.connection.execute("INSERT OR REPLACE INTO source VALUES (?, ?, ?)", (*place, position.next))
        return "moved"

    def _key(self, key: ApiKey) -> Landing:
        sql = "SELECT name, digest FROM api_key WHERE name = ? OR digest = ?"
        known = self._writer.connection.execute(sql, (key.name, key.digest)).fetchall()
        if known:
            return "left" if known == [(key.name, key.digest)] else "conflict"
        row = (key.name, key.tenant, key.digest, key.admin, key.created)
        self._writer.connection.execute("INSERT INTO api_key VALUES (?, ?, ?, ?, ?)", row)
        return "moved"

    def _document(self, document: Document, now: int) -> Landing:
        connection = self._writer.connection
        if all(cabinet.change(connection, [[brought(document)]], now)):
            return "moved"
        return "left" if is_same(document, cabinet.get(connection, document.key, now)) else "conflict"


def _progress(connection: apsw.Connection, passage: str) -> Progress:
    row = connection.execute("SELECT progress FROM carried WHERE passage = ?", (passage,)).fetchone()
    return Progress() if row is None else decode_progress(row[0])
