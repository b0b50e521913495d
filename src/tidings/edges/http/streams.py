"""Long answers: waits that end when the client disconnects or the server stops, and server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive, Send

from tidings.bus import log_reader as cursors
from tidings.domain.errors import TidingsError
from tidings.domain.schedules.schedule import Record
from tidings.edges.http.inputs import Disconnected
from tidings.edges.http.readers import connection_of
from tidings.edges.http.routes import Call, Edge
from tidings.tasks import end
from tidings.wires.answers import encode, record_document

HEARTBEAT_S = 15.0
BATCH_RECORDS = 200
RETRY_MS = 1000
SLOW = "this client read nothing for {seconds:g} s: connect again, and the stream continues after the last id"
_SLOW_READER = {"type": "urn:tidings:problem:slow_reader", "title": "The client is not reading"}

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

T = TypeVar("T")
Source = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]


class Interruptions:
    """What ends a wait early: the server stops, or the client disconnects."""

    def __init__(self, stopping: asyncio.Task[bool], disconnected: asyncio.Task[None]) -> None:
        self._stopping = stopping
        self._disconnected = disconnected

    async def wait(self, task: asyncio.Task[Any], timeout: float | None = None) -> None:
        """Wait until the task is done, the wait is interrupted, or the timeout is over."""
        waits = {task, self._stopping, self._disconnected}
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has disconnected."""
        return self._disconnected.done()

    @property
    def is_over(self) -> bool:
        """Whether the wait is interrupted."""
        return self._stopping.done() or self._disconnected.done()


@asynccontextmanager
async def interruptions(edge: Edge, call: Call) -> AsyncIterator[Interruptions]:
    """Watch for a disconnect or a stop during a call whose body has been read."""
    stopping = asyncio.create_task(edge.stopping.wait())
    disconnected = asyncio.create_task(_disconnected(call.receive))
    try:
        yield Interruptions(stopping, disconnected)
    finally:
        stopping.cancel()
        disconnected.cancel()


async def unless_interrupted(edge: Edge, call: Call, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work; None if the server stops first. Raises `Disconnected` if the client has gone."""
    task = asyncio.create_task(work)
    async with interruptions(edge, call) as interruption:
        try:
            await interruption.wait(task)
        finally:
            if not task.done():
                await end([task])
        if not task.cancelled():
            return task.result()
        if interruption.is_disconnected:
            raise Disconnected
        return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def positions_before(records: Sequence[Record], cursor: str, partitions: int) -> Iterator[str]:
    """Cursors from the one behind all records back to the one before the first."""
    positions = list(cursors.decode(cursor, partitions))
    yield cursor
    for record in reversed(records):
        positions[record.partition] = record.offset
        yield cursors.encode(tuple(positions))


def events(records: Sequence[Record], cursor: str, partitions: int) -> bytes:
    """The records as events. The id of each is the position behind it, so a client resumes exactly after any cut."""
    *ids, _ = positions_before(records, cursor, partitions)
    return b"".join(
        b"id: %s\ndata: %s\n\n" % (position.encode(), encode(record_document(record)))
        for record, position in zip(records, reversed(ids), strict=True)
    )


async def encoded(batches: AsyncIterator[tuple[list[Record], str]], partitions: int) -> AsyncIterator[bytes]:
    """Each batch as events; the records are not kept while a slow client reads."""
    async for batch in batches:
        body = [events(*batch, partitions)]
        del batch
        yield body.pop()


def pieces(all_events: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    """The events joined into pieces of about that many bytes."""
    piece: list[bytes] = []
    size = 0
    for event in all_events:
        piece.append(event)
        size += len(event)
        if size >= bytes_max:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


class EventStream:
    """Sends a topic to one client until it disconnects or the server stops.

    It also ends when the store or the bus becomes unavailable: the client connects again, and gets the error then. The
    next batch is read once the client has read the previous one, so a client that does not read holds one batch.
    """

    def __init__(self, edge: Edge, call: Call, cursor: str, source: Source) -> None:
        self._edge = edge
        self._call = call
        self._connection = connection_of(call.scope)
        self._cursor = cursor
        self._source = source

    async def __call__(self, send: Send) -> None:
        async with self._source() as batches:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if self._call.scope["method"] != "HEAD":
                # An id without data: a client that is cut off before the first record resumes from here.
                await _send(send, b"retry: %d\nid: %s\n\n" % (RETRY_MS, self._cursor.encode()))
                self._connection.last_words = self._last_words()
                with contextlib.suppress(TidingsError):
                    await self._send_batches(batches, send)
        if self._edge.stopping.is_set() and self._connection.is_full:
            self._connection.abort()  # a stop does not wait until the client has read everything
        self._connection.last_words = None
        await send({"type": "http.response.body", "body": b""})

    def _last_words(self) -> bytes:
        """The last event for a client that is disconnected because it does not read."""
        seconds = self._edge.server.slow_reader_timeout_us / 1_000_000
        return b"event: error\ndata: %s\n\n" % encode(_SLOW_READER | {"detail": SLOW.format(seconds=seconds)})

    async def _send_batches(self, batches: AsyncIterator[bytes], send: Send) -> None:
        async with interruptions(self._edge, self._call) as interruption:
            upcoming = asyncio.create_task(self._next(batches))
            try:
                while True:
                    await interruption.wait(upcoming, HEARTBEAT_S)
                    if interruption.is_over:
                        return
                    if not upcoming.done():
                        if not self._connection.is_full:
                            await _send(send, b": keep-alive\n\n")
                    elif batch := upcoming.result():
                        await _send(send, batch)
                        del batch  # it is in the write buffer now
                        upcoming = asyncio.create_task(self._next(batches))
                    else:
                        return
            finally:
                await end([upcoming])

    async def _next(self, batches: AsyncIterator[bytes]) -> bytes | None:
        """The next batch, once the client has read the previous one."""
        await self._connection.drained()
        return await anext(batches, None)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
