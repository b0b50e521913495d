"""Carrying out: everything in the file, stage by stage, in an order that stays the same while nobody writes."""

import json
from collections.abc import Callable
from typing import Any

import apsw
import numpy as np

from tidings.domain.notification import GROUP, TOPICS
from tidings.domain.schedule import Event
from tidings.ports import ApiKey, Document, Key
from tidings.timeline.carrying import (
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
from tidings.timeline.sqlite import lookup
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.parcels import unpack
from tidings.timeline.sqlite.rows import ARRIVAL_MASK, NO_DEADLINE
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, Writer
from tidings.timeline.stages import Place, bounded, counted, decode_place, encode_place, following, is_full

_SQL = queries("carrying")
_TOLD_ON = json.dumps(list(TOPICS))
_STAGES = ("positions", "keys", "receipts", "documents", "parcels", "far", "near", "standing", "finished")
_FIRST: dict[str, Place] = {
    "positions": ("", -1),
    "keys": ("",),
    "receipts": ("", ""),
    "documents": (-1,),
    "parcels": (-1,),
    "far": (-1,),
    "near": (-1, -1, -1),
    "standing": (-1,),
    "finished": (-(1 << 62), -1),
}
_Read = tuple[list[Thing], Place]


class Cargo:
    """Reads through a connection of its own; names are those that the writer knows."""

    def __init__(self, connection: apsw.Connection, writer: Writer) -> None:
        self._connection = connection
        self._writer = writer
        self._readers: dict[str, Callable[[Place], _Read]] = {
            "positions": self._positions,
            "keys": self._keys,
            "receipts": self._receipts,
            "documents": self._documents,
            "parcels": self._parcels,
            "far": self._far,
            "near": self._near,
            "standing": self._standing,
            "finished": self._finished,
        }

    def load(self, after: str | None) -> Load | None:
        """What follows a place; the stages are looked at until one has something."""
        stage: str | None
        stage, place = decode_place(after, _STAGES[0])
        while stage is not None:
            things, place = self._readers[stage](place or _FIRST[stage])
            if things:
                return Load(self._told(things), encode_place(stage, place), self._writer.arrival)
            stage, place = following(_STAGES, stage), ()
        return None

    def counts(self) -> dict[Kind, int]:
        """How much there is. What pends is what the tally says, not what a load would find."""
        totals = self._connection.execute(_SQL["counts"]).fetchone()
        return counted(totals, self._connection.execute(_SQL["pointers"]))

    def rest(self, connection: apsw.Connection) -> Rest:
        """What is not carried."""
        outbox, held, records = connection.execute(_SQL["rest"]).fetchone()
        behind = tuple(Behind(*row) for row in connection.execute(_SQL["behind"], (GROUP, _TOLD_ON)))
        return Rest(outbox - held, held, records, behind)

    # Stages

    def _positions(self, place: Place) -> _Read:
        rows = list(bounded(self._connection.execute(_SQL["positions"], place)))
        return [CarriedPosition(*row) for row in rows], rows[-1][:2] if rows else place

    def _keys(self, place: Place) -> _Read:
        rows = list(bounded(self._connection.execute(_SQL["keys"], place)))
        things = [ApiKey(name, tenant, digest, admin == 1, created) for name, tenant, digest, admin, created in rows]
        return list(things), rows[-1][:1] if rows else place

    def _receipts(self, place: Place) -> _Read:
        rows = list(bounded(self._connection.execute(_SQL["receipts"], place), lambda row: len(row[3])))
        return [CarriedReceipt(*row) for row in rows], rows[-1][:2] if rows else place

    def _documents(self, place: Place) -> _Read:
        """Before the schedules, which name them."""
        rows = list(bounded(self._connection.execute(_SQL["documents"], place), lambda row: len(row[4])))
        things = [Document(Key(*row[1:4]), row[4], row[5], decode_tags(row[6]), *row[7:]) for row in rows]
        return list(things), rows[-1][:1] if rows else place

    def _parcels(self, place: Place) -> _Read:
        """Parcels are taken whole: each is small, or a single row."""
        found: list[Thing] = []
        size = 0
        for key, heads, bodies in self._connection.execute(_SQL["parcels"], place):
            rows = unpack(heads, bodies)
            found += [self._plain(lookup.plain("far", 0, 0, rows.plain(index))) for index in range(len(rows))]
            place, size = (key,), size + len(bodies)
            if found and is_full(len(found), size):
                break
        return found, place

    def _far(self, place: Place) -> _Read:
        rows = self._bounded("far", place)
        things = [self._plain(lookup.plain("far", row[0] & ARRIVAL_MASK, row[0], row[1:])) for row in rows]
        return list(things), rows[-1][:1] if rows else place

    def _near(self, place: Place) -> _Read:
        rows = self._bounded("near", place)
        things = [self._plain(lookup.plain("near", row[0], 0, row[1:])) for row in rows]
        return list(things), (rows[-1][1], rows[-1][2], rows[-1][0]) if rows else place

    def _standing(self, place: Place) -> _Read:
        rows = list(bounded(self._connection.execute(_SQL["standing"], place), lambda row: len(row[10])))
        if not rows:
            return [], place
        arrivals = np.array([row[0] for row in rows], dtype=np.int64)
        extras: dict[int, list[tuple[int, int]]] = {}
        for schedule, due, n in self._connection.execute(_SQL["extras"], (apsw.carray(arrivals),)):
            extras.setdefault(schedule, []).append((due, n))
        things: list[Thing] = []
        for row in rows:
            brought = self._carried(lookup.standing_row(row[0], row[1:]))
            brought.extras = tuple(extras.get(row[0], ()))
            things.append(brought)
        return things, (int(arrivals[-1]),)

    def _finished(self, place: Place) -> _Read:
        rows = list(bounded(self._connection.execute(_SQL["finished"], place)))
        things = [self._carried(lookup.finished(arrival, due, row)) for due, arrival, *row in rows]
        return list(things), rows[-1][:2] if rows else place

    def _bounded(self, stage: str, place: Place) -> list[tuple[Any, ...]]:
        return list(bounded(self._connection.execute(_SQL[stage], place), lambda row: len(row[-1])))

    # Rows

    def _plain(self, found: lookup.Found) -> Carried:
        carried = self._carried(found)
        if found.deadline != NO_DEADLINE:
            carried.deadline, carried.reason = found.deadline, found.reason
        return carried

    def _carried(self, found: lookup.Found) -> Carried:
        tenant, priority = self._writer.stream_names[found.stream]
        return Carried(
            tenant,
            found.id,
            self._writer.topic_names[found.partition // PARTITIONS_MAX][1],
            priority,
            found.state,
            found.due,
            found.accepted,
            found.content,
            found.generation,
            found.n,
            found.labels,
            found.message,
            None,
            found.reason if found.at is not None else None,
            found.terms,
            found.fires,
            found.released,
            found.at,
        )

    def _told(self, things: list[Thing]) -> list[Thing]:
        """The schedules among them with their histories."""
        carried = [thing for thing in things if isinstance(thing, Carried)]
        if carried:
            idmap = self._writer.idmap
            hashes = np.array([idmap.hash(each.tenant, each.id) for each in carried], dtype=np.int64)
            told: dict[tuple[str, str], list[Event]] = {}
            for tenant, schedule_id, *line in self._connection.execute(_SQL["histories"], (apsw.carray(hashes),)):
                told.setdefault((tenant, schedule_id), []).append(Event(*line))
            for each in carried:
                each.history = told.get((each.tenant, each.id), ())
        return things
