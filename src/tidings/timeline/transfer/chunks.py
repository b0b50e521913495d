"""Reading a store in chunks: stage by stage, each in the order of its table."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidings.domain.schedules.recurrence_state import decode_state
from tidings.domain.schedules.schedule import Event
from tidings.domain.schedules.when import is_once
from tidings.ports import ApiKey, Document, Key
from tidings.timeline.store_rules import decode_tags
from tidings.timeline.transfer.protocol import (
    AnswerItem,
    CalendarItem,
    Chunk,
    Item,
    Kind,
    PositionItem,
    ScheduleItem,
    ZoneItem,
)

CHUNK_COST = 4 * 1024 * 1024
ITEM_COST = 4 * 1024  # so that a chunk has about 1,000 small items
LEAST = -(1 << 62)

Place = tuple[Any, ...]
Row = tuple[Any, ...]
AnyRow = TypeVar("AnyRow")
Id = tuple[str, str]  # the tenant, and the id of a schedule
Fetch = Callable[[str, Place], Awaitable[Sequence[Row]]]
FetchHistories = Callable[[Sequence[Id]], Awaitable[Mapping[Id, Sequence[Event]]]]

_OWN_FIELDS = {"tenant", "topic", "priority", "extras", "history"}  # which the rows of stores do not have as columns
_COLUMNS = [name for name in ScheduleItem.__struct_fields__ if name not in _OWN_FIELDS]
_decode_cursor = msgspec.json.Decoder(tuple[str, list[int | str]]).decode


class Stage(NamedTuple):
    """One table to read. Its query takes a place and returns the rows after it, whose first columns are their place."""

    start: Place
    items: Callable[[Sequence[Row]], Sequence[Item]]


def _api_key(name: str, tenant: str, digest: bytes, admin: int, created: int) -> ApiKey:
    return ApiKey(name, tenant, digest, bool(admin), created)


def _document(_place: object, *row: Any) -> Document:
    names = (name.decode() if isinstance(name, bytes) else name for name in row[:3])
    body, version, tags, order, until = row[3:]
    return Document(Key(*names), body, version, decode_tags(tags), order, until)


def each(item: Callable[..., Item]) -> Callable[[Sequence[Row]], Sequence[Item]]:
    """The items of rows, one for each."""
    return lambda rows: [item(*row) for row in rows]


def stages(first_document: Place, schedules: Mapping[str, Stage]) -> dict[str, Stage]:
    """All stages of a store in their order: what schedules refer to comes before them, and positions before all.

    The name of a stage is that of its query.
    """
    return {
        "positions": Stage(("", -1), each(PositionItem)),
        "keys": Stage(("",), each(_api_key)),
        "receipts": Stage(("", ""), each(AnswerItem)),
        "calendars": Stage(("", ""), each(CalendarItem)),
        "zones": Stage(("", ""), each(ZoneItem)),
        "documents": Stage(first_document, each(_document)),
        **schedules,
    }


class Exporter:
    """Reads the chunks of a store: rows by the query of a stage, and histories by the ids of schedules."""

    def __init__(self, stages: Mapping[str, Stage], fetch: Fetch, histories: FetchHistories) -> None:
        self._stages = stages
        self._fetch = fetch
        self._histories = histories

    async def chunk(self, after: str | None) -> Chunk | None:
        """The chunk after a cursor: from its stage, or from the next one that has any rows."""
        names = list(self._stages)
        name, place = (names[0], []) if after is None else _decode_cursor(after)
        for stage in names[names.index(name) :]:
            start, to_items = self._stages[stage]
            if rows := await self._fetch(stage, tuple(place) or start):
                items = to_items(rows)
                await self._add_histories([item for item in items if isinstance(item, ScheduleItem)])
                return Chunk(items, msgspec.json.encode((stage, rows[-1][: len(start)])).decode())
            place = []
        return None

    async def _add_histories(self, schedules: Sequence[ScheduleItem]) -> None:
        if schedules:
            histories = await self._histories([(item.tenant, item.id) for item in schedules])
            for item in schedules:
                item.history = histories.get((item.tenant, item.id), ())


def bounded(rows: Iterable[AnyRow], cost: Callable[[AnyRow], int]) -> Iterator[AnyRow]:
    """As many rows as fit in one chunk, and at least one."""
    total = 0
    for row in rows:
        yield row
        total += cost(row)
        if total >= CHUNK_COST:
            return


def kind_counts(totals: Sequence[Any], terms: Iterable[Sequence[Any]]) -> dict[Kind, int]:
    """The number of items of each kind, from a store's totals and the terms of its pending schedules with a rule."""
    kinds: tuple[Kind, ...] = ("positions", "keys", "receipts", "documents", "paused", "finished", "one_shots")
    recurring = sum(not is_once(decode_state(each).when) for (each,) in terms)
    counts = dict(zip(kinds, totals, strict=True))
    return counts | {"recurring": recurring, "one_shots": counts["one_shots"] - recurring}


def columns(schedule: object) -> dict[str, Any]:
    """The columns that a schedule's row and its item have in common."""
    return {name: getattr(schedule, name) for name in _COLUMNS}
