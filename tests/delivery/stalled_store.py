"""A store that blocks a write: between what a worker has read and what it writes."""

import asyncio
from collections.abc import Container, Sequence
from typing import Any

from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult, RowKey


class StalledStore:
    """Sets `reached` before a delivery (or a row of another `table`) is written, and waits for `goes_on`.

    With `names`, only before one of these is.
    """

    def __init__(self, store: Store, table: str = "delivery", names: Container[str] | None = None) -> None:
        self._store = store
        self.table = table
        self._names = names
        self.tables = _Tables(self, store)
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stalls(self, key: RowKey) -> bool:
        return key.table == self.table and (self._names is None or key.name in self._names)


class _Tables:
    def __init__(self, stalled: StalledStore, store: Store) -> None:
        self._stalled, self._tables = stalled, store.tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        if any(self._stalled.stalls(change.key) for group in groups for change in group.changes):
            self._stalled.reached.set()
            await self._stalled.goes_on.wait()
        return await self._tables.commit(groups, now, urgent=urgent)
