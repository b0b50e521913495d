"""Server-sent events: records of a topic as they are released, each with the cursor to go on from."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.types import Send

from tidings.bus import cursor as cursors
from tidings.domain.errors import TidingsError
from tidings.domain.schedule import Record
from tidings.edges.http.edge import Edge
from tidings.edges.http.routing import Call
from tidings.edges.http.waiting import cancelled, endings
from tidings.wires.answers import encode, record_document

HEARTBEAT_S = 15.0
BATCH_RECORDS = 200
RETRY_MS = 1000

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Source = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]


def positions_before(records: Sequence[Record], cursor: str, partitions: int) -> Iterator[str]:
    """Cursors from the one behind all records back to the one before the first."""
    positions = list(cursors.decode(cursor, partitions))
    yield cursor
    for record in reversed(records):
        positions[record.partition] = record.offset
        yield cursors.encode(tuple(positions))


def events(records: Sequence[Record], cursor: str, partitions: int) -> bytes:
    """The records as events. The id of each is the position behind it: a cut anywhere resumes exactly."""
    *ids, _ = positions_before(records, cursor, partitions)
    return b"".join(
        b"id: %s\ndata: %s\n\n" % (position.encode(), encode(record_document(record)))
        for record, position in zip(records, reversed(ids), strict=True)
    )


class EventStream:
    """Follows a topic for one client until it goes away or the server stops.

    A store or a bus that goes away ends it too: the client comes back, and is told why in an answer of its own.
    """

    def __init__(self, edge: Edge, call: Call, cursor: str, source: Source) -> None:
        self._edge = edge
        self._call = call
        self._cursor = cursor
        self._source = source

    async def __call__(self, send: Send) -> None:
        async with self._source() as batches:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if self._call.scope["method"] != "HEAD":
                # An id without data: who is cut off before the first record still resumes from here.
                await _send(send, b"retry: %d\nid: %s\n\n" % (RETRY_MS, self._cursor.encode()))
                with contextlib.suppress(TidingsError):
                    await self._pass_on(batches, send)
        await send({"type": "http.response.body", "body": b""})

    async def _pass_on(self, batches: AsyncIterator[bytes], send: Send) -> None:
        async with endings(self._edge, self._call) as ending:
            upcoming = asyncio.create_task(_next(batches))
            try:
                while True:
                    await ending.wait(upcoming, HEARTBEAT_S)
                    if ending.is_over:
                        return
                    if not upcoming.done():
                        await _send(send, b": still here\n\n")
                    elif batch := upcoming.result():
                        await _send(send, batch)
                        upcoming = asyncio.create_task(_next(batches))
                    else:
                        return
            finally:
                await cancelled(upcoming)


async def _next(batches: AsyncIterator[bytes]) -> bytes | None:
    return await anext(batches, None)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
