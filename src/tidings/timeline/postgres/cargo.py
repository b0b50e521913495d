"""Carrying out: everything in the database, stage by stage, in an order that stays the same while nobody writes."""

from collections.abc import Awaitable, Callable, Sequence

from tidings.domain.command import Priority
from tidings.domain.notification import GROUP, TOPICS
from tidings.domain.schedule import Event
from tidings.ports import ApiKey, Document, Key
from tidings.timeline.carrying import (
    LOAD_ROWS,
    Behind,
    Carried,
    CarriedPosition,
    CarriedReceipt,
    Kind,
    Load,
    Rest,
    Thing,
)
from tidings.timeline.filing import decode_tags
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.database import Connection
from tidings.timeline.postgres.names import PRIORITIES
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.postgres.rows import Found, key_of
from tidings.timeline.postgres.shared import BLOCK, Shared
from tidings.timeline.postgres.working import finished_row, standing_row, timeline_row
from tidings.timeline.stages import Place, bounded, counted, decode_place, encode_place, following

_STAGES = ("positions", "keys", "receipts", "documents", "one_shots", "standing", "finished")
_FIRST: dict[str, Place] = {
    "positions": ("", -1),
    "keys": ("",),
    "receipts": ("", ""),
    "documents": ("0" * 32,),
    "one_shots": (-1, -1, -(1 << 62), -1),
    "standing": (-1,),
    "finished": (-1, -(1 << 62), -1),
}
_Read = tuple[list[Thing], Place]


class Cargo:
    """Reads by the statements of carrying.sql."""

    def __init__(self, shared: Shared, statements: dict[str, str]) -> None:
        self._shared = shared
        self._sql = statements
        self._readers: dict[str, Callable[[Place], Awaitable[_Read]]] = {
            "positions": self._positions,
            "keys": self._keys,
            "receipts": self._receipts,
            "documents": self._documents,
            "one_shots": self._one_shots,
            "standing": self._standing,
            "finished": self._finished,
        }

    async def load(self, after: str | None) -> Load | None:
        """What follows a place; the stages are looked at until one has something."""
        stage: str | None
        stage, place = decode_place(after, _STAGES[0])
        while stage is not None:
            things, place = await self._readers[stage](place or _FIRST[stage])
            if things:
                await self._tell(things)
                return Load(things, encode_place(stage, place), await self._highest())
            stage, place = following(_STAGES, stage), ()
        return None

    async def _highest(self) -> int:
        """Arrival numbers up to this may have been given out."""
        ((block,),) = await self._shared.pool.read(self._shared.inside("SELECT last_value FROM tidings.arrival_block"))
        return int((block + 1) * BLOCK)

    async def counts(self) -> dict[Kind, int]:
        """How much there is, counted anew."""
        (totals,) = await self._read("counts")
        return counted(totals, await self._read("pointers"))

    async def rest(self, connection: Connection) -> Rest:
        """What is not carried."""
        ((outbox, held, records),) = await rows(connection, self._sql["rest"])
        behind = tuple(Behind(*row) for row in await rows(connection, self._sql["behind"], (GROUP, list(TOPICS))))
        return Rest(outbox - held, held, records, behind)

    # Stages

    async def _positions(self, place: Place) -> _Read:
        rows = await self._read("positions", *place, LOAD_ROWS)
        return [CarriedPosition(*row) for row in rows], rows[-1][:2] if rows else place

    async def _keys(self, place: Place) -> _Read:
        rows = await self._read("keys", *place, LOAD_ROWS)
        return [ApiKey(*row) for row in rows], rows[-1][:1] if rows else place

    async def _receipts(self, place: Place) -> _Read:
        rows = await self._read("receipts", *place, LOAD_ROWS)
        return [CarriedReceipt(*row) for row in rows], rows[-1][:2] if rows else place

    async def _documents(self, place: Place) -> _Read:
        """Before the schedules, which name them."""
        rows = await self._read("documents", *place, await self._fitting("document_sizes", place))
        things = [
            Document(Key(*(text.decode() for text in row[1:4])), row[4], row[5], decode_tags(row[6]), *row[7:])
            for row in rows
        ]
        return list(things), (rows[-1][0].hex(),) if rows else place

    async def _one_shots(self, place: Place) -> _Read:
        rows = await self._read("one_shots", *place, await self._fitting("sizes", place))
        found = [timeline_row(row[1:]) for row in rows]
        things: list[Thing] = list(await self._carried(found))
        if not rows:
            return [], place
        return things, (found[-1].lane, rows[-1][0], found[-1].due, found[-1].arrival)

    async def _standing(self, place: Place) -> _Read:
        rows = await self._read("all_standing", *place, await self._fitting("standing_sizes", place))
        if not rows:
            return [], place
        found = [standing_row(row) for row in rows]
        extras: dict[int, list[tuple[int, int]]] = {}
        for schedule, due, n in await self._read("all_fired", arrays.int8s([each.arrival for each in found])):
            extras.setdefault(schedule, []).append((due, n))
        carried = await self._carried(found)
        for each, brought in zip(found, carried, strict=True):
            brought.extras = tuple(extras.get(each.arrival, ()))
        return list(carried), (found[-1].arrival,)

    async def _finished(self, place: Place) -> _Read:
        rows = await self._read("all_finished", *place, LOAD_ROWS)
        found = [finished_row(row) for row in rows]
        things: list[Thing] = list(await self._carried(found))
        return things, (found[-1].stream, found[-1].due, found[-1].arrival) if found else place

    async def _fitting(self, name: str, place: Place) -> int:
        """How many rows after a place fit into one load."""
        sizes = await self._read(name, *place, LOAD_ROWS)
        return sum(1 for _ in bounded(sizes, lambda row: int(row[0])))

    # Rows

    async def _carried(self, found: Sequence[Found]) -> list[Carried]:
        names = self._shared.names
        await names.know({each.topic for each in found}, {each.stream for each in found})
        return [
            Carried(
                names.tenant_of(each.stream),
                each.id,
                names.destination(each.topic)[1],
                Priority(each.stream % PRIORITIES),
                each.state,
                each.due,
                each.accepted,
                each.content,
                each.generation,
                each.n,
                each.labels,
                each.message,
                each.deadline,
                each.reason,
                each.terms,
                each.fires,
                each.released,
                each.at,
            )
            for each in found
        ]

    async def _tell(self, things: list[Thing]) -> None:
        """Give the schedules among them their histories."""
        carried = {key_of(thing.tenant, thing.id): thing for thing in things if isinstance(thing, Carried)}
        if carried:
            told: dict[bytes, list[Event]] = {}
            for key, *line in await self._read("histories", arrays.uuids(list(carried))):
                told.setdefault(key, []).append(Event(*line))
            for key, events in told.items():
                carried[key].history = events

    async def _read(self, name: str, *values: object) -> list[Row]:
        return await self._shared.pool.read(self._sql[name], values)
