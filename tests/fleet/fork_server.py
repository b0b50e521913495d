"""A fork server for nodes of a fleet (tests/faults/fork_server.py), with the usual limits.

`node_factories` starts some; each has one node at a time. No process outlives the test, however that ends.
"""

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults import fork_server, node_process, thresholds
from tests.faults.node_process import NodeFactory, Pace

LEASE_US = 3_000_000  # as it is by default: take-overs are timed
PR_SET_PDEATHSIG = 1
MODULES = (
    "psycopg",
    "tidings.timeline.postgres.store",
    "tidings.bus.kafka.topic_reader",
    "tidings.bus.kafka.forwarder",
    "tidings.bus.kafka.producers",
    "tidings.edges.kafka.intake",
    "tidings.wires.native",
)


def die_with_parent() -> None:
    """End this process together with its parent, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    thresholds.LOWERED = {}
    for module in MODULES:
        importlib.import_module(module)
    return fork_server.main()


@contextlib.asynccontextmanager
async def node_factories(count: int, folder: Path) -> AsyncIterator[list[NodeFactory]]:
    """This many factories, whose nodes run in a folder."""
    async with contextlib.AsyncExitStack() as stack:
        factories = [
            node_process.node_factory(folder, Pace(), LEASE_US, "tests.fleet.fork_server") for _ in range(count)
        ]
        yield [await stack.enter_async_context(each) for each in factories]


if __name__ == "__main__":
    sys.exit(main())
