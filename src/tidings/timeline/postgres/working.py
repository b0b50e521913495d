"""The working set of a transaction: the schedules that its commands speak of, loaded under locks, written back at once.

Between the two everything is decided in memory. What is written is the difference between each schedule as it was and
as it is in the end.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from tidings.domain.schedule import Event
from tidings.domain.terms import Terms, decode_terms, encode_terms
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.database import Connection
from tidings.timeline.postgres.errors import Contended
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.postgres.rows import REASONS, STATES, Found, place_of, slot_of

POINTER_CONTENT = bytes(16)
LOOKS_MAX = 20
HEAD = 12  # columns that every table answers first


class Quicker(Exception):
    """Another transaction has begun to use one of our new ids: begin again and look at it."""


class Repeated(Contended):
    """An arrival number is another schedule's: it was given out by a server that forgot it when it failed."""


class Entry:
    """One id: what it held before and holds now, and what happened between.

    `in_flight` is the number of its latest record in the outbox that is not known to be on Kafka.
    """

    def __init__(self, key: bytes, lane: int) -> None:
        self.key = key
        self.lane = lane
        self.known: tuple[int, int, int] | None = None
        self.before: Found | None = None
        self.now: Found | None = None
        self.notes: list[Event] = []
        self.in_flight: int | None = None
        self.fired: list[Found] = []
        self.unfired: dict[int, Found] = {}

    def withdraw(self) -> None:
        """Nothing of what it holds is pending any more, what was fired neither."""
        if self.now is not None and self.now.table == "standing":
            self.unfired[self.now.arrival] = self.now
        self.fired = []
        self.now = None


