"""Small limits, so that a short simulation covers what a large store does."""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

PACKAGE = "tidings.timeline.sqlite"

# By module: each constant and what it is to be.
SMALL: dict[str, dict[str, int]] = {
    f"{PACKAGE}.id_map": {
        "CHUNK_ENTRIES": 3,
        "FILTER_PART_WORDS": 16,
        "FAN_IN": 2,
        "SLICE_CHUNKS": 1,
        "FILTER_PARTS_PER_SLICE": 1,
        "GARBAGE_CHUNKS_PER_SLICE": 2,
    },
    f"{PACKAGE}.pending.wheel": {"SLICE_ROWS": 3},
    f"{PACKAGE}.maintenance": {"RECENT_ENTRIES_MAX": 3, "SLICE_ROWS": 3, "SWEEP_ROWS": 4},
    "tidings.dispatch.dispatcher": {"BATCH_ROWS_MIN": 2, "BATCH_ROWS_MAX": 4, "SHARED_ROWS_MAX": 3},
}


# So small that checkpoints run all the time; they do so on a thread of their own, and make a run hard to repeat.
CHECKPOINTS: dict[str, dict[str, int]] = {f"{PACKAGE}.database": {"WAL_PAGES_MAX": 40, "REST_PAGES_MAX": 10}}


@contextlib.contextmanager
def lowered(*, checkpoints: bool) -> Iterator[None]:
    """Set them for a while."""
    with contextlib.ExitStack() as stack:
        for module, names in (SMALL | (CHECKPOINTS if checkpoints else {})).items():
            for name, value in names.items():
                stack.enter_context(patch(f"{module}.{name}", value))
        yield
