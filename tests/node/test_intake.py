"""Requests on Kafka are read only by nodes with the role `intake`."""

import pytest

from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Node
from tidings.domain.fleet import ROLES, Role
from tidings.edges.kafka.start_position import StartPosition
from tidings.node import build_engine, join_kafka
from tidings.timeline.memory import MemoryStore


@pytest.mark.parametrize("roles", [ROLES, ("dispatch", "intake"), ("api", "dispatch"), ("dispatch",)])
async def test_only_nodes_with_the_role_intake_read_requests(roles: tuple[Role, ...]) -> None:
    config = Config(kafka=Kafka(servers="127.0.0.1:1"), node=Node(roles=roles))
    engine = build_engine(MemoryStore(), config, SystemClock())
    join_kafka(engine, config)
    reads = any(isinstance(companion, StartPosition) for companion in (*engine._services, *engine.lanes.services))
    assert reads == ("intake" in roles)
