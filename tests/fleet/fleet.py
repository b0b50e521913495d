"""The nodes of a fleet: processes of `tidings serve` on one database, each behind its own proxy."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults.lives import Node, Nursery
from tests.fleet.clients import Clients
from tests.fleet.fork_server import nurseries
from tests.fleet.witness import Witness
from tests.servers.pipe import Pipe
from tests.servers.postgres import Postgres

STOP_S = 15.0
LINES_TOLD = 40


class Seat:
    """A slot in the fleet: its connection to the database, and its present node."""

    def __init__(self, number: int, pipe: Pipe, nursery: Nursery) -> None:
        self.number = number
        self.pipe = pipe
        self.nursery = nursery
        self.node: Node | None = None
        self.id = ""
        self.life = ""
        self.url = ""
        self.lives = 0

    @property
    def name(self) -> str:
        return f"n{self.number}"


class Fleet:
    """Starts and ends nodes, and tells clients where they are."""

    def __init__(self, postgres: Postgres, clients: Clients, environment: dict[str, str]) -> None:
        self.witness = Witness(postgres)
        self.postgres = postgres
        self.seats: list[Seat] = []
        self._clients = clients
        self._environment = environment

    @property
    def living(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.node is not None and seat.node.status is None]

    async def start(self, seat: Seat) -> None:
        """A new life, from the command to the first lease."""
        seat.lives += 1
        seat.life = f"{seat.name}.{seat.lives}"
        store = f"{self.postgres.dsn_at(seat.pipe.port)}?application_name={seat.life}"
        environment = self._environment | {"TIDINGS_NODE_NAME": seat.life}
        seat.node = await seat.nursery.start("--store", store, environment=environment)
        seat.url = await seat.node.url()
        seat.id = await self.witness.node_of(seat.life)
        await self.witness.know(seat.life, seat.id)
        self._clients.open(seat.name, seat.url)

    async def kill(self, seat: Seat) -> None:
        """kill -9, and it is gone."""
        assert seat.node is not None
        seat.node.send(signal.SIGKILL)
        assert await seat.node.ended(STOP_S)
        self._clients.shut(seat.name)
        assert seat.node.status == -signal.SIGKILL, f"ended with {seat.node.status}\n{seat.node.log}"
        self._check_log(seat)

    async def stop(self, seat: Seat) -> None:
        """In good order: nobody calls it any more, and it hands its lanes over."""
        assert seat.node is not None
        self._clients.shut(seat.name)
        seat.node.send(signal.SIGTERM)
        assert await seat.node.ended(STOP_S), f"did not stop\n{seat.node.log}"
        in_time = seat.node.status == 0
        assert in_time or self._waits_for_kafka(seat), f"stopped with {seat.node.status}\n{seat.node.log}"
        self._check_log(seat)

    def _waits_for_kafka(self, seat: Seat) -> bool:
        """A node that is told to stop while Kafka keeps it waiting ends within 5 s all the same, and says so with 1."""
        assert seat.node is not None
        return seat.node.status == 1 and "cannot release to Kafka" in seat.node.log

    def story(self) -> str:
        """What every node said last, and what one said that it should not have to say."""
        nodes = [(seat, seat.node) for seat in self.seats if seat.node is not None]
        told = [
            f"{seat.life}, {seat.id}, status {node.status}:\n{''.join(node.lines[-LINES_TOLD:])}"
            for seat, node in nodes
        ]
        told += [
            f"{seat.life}: {node.log[node.log.index('Traceback') - 300 :][:5000]}"
            for seat, node in nodes
            if "Traceback" in node.log
        ]
        return "\n".join(told)

    def _check_log(self, seat: Seat) -> None:
        assert seat.node is not None
        assert "Traceback" not in seat.node.log, seat.node.log


@contextlib.asynccontextmanager
async def fleet(
    postgres: Postgres, nodes: int, folder: Path, clients: Clients, environment: dict[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """So many nodes; whoever lives at the end is stopped, and killed if need be."""
    made = Fleet(postgres, clients, environment or {})
    async with contextlib.AsyncExitStack() as stack:
        born = await stack.enter_async_context(nurseries(nodes, folder))
        for number, nursery in enumerate(born):
            made.seats.append(Seat(number, stack.enter_context(Pipe(postgres.port)), nursery))
        try:
            first, *others = made.seats
            await made.witness.prepare()
            await made.start(first)  # which makes the store
            await made.witness.install()
            await asyncio.gather(*(made.start(seat) for seat in others))
            yield made
            for seat in made.living:
                await made.stop(seat)
        except BaseException as error:
            error.add_note(made.story())
            raise
        finally:
            for seat in made.living:
                assert seat.node is not None
                seat.node.send(signal.SIGKILL)
                await seat.node.ended(STOP_S)
