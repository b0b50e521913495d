"""A real PostgreSQL on the same cores, as it is meant to run, with a database for each store."""

import contextlib
import itertools
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg

from bench.fleet.node import NodeOptions, Report
from bench.processes import answer_of, child
from bench.screen import note
from tests.servers.postgres import DURABLE, Postgres
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Ids, Log, Store
from tidings.domain.schedules.when import DAY_US
from tidings.engine import Engine
from tidings.node import build_engine, open_store

LANES = 16
SHARED_S_MAX = 30.0
LOOK_S = 0.01

_LEASES = """
SELECT count(*), count(DISTINCT l.node) FROM tidings.lane l
JOIN tidings.node n ON n.node = l.node AND tidings.runs(n.until, n.lease, tidings.now())
"""
_EVEN = "SELECT max(c) - min(c) FROM (SELECT count(*) AS c FROM tidings.lane GROUP BY node) AS each"


class Site:
    """One server for a whole benchmark. Every contestant has a database of its own on it, dropped at its end."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator["Database"]:
        """A new database."""
        unique = f"{name}_{next(self._numbers)}"
        with self.server.connect() as connection:
            connection.execute(f"CREATE DATABASE {unique}".encode())
        database = Database(urlunsplit(urlsplit(self.server.dsn)._replace(path=f"/{unique}")))
        try:
            yield database
        finally:
            database.close()
            with self.server.connect() as connection:
                connection.execute(f"DROP DATABASE {unique} WITH (FORCE)".encode())

    def settle(self) -> None:
        """Leave nothing unwritten to the next measurement."""
        with self.server.connect() as connection:
            connection.execute("CHECKPOINT")

    def cpu_s(self) -> float:
        """The time that the server and its processes have taken so far, those that have ended included."""
        pid = self.server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(_cpu_s(each) for each in (str(pid), *children))


class Database:
    """One database: the address of a store, and what can be asked of it beside the store."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._asking: psycopg.Connection[tuple[object, ...]] | None = None

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """A connection that commits each statement."""
        return psycopg.connect(self.dsn, autocommit=True)

    def close(self) -> None:
        """Leave it."""
        if self._asking is not None:
            self._asking.close()

    def released(self, topic: str) -> int:
        """How many records a topic has."""
        return self.number(
            f"SELECT sum(p.next) FROM tidings.partition p JOIN tidings.topic t USING (topic) WHERE t.name = '{topic}'"
        )

    def number(self, query: str) -> int:
        """The one number that a query answers; 0 for none."""
        if self._asking is None:
            self._asking = self.connect()
        row = self._asking.execute(query.encode()).fetchone()
        return 0 if row is None or row[0] is None else int(str(row[0]))

    def until(self, condition: Callable[[], bool], patience_s: float) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"this has not come about within {patience_s:.0f} s")
            time.sleep(LOOK_S)

    @contextlib.contextmanager
    def node(self, **options: str | None) -> Iterator["Node"]:
        """A node at work on it, in a process of its own."""
        given = msgspec.json.encode(NodeOptions(self.dsn, **options)).decode()  # type: ignore[arg-type]
        with child("-m", "bench.fleet.node", given) as process:
            answer_of(process)
            yield Node(process)

    def share(self, nodes: int) -> None:
        """Wait until that many nodes share all lanes evenly."""
        with self.connect() as connection:

            def shared() -> bool:
                if connection.execute(_LEASES).fetchone() != (LANES, nodes):
                    return False
                uneven = connection.execute(_EVEN).fetchone()
                return uneven is not None and int(str(uneven[0])) <= 1

            self.until(shared, SHARED_S_MAX)

    @contextlib.asynccontextmanager
    async def producer(self, config: Config | None = None) -> AsyncIterator[Engine]:
        """An engine that takes changes and owns no lane, as a client of the fleet would have one."""
        clock = SystemClock()
        config = Config(store=Store(path=self.dsn)) if config is None else config
        engine = build_engine(await open_store(self.dsn, config, clock), config, clock)
        try:
            yield engine
        finally:
            await engine.store.close()

    @contextlib.asynccontextmanager
    async def engine(self, retention_us: int = 7 * DAY_US) -> AsyncIterator[Engine]:
        """A node in this process."""
        config = Config(store=Store(path=self.dsn), log=Log(retention_us=retention_us), ids=Ids(retention_us))
        clock = SystemClock()
        async with contextlib.AsyncExitStack() as stack:
            engine = build_engine(await open_store(self.dsn, config, clock), config, clock)
            stack.push_async_callback(engine.stop)
            await engine.start()
            yield engine


class Node:
    """A node beside this process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def end(self) -> Report:
        """Stop it in good order; what it has to tell."""
        self.process.terminate()
        return msgspec.convert(answer_of(self.process), Report)


@contextlib.contextmanager
def opened() -> Iterator[Site]:
    """A server that syncs every commit; raises `Missing` where it cannot run."""
    note("postgres: starting a server")
    with Postgres.start(DURABLE) as server:
        yield Site(server)


def _cpu_s(pid: str) -> float:
    """User and system time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / 100
