"""Nodes with Kafka, as processes."""

import contextlib
import signal
from pathlib import Path

from tests.faults import node_process
from tests.faults.node_process import NodeFactory, NodeProcess, Pace
from tests.faults.thresholds import LEASE_US
from tests.kafka.faults.fork_server import WITHOUT

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


def node_factory(
    folder: Path, lease_us: int = LEASE_US, without: str = ""
) -> contextlib.AbstractAsyncContextManager[NodeFactory]:
    """A fork server for nodes with a short lease, optionally without one safeguard."""
    return node_process.node_factory(folder, Pace(), lease_us, "tests.kafka.faults.fork_server", **{WITHOUT: without})


async def kill(node: NodeProcess, timeout_s: float = 10.0) -> None:
    """Kill a node with SIGKILL, and wait for its end."""
    node.send(signal.SIGKILL)
    assert await node.ended(timeout_s)
