"""The properties of a broker: on its own, or in a cluster with another."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.servers.ports import HOST, free_ports
from tests.servers.security import Security

FOR_CLIENTS = ("DIRECT", "PROXIED")  # names of listeners
ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "DIRECT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    # A killed broker comes back only when its controller, in the same process, thinks that the old one is dead.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a broker listens. Clients of `proxied` are redirected to `proxy`, where a proxy may listen."""

    direct: int
    proxied: int
    proxy: int
    controller: int

    @classmethod
    def choose(cls, direct: int | None = None) -> Self:
        """Free ones, besides what is given."""
        first, *others = free_ports(4)
        return cls(first if direct is None else direct, *others)


def server_properties(
    data: Path, ports: Ports, security: Security, more: Mapping[str, str], beside: Ports | None = None
) -> dict[str, str]:
    """Everything; `more` has the last word."""
    if beside is not None:
        more = {**_second(ports, beside), **more}
    direct, proxied, controller = f"{HOST}:{ports.direct}", f"{HOST}:{ports.proxied}", f"{HOST}:{ports.controller}"
    protocol = security.protocol
    return {
        **ONE_NODE,
        "log.dirs": str(data),
        "listeners": f"DIRECT://{direct},PROXIED://{proxied},CONTROLLER://{controller}",
        "advertised.listeners": f"DIRECT://{direct},PROXIED://{HOST}:{ports.proxy}",
        "listener.security.protocol.map": f"DIRECT:{protocol},PROXIED:{protocol},CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": controller,
        **security.server(FOR_CLIENTS),
        **more,
    }


def _second(ports: Ports, first: Ports) -> dict[str, str]:
    """A broker that is led by the controller of another."""
    return {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": f"DIRECT://{HOST}:{ports.direct},PROXIED://{HOST}:{ports.proxied}",
        "controller.quorum.bootstrap.servers": f"{HOST}:{first.controller}",
    }
