"""Nodes joined to Kafka, as processes."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults.lives import ROOT, Node, Nursery, Pace, clean_environment
from tests.faults.thresholds import LEASE_US
from tests.kafka.faults.nursery import WITHOUT

OWNER = "owns the timeline"
STANDBY = "standing by"
PARTITIONS = 3


def environment(folder: Path, servers: str, name: str) -> dict[str, str]:
    """The settings of a node on a store in a folder."""
    return {
        "TIDINGS_STORE_PATH": str(folder / "tidings.db"),
        "TIDINGS_KAFKA_SERVERS": servers,
        "TIDINGS_KAFKA_NAME": name,
        "TIDINGS_KAFKA_PARTITIONS": str(PARTITIONS),
    }


@contextlib.asynccontextmanager
async def nursery(folder: Path, lease_us: int = LEASE_US, without: str = "") -> AsyncIterator[Nursery]:
    """Nodes with a short lease, and if wanted without one of their guards."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.kafka.faults.nursery"),
        cwd=folder,
        env=clean_environment(PYTHONPATH=path, **{WITHOUT: without}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    made = Nursery(process, Pace(), lease_us)
    try:
        yield made
    finally:
        if made._node is not None:
            made._node.send(signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def die(node: Node, timeout_s: float = 10.0) -> None:
    """kill -9, and wait until it is over."""
    node.send(signal.SIGKILL)
    assert await node.ended(timeout_s)
