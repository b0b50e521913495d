"""A store whose claims stand still at the last moment: between what a worker looked up and what it writes."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tidings.ports import Change, Store


class StalledStore:
    """Tells when somebody is about to write a delivery (or another `kind`) down, and lets it happen when told to."""

    def __init__(self, store: Store, kind: str = "delivery") -> None:
        self._store = store
        self.kind = kind
        self.documents = _Cabinet(self, store)
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Cabinet:
    def __init__(self, stalled: StalledStore, store: Store) -> None:
        self._stalled, self._cabinet = stalled, store.documents

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cabinet, name)

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        if any(change.key.kind == self._stalled.kind for group in groups for change in group):
            self._stalled.reached.set()
            await self._stalled.goes_on.wait()
        return await self._cabinet.change(groups, now)
