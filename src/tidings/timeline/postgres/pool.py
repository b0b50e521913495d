"""Connection pools: connections are opened when needed, reused, and discarded when broken."""

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection

from tidings.domain.errors import StoreError
from tidings.timeline.postgres.database import Connection, Lost, check_url, explained, register, unreachable

CONNECT_S_MAX = 5
FIRST_MAX = 3  # for what everything else waits for: leases, due times of lanes, names, arrival numbers
WORK_MAX = 7  # for releases, the outbox and housekeeping
INTAKE_MAX = 8
READS_MAX = 6
TABLES_MAX = 4
SHARE_MIN = 2  # connections of a pool, however many processes share them
TURN_S_MAX = 10  # how long to wait for a free connection
STATEMENT_MS = 10_000
LOCK_MS = 2_000
IDLE_MS = 2_000  # less than a lease: a dead node must not hold locks on a lane for longer

# With a direct connection these apply to every call. PgBouncer rejects them: there the settings of a transaction and
# those of the role (ALTER ROLE ... SET statement_timeout) apply.
_OPTIONS = (
    f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={LOCK_MS} -c idle_in_transaction_session_timeout={IDLE_MS}"
    " -c jit=off"
)
_PATIENT = "-c statement_timeout=0"
_LIMITS = (
    f"SET LOCAL statement_timeout = {STATEMENT_MS}; SET LOCAL lock_timeout = {LOCK_MS};"
    f" SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}; SET LOCAL enable_seqscan = off"
)
# The same as one statement, for a pipeline.
LIMITS = (
    f"SELECT set_config('statement_timeout', '{STATEMENT_MS}', true), set_config('lock_timeout', '{LOCK_MS}', true),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_MS}', true)"
)
_ALIVE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

Row = tuple[Any, ...]
Values = Sequence[object] | Mapping[str, object]


class Pool:
    """Provides connections, up to a maximum at a time."""

    def __init__(self, dsn: str, connections_max: int) -> None:
        self._dsn = check_url(dsn)
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(connections_max)
        self._users: set[asyncio.Task[Any] | None] = set()
        self._closed = False
        self._takes_options = True
        self._is_direct: bool | None = None
        self.losses = 0  # lost connections: after a failover another server may answer

    @property
    def is_direct(self) -> bool:
        """Whether we are connected to PostgreSQL directly, as far as is known, and not through a pooler."""
        return self._is_direct is not False

    async def open(self, *, patient: bool = False) -> Connection:
        """Open a dedicated connection in autocommit mode; a patient one has no statement timeout."""
        try:
            connection = await self._connect(_PATIENT if patient else _OPTIONS)
        except psycopg.Error as error:
            raise unreachable(error) from None
        if self._is_direct is None:
            await self._detect_pooler(connection)
        register(connection)
        return connection

    async def _connect(self, options: str) -> Connection:
        more: dict[str, Any] = {"options": options} if self._takes_options else {}
        try:
            return await AsyncConnection.connect(
                self._dsn, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_S_MAX, **_ALIVE, **more
            )
        except psycopg.OperationalError as error:
            if not self._takes_options or "unsupported startup parameter" not in str(error):
                raise
            self._takes_options = False
            return await self._connect(options)

    async def _detect_pooler(self, connection: Connection) -> None:
        """Detect a pooler: it rejects or ignores options, and its process id is not that of the server."""
        try:
            ((number,),) = await rows(connection, "SELECT pg_backend_pid()")
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise unreachable(error) from None
            raise
        self._is_direct = self._takes_options and number == connection.info.backend_pid

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Borrow a connection. Errors of the database are translated."""
        async with self._slot():
            connection = await self._take()
            try:
                yield connection
            except psycopg.Error as error:
                if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                    await connection.close()  # it is not the primary any more: connect again
                self.losses += connection.closed
                raise explained(error, connection) from error
            finally:
                await self._give_back(connection)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task not in self._users, "a task that waits for a second connection may deadlock"
        async with turn(self._free):
            self._users.add(task)
            try:
                yield
            finally:
                self._users.discard(task)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction with timeouts, so that it cannot stay open for long."""
        async with self.connection() as connection, connection.transaction():
            await connection.execute(_LIMITS)
            yield connection

    async def call(self, statement: str, values: Values = ()) -> list[Row]:
        """Run one statement in one round trip, including its COMMIT."""
        async with self.connection() as connection:
            return await rows(connection, statement, values)

    async def write(self, statement: str, values: Values = ()) -> list[Row]:
        """The same for a statement that waits for locks; behind a pooler its timeouts are set in a transaction."""
        if self.is_direct:
            return await self.call(statement, values)
        async with self.transaction() as connection:
            return await rows(connection, statement, values)

    async def read(self, statement: str, values: Values = ()) -> list[Row]:
        """The same for a statement that may be repeated if the connection is lost."""
        try:
            return await self.call(statement, values)
        except Lost:
            return await self.call(statement, values)

    async def _take(self) -> Connection:
        if self._closed:
            raise StoreError("the store is closed")
        while self._idle:
            connection = self._idle.pop()
            if _is_sound(connection):
                return connection
            self.losses += 1
            await connection.close()
        return await self.open()

    async def _give_back(self, connection: Connection) -> None:
        idle = connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if idle and not connection.closed and not self._closed:
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Close all idle connections; those in use are closed when they are returned."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


class Pools:
    """The connection pools of a node, one for each purpose, so that one kind of work cannot starve another.

    A task with a connection of `first` never waits for another one, so tasks of the other pools may wait for `first`.
    """

    def __init__(self, dsn: str, processes: int = 1) -> None:
        sizes = [_share(size, processes) for size in (FIRST_MAX, WORK_MAX, INTAKE_MAX, READS_MAX, TABLES_MAX)]
        self.first, self.work, self.intake, self.reads, self.tables = (Pool(dsn, size) for size in sizes)
        self.connections_max = processes * (sum(sizes) + 1)  # of all processes; each has one that listens
        self._all = (self.first, self.work, self.intake, self.reads, self.tables)

    @property
    def losses(self) -> int:
        """How many connections were lost."""
        return sum(pool.losses for pool in self._all)

    async def close(self) -> None:
        for pool in self._all:
            await pool.close()


@contextlib.asynccontextmanager
async def turn(free: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for a semaphore, up to `TURN_S_MAX`."""
    try:
        async with asyncio.timeout(TURN_S_MAX):
            await free.acquire()
    except TimeoutError:
        raise StoreError(
            f"this node had too many calls in progress for {TURN_S_MAX} s, and nothing was done: try again, with fewer"
        ) from None
    try:
        yield
    finally:
        free.release()


async def rows(connection: Connection, statement: str, values: Values = ()) -> list[Row]:
    """Run a statement; returns its rows, if it has any."""
    cursor = await connection.execute(statement.encode(), values, binary=True)
    return await cursor.fetchall() if cursor.description else []


def _is_sound(connection: Connection) -> bool:
    """Whether an idle connection is still usable: readable data means that the server has closed it."""
    if connection.closed:
        return False
    poll = select.poll()  # unlike select, it accepts any descriptor number
    try:
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)
    except (OSError, psycopg.Error):
        return False


def _share(size: int, processes: int) -> int:
    """The size of a pool in one of several processes."""
    return max(SHARE_MIN, -(-size // processes))
