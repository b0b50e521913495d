"""Connections: opened when needed, kept for the next call, thrown away when broken. No call relies on its session."""

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
FIRST_MAX = 3  # what everything else waits for: leases, when lanes have work to do, names, arrival numbers
WORK_MAX = 7  # releases, the outbox, housekeeping
INTAKE_MAX = 8
READS_MAX = 6
CABINET_MAX = 4
TURN_S_MAX = 10  # how long to wait for a connection that others use
STATEMENT_MS = 10_000
LOCK_MS = 2_000
IDLE_MS = 2_000  # less than a lease: a node that is gone must not hold a lane for longer than that

# Where the server is reached directly, these hold for every call. PgBouncer refuses them: there a call's own settings
# and those of the role (ALTER ROLE ... SET statement_timeout) count.
_OPTIONS = (
    f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={LOCK_MS} -c idle_in_transaction_session_timeout={IDLE_MS}"
    " -c jit=off"
)
_PATIENT = "-c statement_timeout=0"
_LIMITS = (
    f"SET LOCAL statement_timeout = {STATEMENT_MS}; SET LOCAL lock_timeout = {LOCK_MS};"
    f" SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}; SET LOCAL enable_seqscan = off"
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
    """Hands out connections, at most so many at a time."""

    def __init__(self, dsn: str, connections_max: int) -> None:
        self._dsn = check_url(dsn)
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(connections_max)
        self._users: set[asyncio.Task[Any] | None] = set()
        self._closed = False
        self._takes_options = True
        self._is_direct: bool | None = None
        self.losses = 0  # connections that ended by themselves: another server may answer since

    @property
    def is_direct(self) -> bool:
        """Whether PostgreSQL itself answers, as far as is known. Behind a pooler there is no session to rely on."""
        return self._is_direct is not False

    async def open(self, *, patient: bool = False) -> Connection:
        """A connection of one's own, in which every statement commits by itself; a patient one waits without end."""
        try:
            connection = await self._connect(_PATIENT if patient else _OPTIONS)
        except psycopg.Error as error:
            raise unreachable(error) from None
        if self._is_direct is None:
            await self._meet(connection)
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

    async def _meet(self, connection: Connection) -> None:
        """See who answers: a pooler refuses options or ignores them, and its numbers are not those of the server."""
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
        """A connection for a short while. Errors of the database become ours."""
        async with self._slot():
            connection = await self._take()
            try:
                yield connection
            except psycopg.Error as error:
                if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                    await connection.close()  # it was the primary once; the next one is looked for anew
                self.losses += connection.closed
                raise explained(error, connection) from error
            finally:
                await self._give_back(connection)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task not in self._users, "who has a connection and waits for a second one may wait for himself"
        async with turn(self._free):
            self._users.add(task)
            try:
                yield
            finally:
                self._users.discard(task)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction that nothing can hold open for long."""
        async with self.connection() as connection, connection.transaction():
            await connection.execute(_LIMITS)
            yield connection

    async def call(self, statement: str, values: Values = ()) -> list[Row]:
        """One statement in one round trip, its COMMIT included."""
        async with self.connection() as connection:
            return await rows(connection, statement, values)

    async def write(self, statement: str, values: Values = ()) -> list[Row]:
        """The same for what waits for locks by itself: where no options are taken, its limits go with it."""
        if self.is_direct:
            return await self.call(statement, values)
        async with self.transaction() as connection:
            return await rows(connection, statement, values)

    async def read(self, statement: str, values: Values = ()) -> list[Row]:
        """The same for what may be done again if the connection is lost."""
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
        """End all that are not in use; those in use end when they come back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


class Pools:
    """The connections of a node, apart by what they are for: nobody can take those that another work needs.

    Nothing waits for anything else while it has one of the `first`: so those who have one of the others may.
    """

    def __init__(self, dsn: str) -> None:
        self.first = Pool(dsn, FIRST_MAX)
        self.work = Pool(dsn, WORK_MAX)
        self.intake = Pool(dsn, INTAKE_MAX)
        self.reads = Pool(dsn, READS_MAX)
        self.documents = Pool(dsn, CABINET_MAX)
        self._all = (self.first, self.work, self.intake, self.reads, self.documents)

    @property
    def losses(self) -> int:
        """How many connections have ended by themselves."""
        return sum(pool.losses for pool in self._all)

    async def close(self) -> None:
        for pool in self._all:
            await pool.close()


@contextlib.asynccontextmanager
async def turn(free: asyncio.Semaphore) -> AsyncIterator[None]:
    """Our turn among those who share something: waited for, but not for ever."""
    try:
        async with asyncio.timeout(TURN_S_MAX):
            await free.acquire()
    except TimeoutError:
        raise StoreError(
            f"this node had too many calls under route for {TURN_S_MAX} s, and nothing was done: try again, with fewer"
        ) from None
    try:
        yield
    finally:
        free.release()


async def rows(connection: Connection, statement: str, values: Values = ()) -> list[Row]:
    """What a statement answers; nothing if it has no rows."""
    cursor = await connection.execute(statement.encode(), values, binary=True)
    return await cursor.fetchall() if cursor.description else []


def _is_sound(connection: Connection) -> bool:
    """Whether nothing has happened to it while it was idle: what can be read then is its end."""
    if connection.closed:
        return False
    poll = select.poll()  # which, unlike select, takes descriptors of any number
    try:
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)
    except (OSError, psycopg.Error):
        return False
