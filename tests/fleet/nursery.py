"""Where nodes of a fleet are born quickly (tests/faults/nursery.py): as they are, with nothing lowered.

`nurseries` makes some; each has one node at a time. Nobody outlives the test, however that ends.
"""

import asyncio
import contextlib
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults import nursery, thresholds
from tests.faults.lives import ROOT, Nursery, Pace, clean_environment

LEASE_US = 3_000_000  # as it is by default: take-overs are timed
PR_SET_PDEATHSIG = 1
MODULES = (
    "psycopg",
    "tidings.timeline.postgres.store",
    "tidings.bus.kafka.follow",
    "tidings.bus.kafka.forwarder",
    "tidings.bus.kafka.lane",
    "tidings.edges.kafka.intake",
    "tidings.wires.native",
)


def die_with_parent() -> None:
    """Where the system can do it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    thresholds.LOWERED = {}
    for module in MODULES:
        importlib.import_module(module)
    return nursery.main()


@contextlib.asynccontextmanager
async def nurseries(count: int, folder: Path) -> AsyncIterator[list[Nursery]]:
    """So many, whose nodes live in a folder."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_nursery(folder, path)) for _ in range(count)]


@contextlib.asynccontextmanager
async def _nursery(folder: Path, path: str) -> AsyncIterator[Nursery]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fleet.nursery"),
        cwd=folder,
        env=clean_environment(PYTHONPATH=path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    made = Nursery(process, Pace(), LEASE_US)
    try:
        yield made
    finally:
        if made._node is not None:
            made._node.send(signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    sys.exit(main())
