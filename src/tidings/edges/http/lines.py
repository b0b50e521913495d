"""A body that streams in, cut into lines and the lines into batches."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

from starlette.types import Message

from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import Disconnected
from tidings.edges.http.routing import Call

BATCH_LINES = 1000
LINGER_S = 0.002  # how long a batch that is not full waits for more


class Batch(NamedTuple):
    """Some lines, and the number of the first from 1. None stands for a line that was too long to keep."""

    first: int
    lines: list[bytes | None]


class Lines:
    """Cuts chunks into lines. A line above the bound is passed over without being kept."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The lines that this chunk completes, without their ends; None in the place of one too long."""
        first, *lines = chunk.split(b"\n")
        if not lines:
            self._keep(first)
            return []
        self._keep(first)
        complete: list[bytes | None] = [self._take()]
        rest = lines.pop()
        if len(chunk) > self._line_bytes_max:
            complete += [line if len(line) <= self._line_bytes_max else None for line in lines]
        else:
            complete += lines
        self._keep(rest)
        return complete

    def finish(self) -> list[bytes | None]:
        """What stands behind the last line's end, if anything does."""
        return [self._take()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._line_bytes_max:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _take(self) -> bytes | None:
        line = b"".join(self._parts) if self._size <= self._line_bytes_max else None
        self._parts.clear()
        self._size = 0
        return line


class BodyLines:
    """Batches of lines as a body brings them.

    With an idempotency key a batch is always full, so that a repeat is cut alike. Without one it also ends
    where the client pauses, which may wait for the answers before it goes on.
    """

    def __init__(self, edge: Edge, call: Call, *, keyed: bool) -> None:
        self._lines = Lines(edge.engine.settings.limits.line_bytes_max)
        self._receive = call.receive
        self._stopping = edge.stopping
        self._keyed = keyed
        self._first = 1
        self._waiting: list[bytes | None] = []

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Until the body ends, or the server stops."""
        stopping = asyncio.create_task(self._stopping.wait())
        receiving = self._next_message()
        try:
            more = True
            while more:
                await self._wait(receiving, stopping, linger=bool(self._waiting) and not self._keyed)
                if not receiving.done():
                    if stopping.done():
                        break
                    yield self._take(BATCH_LINES)
                    continue
                message = receiving.result()
                if message["type"] != "http.request":
                    raise Disconnected
                more = message.get("more_body", False)
                if more:
                    receiving = self._next_message()
                for batch in self._cut(message.get("body", b""), last=not more):
                    yield batch
        finally:
            stopping.cancel()
            receiving.cancel()
        if self._waiting and not self._keyed:
            yield self._take(BATCH_LINES)

    async def _wait(self, receiving: asyncio.Task[Message], stopping: asyncio.Task[bool], *, linger: bool) -> None:
        """Until there is more, or the server stops, or a batch has waited long enough."""
        if not receiving.done():
            timeout = LINGER_S if linger else None
            await asyncio.wait({receiving, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    def _next_message(self) -> asyncio.Task[Message]:
        return asyncio.ensure_future(self._receive())

    def _cut(self, chunk: bytes, *, last: bool) -> Iterator[Batch]:
        """The batches that a chunk fills; the last chunk gives up what is left too."""
        self._waiting += self._lines.feed(chunk)
        if last:
            self._waiting += self._lines.finish()
        while len(self._waiting) >= BATCH_LINES or (last and self._waiting):
            yield self._take(BATCH_LINES)

    def _take(self, count: int) -> Batch:
        """The next lines, that many at most."""
        batch = Batch(self._first, self._waiting[:count])
        if self._first == 1 and batch.lines[0]:
            batch.lines[0] = batch.lines[0].removeprefix(BOM_UTF8)
        del self._waiting[:count]
        self._first += len(batch.lines)
        return batch
