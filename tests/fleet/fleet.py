"""The nodes of a fleet: processes of `tidings serve` on one database, each behind its own proxy."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults.node_process import NodeFactory, NodeProcess, check_log, reason_first_and_last
from tests.fleet.clients import Clients
from tests.fleet.database_monitor import DatabaseMonitor
from tests.fleet.fork_server import node_factories
from tests.servers.pipe import Pipe
from tests.servers.postgres import Postgres

STOP_S = 15.0


class Seat:
    """A slot in the fleet: its connection to the database, and its present node."""

    def __init__(self, number: int, pipe: Pipe, factory: NodeFactory) -> None:
        self.number = number
        self.pipe = pipe
        self.factory = factory
        self.node: NodeProcess | None = None
        self.id = ""
        self.incarnation = ""
        self.url = ""
        self.incarnations = 0

    @property
    def name(self) -> str:
        return f"n{self.number}"


class Fleet:
    """Starts and ends nodes, and gives clients their URLs."""

    def __init__(self, postgres: Postgres, clients: Clients, environment: dict[str, str]) -> None:
        self.monitor = DatabaseMonitor(postgres)
        self.postgres = postgres
        self.seats: list[Seat] = []
        self._clients = clients
        self._environment = environment

    @property
    def living(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.node is not None and seat.node.status is None]

    async def start(self, seat: Seat) -> None:
        """Start a new process and wait until it is registered."""
        seat.incarnations += 1
        seat.incarnation = f"{seat.name}.{seat.incarnations}"
        store = f"{self.postgres.dsn_at(seat.pipe.port)}?application_name={seat.incarnation}"
        environment = self._environment | {"TIDINGS_NODE_NAME": seat.incarnation}
        seat.node = await seat.factory.start("--store", store, environment=environment)
        seat.url = await seat.node.url()
        seat.id = await self.monitor.node_of(seat.incarnation)
        await self.monitor.register(seat.incarnation, seat.id)
        self._clients.open(seat.name, seat.url)

    async def kill(self, seat: Seat) -> None:
        """End it with SIGKILL."""
        assert seat.node is not None
        seat.node.send(signal.SIGKILL)
        assert await seat.node.ended(STOP_S)
        self._clients.shut(seat.name)
        assert seat.node.status == -signal.SIGKILL, f"ended with {seat.node.status}\n{seat.node.tail}"
        self._check_log(seat)

    async def stop(self, seat: Seat) -> None:
        """Stop it cleanly: clients no longer call it, and it hands its lanes over."""
        assert seat.node is not None
        self._clients.shut(seat.name)
        seat.node.send(signal.SIGTERM)
        assert await seat.node.ended(STOP_S), f"did not stop\n{seat.node.tail}"
        in_time = seat.node.status == 0
        assert in_time or self._waits_for_kafka(seat), f"stopped with {seat.node.status}\n{seat.node.tail}"
        self._check_log(seat)

    def _waits_for_kafka(self, seat: Seat) -> bool:
        """A node that is stopped while it waits for Kafka ends within 5 s, with status 1."""
        assert seat.node is not None
        return seat.node.status == 1 and "cannot release to Kafka" in seat.node.log

    def logs(self) -> str:
        """The last log lines of every node, or its traceback."""
        nodes = [(seat, seat.node) for seat in self.seats if seat.node is not None]
        return "\n".join(f"{seat.incarnation}, {seat.id}, status {node.status}:\n{node.tail}" for seat, node in nodes)

    def _check_log(self, seat: Seat) -> None:
        assert seat.node is not None
        check_log(seat.node)


@contextlib.asynccontextmanager
async def fleet(
    postgres: Postgres, nodes: int, folder: Path, clients: Clients, environment: dict[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """This many nodes; those that run at the end are stopped, and killed if need be."""
    made = Fleet(postgres, clients, environment or {})
    async with contextlib.AsyncExitStack() as stack:
        factories = await stack.enter_async_context(node_factories(nodes, folder))
        for number, factory in enumerate(factories):
            made.seats.append(Seat(number, stack.enter_context(Pipe(postgres.port)), factory))
        try:
            with reason_first_and_last(made.logs):
                first, *others = made.seats
                await made.monitor.prepare()
                await made.start(first)  # which creates the store
                await made.monitor.install()
                await asyncio.gather(*(made.start(seat) for seat in others))
                yield made
                for seat in made.living:
                    await made.stop(seat)
        finally:
            for seat in made.living:
                assert seat.node is not None
                seat.node.send(signal.SIGKILL)
                await seat.node.ended(STOP_S)