class Loader:
    """Reads schedules by key."""

    def __init__(
        self, connection: Connection, queries: dict[str, str], lanes: int, lock: Literal["lock", "lock_free", "places"]
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._lanes = lanes
        self._lock = lock

    async def entries(self, keys: Iterable[bytes]) -> dict[bytes, Entry]:
        """The ids of some keys, each with the newest schedule that it holds."""
        entries = {key: Entry(key, key[0] & (self._lanes - 1)) for key in keys}
        searched = list(entries)
        for _ in range(LOOKS_MAX):
            searched = await self._search(entries, searched)
            if not searched:
                return entries
        raise AssertionError("ids point to schedules that are nowhere")

    async def _search(self, entries: dict[bytes, Entry], keys: list[bytes]) -> list[bytes]:
        """Look for what some keys hold; answers those that moved while we looked."""
        places: dict[tuple[int, int], Entry] = {}
        for key, due, arrival, stream in await self._rows(self._lock, arrays.uuids(sorted(keys))):
            entry = entries[key]
            entry.known = (due, arrival, stream)
            places[stream, arrival] = entry
        for look in (self._timeline, self._standing, self._finished):
            if not places:
                return []
            for found in await look([entry for entry in places.values() if entry.known is not None]):
                entry = places.pop((found.stream, found.arrival))
                entry.before = entry.now = found
        return [entry.key for entry in places.values()]

    async def _timeline(self, entries: list[Entry]) -> list[Found]:
        known = [(entry.lane, *entry.known) for entry in entries if entry.known is not None]
        answer = await self._rows(
            "timeline_seen" if self._lock == "places" else "timeline",
            arrays.int2s([lane for lane, *_ in known]),
            arrays.int2s([slot_of(stream) for *_, stream in known]),
            arrays.int8s([due for _, due, _, _ in known]),
            arrays.int8s([arrival for _, _, arrival, _ in known]),
        )
        return [timeline_row(row) for row in answer]

    async def _standing(self, entries: list[Entry]) -> list[Found]:
        arrivals = [entry.known[1] for entry in entries if entry.known is not None]
        return [standing_row(row) for row in await self._rows("standing", arrays.int8s(arrivals))]

    async def _finished(self, entries: list[Entry]) -> list[Found]:
        known = [entry.known for entry in entries if entry.known is not None]
        answer = await self._rows(
            "finished",
            arrays.int4s([stream for _, _, stream in known]),
            arrays.int8s([due for due, _, _ in known]),
            arrays.int8s([arrival for _, arrival, _ in known]),
        )
        return [finished_row(row) for row in answer]

    async def _rows(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._queries[name], values)


def timeline_row(row: Row) -> Found:
    """A pending one-shot."""
    found = Found("timeline", *row[:HEAD])
    found.message, found.deadline, reason = row[HEAD:]
    found.reason = REASONS[reason] or None
    return found


def standing_row(row: Row) -> Found:
    """A recurring or paused schedule."""
    found = Found("standing", *row[:HEAD])
    found.message, found.state, found.fires, found.released, terms = row[HEAD:]
    found.terms = decode_terms(terms)
    return found


def finished_row(row: Row) -> Found:
    """A finished schedule."""
    found = Found("finished", *row[:HEAD])
    state, reason, found.at, found.position, beyond, found.held = row[HEAD:]
    found.state, found.reason = STATES[state], REASONS[reason] or None
    found.flying = found.part < 0 and found.position is not None and (beyond is True or found.held is not None)
    return found


class Saver:
    """Writes what has changed, in as few statements as there are kinds of change."""

    def __init__(self, connection: Connection, queries: dict[str, str]) -> None:
        self._connection = connection
        self._queries = queries

    async def save(self, entries: Sequence[Entry]) -> None:
        """Make the store what the entries say; `Quicker` if an id is no longer new."""
        changed = [entry for entry in entries if entry.now is not None and entry.now is not entry.before]
        await self._register(changed)
        await self._unfire(entries)
        gone = [place for entry in changed if (place := place_of(entry.before)) is not None]
        if gone:
            await self.leave(gone)
        before = [entry.before for entry in changed if entry.before is not None]
        now = [entry.now for entry in changed if entry.now is not None]
        stay = {found.arrival for found in now if found.table == "standing"}
        over = [found.arrival for found in before if found.table == "standing" and found.arrival not in stay]
        if over:
            await self._run("drop_standing", arrays.int8s(over))
        await self._forget([found for found in before if found.table == "finished"])
        await self.stand([found for found in now if found.table == "standing"])
        await self.finish([found for found in now if found.table == "finished"])
        fired = [(entry, extra) for entry in entries for extra in entry.fired]
        waiting = [_waiting(found) for found in now if place_of(found) is not None]
        await self.wait([*waiting, *(extra for _, extra in fired)])
        if fired:
            schedules = [entry.now.arrival for entry, _ in fired if entry.now is not None]
            dues, arrivals = [extra.due for _, extra in fired], [extra.arrival for _, extra in fired]
            await self._run("fire", *(arrays.int8s(column) for column in (schedules, dues, arrivals)))
        await self.note([(entry.key, note) for entry in entries for note in entry.notes])

    async def _register(self, entries: list[Entry]) -> None:
        """Where ids lie; of those that hold nothing any more the old place stays."""
        new = sorted((e for e in entries if e.known is None and e.now is not None), key=lambda entry: entry.key)
        if new:
            added = await self._run("register", *_places(new))
            if len(added) < len(new):
                raise Quicker
        moved = [entry for entry in entries if entry.known is not None and _moved(entry)]
        if moved:
            await self._run("move", *_places(moved))

    async def _unfire(self, entries: Sequence[Entry]) -> None:
        schedules = {arrival: found for entry in entries for arrival, found in entry.unfired.items()}
        if schedules:
            fired = await self._run("drop_fired", arrays.int8s(list(schedules)))
            if fired:
                homes = [schedules[schedule] for schedule, _, _ in fired]
                places = zip(homes, fired, strict=True)
                await self.leave([(h.lane, slot_of(h.stream), due, arrival) for h, (_, due, arrival) in places])

    async def leave(self, places: Sequence[tuple[int, int, int, int]]) -> None:
        """Take rows off the timeline."""
        lanes, slots, dues, arrivals = zip(*places, strict=True)
        await self._run("leave", arrays.int2s(lanes), arrays.int2s(slots), arrays.int8s(dues), arrays.int8s(arrivals))

    async def wait(self, found: Sequence[Found]) -> None:
        """Put rows onto the timeline."""
        if found:
            slots = [slot_of(each.stream) for each in found]
            await self._run(
                "wait",
                arrays.int2s(list(set(slots))),
                *_head(found),
                arrays.int4s([each.n for each in found]),
                arrays.int2s([each.lane for each in found]),
                arrays.int2s(slots),
                arrays.int2s([each.part for each in found]),
                arrays.int2s([_reason(each) for each in found]),
                arrays.texts([each.id.encode() for each in found]),
                arrays.byteas([each.message or b"" for each in found]),
                arrays.maybe_int8s([each.deadline for each in found]),
                arrays.maybe_texts([each.labels for each in found]),
            )

    async def stand(self, found: Sequence[Found]) -> None:
        """Write recurring and paused schedules."""
        if found:
            arrival, *rest = _head(found, arrival_first=True)
            written = await self._run(
                "stand",
                arrival,
                *rest,
                arrays.int4s([each.n for each in found]),
                arrays.int4s([each.fires for each in found]),
                arrays.int4s([each.released for each in found]),
                arrays.int2s([each.lane for each in found]),
                arrays.int2s([each.part for each in found]),
                arrays.texts([each.state.encode() for each in found]),
                arrays.texts([each.id.encode() for each in found]),
                arrays.byteas([each.message or b"" for each in found]),
                arrays.byteas([encode_terms(_terms(each)) for each in found]),
                arrays.maybe_texts([each.labels for each in found]),
            )
            if len(written) < len(found):
                raise Repeated("an arrival number came twice, as after a failover, and nothing was changed: try again")

    async def finish(self, found: Sequence[Found]) -> None:
        """Remember how schedules ended."""
        if found:
            due, arrival, *rest = _head(found)
            await self._run(
                "finish",
                due,
                arrival,
                arrays.int8s([each.at or 0 for each in found]),
                *rest,
                arrays.int4s([each.n for each in found]),
                arrays.int2s([each.lane for each in found]),
                arrays.int2s([each.part for each in found]),
                arrays.int2s([STATES.index(each.state) for each in found]),
                arrays.int2s([_reason(each) for each in found]),
                arrays.texts([each.id.encode() for each in found]),
                arrays.maybe_int8s([each.position for each in found]),
                arrays.maybe_texts([each.labels for each in found]),
            )

    async def _forget(self, found: list[Found]) -> None:
        if found:
            await self._run(
                "forget",
                arrays.int4s([each.stream for each in found]),
                arrays.int8s([each.due for each in found]),
                arrays.int8s([each.arrival for each in found]),
            )

    async def note(self, notes: Sequence[tuple[bytes, Event]]) -> None:
        """Write lines of histories."""
        if notes:
            await self._run(
                "note",
                arrays.uuids([key for key, _ in notes]),
                arrays.int8s([note.at for _, note in notes]),
                arrays.texts([note.event.encode() for _, note in notes]),
                arrays.maybe_int8s([note.occurrence for _, note in notes]),
                arrays.maybe_int8s([note.due for _, note in notes]),
                arrays.maybe_texts([note.reason for _, note in notes]),
                arrays.maybe_int8s([note.count for _, note in notes]),
            )

    async def _run(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._queries[name], values)


def _places(entries: list[Entry]) -> tuple[Any, ...]:
    found = [entry.now for entry in entries if entry.now is not None]
    return (
        arrays.uuids([entry.key for entry in entries]),
        arrays.int8s([each.due for each in found]),
        arrays.int8s([each.arrival for each in found]),
        arrays.int4s([each.stream for each in found]),
    )


def _moved(entry: Entry) -> bool:
    return entry.now is not None and entry.known != (entry.now.due, entry.now.arrival, entry.now.stream)


def _head(found: Sequence[Found], *, arrival_first: bool = False) -> list[Any]:
    """The columns that every table has: due, arrival, accepted, content, stream, topic, generation."""
    due, arrival = arrays.int8s([each.due for each in found]), arrays.int8s([each.arrival for each in found])
    return [
        *((arrival, due) if arrival_first else (due, arrival)),
        arrays.int8s([each.accepted for each in found]),
        arrays.uuids([each.content for each in found]),
        arrays.int4s([each.stream for each in found]),
        arrays.int4s([each.topic for each in found]),
        arrays.int4s([each.generation for each in found]),
    ]


def _waiting(found: Found) -> Found:
    """The row of the timeline: the schedule itself, or one that points to it."""
    if found.table == "timeline":
        return found
    return msgspec.structs.replace(
        found, n=0, message=b"", content=POINTER_CONTENT, deadline=None, reason=None, labels=None
    )


def _terms(found: Found) -> Terms:
    assert found.terms is not None, "a standing schedule has its terms"
    return found.terms


def _reason(found: Found) -> int:
    return REASONS.index(found.reason) if found.reason else 0
