"""The tables of notifications in memory: the reference for the other stores."""

import bisect
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from tidings.domain.notifications.tables import TABLES, Index, Value
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports.tables import ANY, ChangeGroup, GroupResult, Put, Row, RowChange, RowKey, RowPosition, Unchanged
from tidings.timeline.store_rules import check_groups

_IndexKey = tuple[str, str, tuple[Value, ...]]  # index, tenant, values


class MemoryTables:
    """Rows by key, and for every index the sorted positions of its rows. `apply` applies a command to the timeline."""

    def __init__(self, apply: Callable[[Command, int], Outcome]) -> None:
        self._apply = apply
        self._rows: dict[RowKey, tuple[Row, Put]] = {}
        self._positions: dict[_IndexKey, list[RowPosition]] = {}
        self._last_version = 0

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        return [self._find(key, now) for key in keys]

    async def find(
        self,
        index: Index,
        tenant: str,
        values: tuple[Value, ...],
        now: int,
        *,
        after: RowPosition | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Row]:
        positions = self._positions.get((index.name, tenant, values), [])
        if newest:
            positions = positions[: len(positions) if after is None else bisect.bisect_left(positions, after)][::-1]
        elif after is not None:
            positions = positions[bisect.bisect_right(positions, after) :]
        found = ((order, self._find(RowKey(index.table, tenant, name), now)) for order, name in positions)
        rows = (Row(row.key, row.body, row.version, row.until, order) for order, row in found if row is not None)
        return list(islice(rows, limit))

    async def exist(self, index: Index, tenant: str, several: Sequence[tuple[Value, ...]], now: int) -> list[bool]:
        return [bool(await self.find(index, tenant, values, now, limit=1)) for values in several]

    def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> Awaitable[list[GroupResult]]:
        del urgent  # nothing ever waits
        check_groups(groups)
        return _done([self._commit(group, now) for group in groups])

    async def wipe(self) -> None:
        """Nothing to do: memory is not written to files."""

    def tend(self, now: int) -> None:
        """Delete expired rows."""
        for key in [key for key in self._rows if self._find(key, now) is None]:
            self._remove(key)

    def _commit(self, group: ChangeGroup, now: int) -> GroupResult:
        if not all(self._is_expected(change, now) for change in group.changes):
            return GroupResult(0)
        outcome = None if group.command is None else self._apply(group.command, now)
        if outcome is not None and outcome.outcome not in group.accepts:
            return GroupResult(0, outcome)
        version = 1
        for change in group.changes:
            if isinstance(change, Unchanged):
                continue
            self._remove(change.key)
            if isinstance(change, Put):
                version = self._put(change)
        return GroupResult(version, outcome)

    def _is_expected(self, change: RowChange, now: int) -> bool:
        row = self._find(change.key, now)
        return change.expected in {ANY, 0 if row is None else row.version}

    def _find(self, key: RowKey, now: int) -> Row | None:
        found = self._rows.get(key)
        return None if found is None or (found[0].until is not None and found[0].until <= now) else found[0]

    def _put(self, put: Put) -> int:
        self._last_version += 1
        self._rows[put.key] = Row(put.key, put.body, self._last_version, put.until), put
        for key, position in _places(put):
            bisect.insort(self._positions.setdefault(key, []), position)
        return self._last_version

    def _remove(self, key: RowKey) -> None:
        found = self._rows.pop(key, None)
        for place, position in () if found is None else _places(found[1]):
            positions = self._positions[place]
            del positions[bisect.bisect_left(positions, position)]
            if not positions:
                del self._positions[place]


def _places(put: Put) -> list[tuple[_IndexKey, RowPosition]]:
    """Where the indexes of its table have a row."""
    table = TABLES[put.key.table]
    values = dict(zip((column.name for column in table.columns), put.values, strict=True))
    places: list[tuple[_IndexKey, RowPosition]] = []
    for index in (*table.indexes, Index(table.name, f"{table.name}_all")):
        if index.present is None or values[index.present] is not None:
            order = 0 if index.order is None else values[index.order]
            assert isinstance(order, int), "an order column has an integer in every row"
            equal = tuple(values[name] for name in index.columns)
            places.append(((index.name, put.key.tenant, equal), (order, put.key.name)))
    return places


async def _done(results: list[GroupResult]) -> list[GroupResult]:
    return results
