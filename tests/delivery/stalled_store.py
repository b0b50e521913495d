"""A store that blocks a write: between what a worker has read and what it writes."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult


class StalledStore:
    """Sets `reached` before a delivery (or a row of another `table`) is written, and waits for `goes_on`."""

    def __init__(self, store: Store, table: str = "delivery") -> None:
        self._store = store
        self.table = table
        self.tables = _Tables(self, store)
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Tables:
    def __init__(self, stalled: StalledStore, store: Store) -> None:
        self._stalled, self._tables = stalled, store.tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        if any(change.key.table == self._stalled.table for group in groups for change in group.changes):
            self._stalled.reached.set()
            await self._stalled.goes_on.wait()
        return await self._tables.commit(groups, now, urgent=urgent)
