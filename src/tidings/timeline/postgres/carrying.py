"""The database as a store from which or into which everything is carried. Its nodes may run while it comes in."""

from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec

from tidings import crash
from tidings.domain.destination import is_kafka
from tidings.domain.errors import Moved, NotOwner, StoreError
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
    decode_move,
    decode_progress,
    encode_move,
    encode_progress,
    land,
    predecessors_of,
)
from tidings.timeline.filing import brought, is_same
from tidings.timeline.postgres import arrays, cabinet
from tidings.timeline.postgres.cargo import Cargo
from tidings.timeline.postgres.database import Connection, queries
from tidings.timeline.postgres.dates import Dates
from tidings.timeline.postgres.errors import Contended
from tidings.timeline.postgres.intake import TRIES_MAX, Run
from tidings.timeline.postgres.names import TO_KAFKA
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.postgres.rows import Found, key_of
from tidings.timeline.postgres.shared import Arrivals, Shared
from tidings.timeline.postgres.working import Entry, Quicker


class PostgresCarrier:
    """One schema of a database."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._us = uuid4()
        self._sql = queries("carrying", shared.options.schema) | queries("cabinet", shared.options.schema)
        self._cargo = Cargo(shared, self._sql)
        self._dates = Dates(shared)

    @property
    def identity(self) -> str:
        return self._shared.identity

    async def seize(self, elapsed: int, lease_us: int) -> bool:  # noqa: ARG002 - these leases count on the server's clock
        """Own every lane; nodes own theirs until they stop."""
        owned = await self._shared.pool.call(self._sql["seize"], {"us": self._us, "lease": lease_us})
        if len(owned) == self._shared.lanes:
            return True
        await self._shared.pool.call(self._sql["let_go"], {"us": self._us})
        return False

    async def enter(self, elapsed: int, lease_us: int) -> bool:  # noqa: ARG002 - its nodes need not stand still
        return True

    async def let_go(self) -> None:
        """Give the lanes back."""
        await self._shared.pool.call(self._sql["let_go"], {"us": self._us})

    async def nodes(self) -> list[str]:
        found = await self._shared.pool.read(self._shared.sql["nodes"])
        return [
            msgspec.json.decode(report, type=Report).name or node.hex for node, _, _, lives, report in found if lives
        ]

    async def moved(self) -> Move | None:
        found = await self._call("moved")
        return decode_move(found[0][0]) if found else None

    async def leave(self, move: Move, check: Callable[[Rest], None]) -> Move:
        """Any node takes changes, whoever owns the lanes: so the tables themselves are closed.

        The lanes before the tables, as a release locks them; what it put into the outbox is then seen.
        """
        async with self._shared.pool.transaction() as connection:
            ours = await rows(connection, self._sql["still_ours"], (self._us,))
            if len(ours) < self._shared.lanes:
                raise NotOwner("another node owns lanes of this store")
            await rows(connection, self._sql["fence"], (True,))
            check(await self._cargo.rest(connection))
            this = Predecessor(self.identity, tuple(end for (end,) in ours))
            line = (*predecessors_of(await rows(connection, self._sql["passages"])), this)
            move = msgspec.structs.replace(move, predecessors=line)
            await rows(connection, self._sql["mark"], (encode_move(move),))
        crash.point("carry.marked")
        return move

    async def move(self, move: Move | None) -> None:
        if move is not None:
            await self._call("mark", encode_move(move))
            return
        async with self._shared.pool.transaction() as connection:
            await rows(connection, self._sql["fence"], (False,))
            await rows(connection, self._sql["stay"])

    async def rest(self) -> Rest:
        async with self._shared.pool.connection() as connection:
            return await self._cargo.rest(connection)

    async def cargo(self) -> dict[Kind, int]:
        return await self._cargo.counts()

    async def positions(self) -> dict[tuple[str, int], int]:
        return await self._shared.positions()

    async def dates(self) -> CarriedDates:
        return CarriedDates(await self._dates.all_calendars(), await self._dates.zones())

    async def take_dates(self, dates: CarriedDates) -> None:
        await self._dates.take(dates.calendars, dates.zones)

    async def carry_out(self, after: str | None) -> Load | None:
        return await self._cargo.load(after)

    async def begin(self, passage: str, predecessors: Sequence[Predecessor]) -> None:
        await self._call("begin_progress", passage, encode_progress(Progress(predecessors=tuple(predecessors))))

    async def progress(self, passage: str) -> Progress:
        return _progress(await self._call("progress", passage))

    async def carry_in(self, passage: str, before: Progress, load: Load, now: int) -> Progress:
        for tenant, topic in await self._shared.names.make_all(
            {(thing.tenant, thing.topic): None for thing in load.things if isinstance(thing, Carried)}
        ):
            raise StoreError(f"{tenant} has too many topics here for {topic}: the rest cannot be moved")
        for _ in range(TRIES_MAX):
            try:
                return await self._carry_in(passage, before, load, now)
            except (Quicker, Contended):  # a node was quicker with one of the ids: look at it again
                continue
        return await self._carry_in(passage, before, load, now)

    async def _carry_in(self, passage: str, before: Progress, load: Load, now: int) -> Progress:
        async with self._shared.pool.transaction() as connection:
            known = _progress(await rows(connection, self._sql["lock_progress"], (passage,)))
            if known.after != before.after:
                raise Moved("another copy is under way")
            run = Run(self._shared, self._dates, connection, now)
            landings = await Arriving(self._shared, self._sql, connection, run).take(load.things, now)
            await run.save()
            progress = before.landed(load, landings)
            await rows(connection, self._sql["keep_progress"], (encode_progress(progress), passage))
            crash.point("carry.written")
        crash.point("carry.committed")
        await run.announce()
        return progress

    async def _call(self, name: str, *values: object) -> list[Row]:
        return await self._shared.pool.call(self._sql[name], values)


class Arriving:
    """One load inside a transaction: schedules through the working set, the rest by statements of its own."""

    def __init__(self, shared: Shared, statements: dict[str, str], connection: Connection, run: Run) -> None:
        self._shared = shared
        self._sql = statements
        self._connection = connection
        self._run = run

    async def take(self, things: Sequence[Thing], now: int) -> list[Landing]:
        """Put each where it belongs, unless something is there. A load is of one kind."""
        schedules = [thing for thing in things if isinstance(thing, Carried)]
        receipts = [thing for thing in things if isinstance(thing, CarriedReceipt)]
        if schedules:
            return await self._schedules(schedules)
        documents = [thing for thing in things if isinstance(thing, Document)]
        if receipts:
            return await self._receipts(receipts)
        if documents:
            return await self._documents(documents, now)
        landings: list[Landing] = []
        for thing in things:
            if isinstance(thing, CarriedPosition):
                landings.append(await self._position(thing))
            elif isinstance(thing, ApiKey):
                landings.append(await self._key(thing))
        return landings

    async def _schedules(self, brought: list[Carried]) -> list[Landing]:
        keys = [key_of(each.tenant, each.id) for each in brought]
        entries = await self._run.load(set(keys))
        arrivals = await self._shared.arrivals(sum(1 + len(each.extras) for each in brought))
        landings = [self._schedule(each, entries[key], arrivals) for each, key in zip(brought, keys, strict=True)]
        self._shared.give_back(arrivals)
        return landings

    def _schedule(self, brought: Carried, entry: Entry, arrivals: Arrivals) -> Landing:
        known, generation = entry.now, brought.generation
        if known is not None:
            landing = land(brought, known.generation, known.content, known.accepted, known.at)
            if landing != "moved":
                return landing
            if brought.at is None:
                generation = max(generation, known.generation + 1)
        entry.now = found = self._found(brought, entry.lane, arrivals.take(), generation)
        for due, n in brought.extras:
            extra = msgspec.structs.replace(found, table="timeline", state="pending", arrival=arrivals.take())
            extra.due, extra.n, extra.deadline, extra.reason, extra.terms = due, n, None, None, None
            entry.fired.append(extra)
        for event in brought.history:
            entry.notes.append(event)
        return "moved"

    def _found(self, brought: Carried, lane: int, arrival: int, generation: int) -> Found:
        names, parts = self._shared.names, self._shared.parts
        part = TO_KAFKA if is_kafka(brought.topic) else lane * parts + brought.partition_hash % parts
        return Found(
            "finished" if brought.at is not None else "timeline" if brought.terms is None else "standing",
            arrival,
            brought.due,
            lane,
            names.stream(brought.tenant, brought.priority, brought.topic),
            names.topic(brought.tenant, brought.topic),
            part,
            generation,
            brought.n,
            brought.accepted,
            brought.content,
            brought.id,
            brought.labels,
            brought.state,
            brought.message,
            brought.deadline,
            brought.reason,
            brought.fires,
            brought.released,
            brought.terms,
            brought.at,
        )

    async def _receipts(self, receipts: list[CarriedReceipt]) -> list[Landing]:
        tenants = arrays.texts([each.tenant.encode() for each in receipts])
        keys = arrays.texts([each.key.encode() for each in receipts])
        bodies, outcomes = (arrays.byteas([getattr(each, name) for each in receipts]) for name in ("body", "outcomes"))
        columns = (tenants, keys, bodies, outcomes, arrays.int8s([each.at for each in receipts]))
        new = {(tenant, key) for tenant, key in await rows(self._connection, self._sql["bring_receipts"], columns)}
        known = {(tenant, key): body for tenant, key, body in await self._rows("bodies", tenants, keys)}
        return [
            "moved"
            if (each.tenant, each.key) in new
            else "left"
            if known.get((each.tenant, each.key)) == each.body
            else "conflict"
            for each in receipts
        ]

    async def _documents(self, documents: list[Document], now: int) -> list[Landing]:
        groups = [[brought(each)] for each in documents]
        moved = await cabinet.change(self._connection, self._sql, groups, now)
        known = await cabinet.get(self._connection, self._sql, [each.key for each in documents], now)
        return [
            "moved" if is_moved else "left" if is_same(each, there) else "conflict"
            for each, is_moved, there in zip(documents, moved, known, strict=True)
        ]

    async def _position(self, position: CarriedPosition) -> Landing:
        values = {"topic": position.topic, "partition": position.partition, "next": position.next}
        stands = await rows(self._connection, self._sql["bring_position"], values)
        if not stands:
            return "moved"
        return "left" if stands == [(position.next,)] else "conflict"

    async def _key(self, key: ApiKey) -> Landing:
        if await self._rows("bring_key", key.name, key.tenant, key.digest, key.admin, key.created):
            return "moved"
        return "left" if await self._rows("key", key.name, key.digest) == [(key.name, key.digest)] else "conflict"

    async def _rows(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._sql[name], values)


def _progress(found: list[Row]) -> Progress:
    return decode_progress(found[0][0]) if found else Progress()
