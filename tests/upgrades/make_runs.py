"""Makes `0.1-runs.db.xz` with version 0.1: a SQLite file whose id map has sorted runs.

It runs under the code of 0.1, as `make_store.py` does, in a few seconds:

    .venv/bin/python -m tests.upgrades.make_runs FOLDER

The thresholds of the map are lowered, so that a few thousand ids are enough for a run of each level. The size of a
chunk and the bits of a filter are those of 0.1.
"""

import asyncio
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.upgrades.databases import write_fixture
from tidings.timeline.sqlite.store import SqliteStore

NAME = "0.1-runs.db"
LOWERED = {"keeping": {"RECENT_ENTRIES_MAX": 1_300}, "merge": {"FAN_IN": 2}}
IDS = tuple(f"order-{number}" for number in range(4_500))
CANCELLED = IDS[:5]
NOW = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z
DUE = NOW + 40 * 86_400_000_000
BATCH = 100
FOREVER = 10**15


async def _make(path: Path) -> None:
    commands: Any = importlib.import_module("tidings.domain.command")  # as 0.1 names them
    factories: Any = importlib.import_module("tests.contract.making")
    store = await SqliteStore.open(path)
    assert await store.acquire(0, FOREVER)
    for start in range(0, len(IDS), BATCH):
        await store.apply([factories.add(name, DUE) for name in IDS[start : start + BATCH]], NOW)
        while await store.tend(NOW):
            pass
    await store.apply([commands.Cancel(factories.ACME, name) for name in CANCELLED], NOW)
    await store.close()


def main(folder: str) -> None:
    """Write the fixture to a folder."""
    for module, values in LOWERED.items():
        loaded: Any = importlib.import_module(f"tidings.timeline.sqlite.{module}")
        for name, value in values.items():
            setattr(loaded, name, value)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, NAME)
        asyncio.run(_make(path))
        write_fixture(Path(folder), NAME, path.read_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
