"""Small limits and short leases, so that half a second covers what a large store does in a day."""

import functools
import importlib
from typing import Any

PACKAGE = "tidings.timeline.sqlite"
LEASE_US = 300_000
# By module: each constant and its new value.
LOWERED: dict[str, dict[str, int]] = {
    f"{PACKAGE}.id_map": {
        "CHUNK_ENTRIES": 16,
        "FILTER_PART_WORDS": 64,
        "FAN_IN": 3,
        "SLICE_CHUNKS": 2,
        "FILTER_PARTS_PER_SLICE": 1,
        "GARBAGE_CHUNKS_PER_SLICE": 4,
    },
    f"{PACKAGE}.maintenance": {"RECENT_ENTRIES_MAX": 150, "SLICE_ROWS": 200, "PAUSE_US": 100_000},
    f"{PACKAGE}.pending.wheel": {"SLICE_ROWS": 10},
    f"{PACKAGE}.database": {"WAL_PAGES_MAX": 100, "REST_PAGES_MAX": 20},
    "tidings.dispatch.dispatcher": {"BATCH_ROWS_MIN": 10, "BATCH_ROWS_MAX": 50, "SHARED_ROWS_MAX": 20},
}
OF_THE_ID_MAP = {*LOWERED[f"{PACKAGE}.id_map"], "RECENT_ENTRIES_MAX"}


def lower(lease_us: int = LEASE_US, point: str = "") -> None:
    """Set them in this process, which is to become a node.

    With so small a map of ids there is always something to merge, and the rest of the housekeeping waits for that: a
    node that is to crash there leaves the map alone.
    """
    for module, names in LOWERED.items():
        for name, value in names.items():
            if name in OF_THE_ID_MAP and point.startswith("trim."):
                continue
            loaded = importlib.import_module(module)
            assert isinstance(getattr(loaded, name), int), f"{module} has no {name}"
            setattr(loaded, name, value)
    node: Any = importlib.import_module("tidings.node.serve")
    node.Settings = functools.partial(node.Settings, lease_us=lease_us)


def quicken(base_us: int, speed: int) -> None:
    """Let the wall clock run faster from a moment on; leases still count real time."""
    clock: Any = importlib.import_module("tidings.clock")
    wall = clock._wall
    clock.SystemClock.now = lambda _self: quickened(wall(), base_us, speed)


def quickened(wall_us: int, base_us: int, speed: int) -> int:
    """What a quickened clock shows."""
    return base_us + (wall_us - base_us) * speed
