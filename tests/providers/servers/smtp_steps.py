"""An SMTP server that does what a script says at each step: odd replies, pieces of one byte, a closed connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

Step = Literal["mail", "rcpt", "data", "content", "reset"]

OK: dict[Step, bytes] = {
    "mail": b"250 2.1.0 OK\r\n",
    "rcpt": b"250 2.1.5 OK\r\n",
    "data": b"354 go on\r\n",
    "content": b"250 2.0.0 queued\r\n",
    "reset": b"250 2.0.0 reset\r\n",
}
_VERBS: dict[bytes, Step] = {b"MAIL": "mail", b"RCPT": "rcpt", b"DATA": "data", b"RSET": "reset"}


class StepServer:
    """`replies` are those of the next message, by step; those that are missing are good ones.

    `closes` says before which step's reply the connection is closed, once; `holds` which reply comes late, when `over`
    is set. `heard` has all commands and contents.
    """

    def __init__(self, *, pipelines: bool, in_bytes: bool = False) -> None:
        self.replies: dict[Step, bytes] = {}
        self.closes: Step | None = None
        self.holds: Step | None = None
        self.heard: list[bytes] = []
        self.port = 0
        self.connections = 0
        self.waits = asyncio.Event()  # set when a step is held
        self.over = asyncio.Event()
        self._pipelines = pipelines
        self._in_bytes = in_bytes
        self._last = b""
        self.open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.open[task] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(b"220 here\r\n")
            while line := await reader.readuntil(b"\r\n"):
                verb = line[:4].upper()
                if verb == b"EHLO":
                    writer.write(b"250-here\r\n250 PIPELINING\r\n" if self._pipelines else b"250 here\r\n")
                elif verb == b"QUIT" or not await self._answer(_VERBS[verb], line.strip(), writer):
                    break
                elif verb == b"DATA" and self._last.startswith(b"3"):
                    content = line if line == b".\r\n" else await self._content(reader)
                    if not await self._answer("content", content, writer):
                        break
        writer.close()

    async def _content(self, reader: asyncio.StreamReader) -> bytes:
        lines = []
        while (line := await reader.readuntil(b"\r\n")) != b".\r\n":
            lines.append(line)
        return b"".join(lines)

    async def _answer(self, step: Step, heard: bytes, writer: asyncio.StreamWriter) -> bool:
        self.heard.append(heard)
        if self.closes == step:
            self.closes = None
            return False
        if self.holds == step:
            self.holds = None
            self.waits.set()
            await self.over.wait()
            writer.write(OK[step])
            return False
        self._last = self.replies.pop(step, OK[step])
        pieces = [self._last[at : at + 1] for at in range(len(self._last))] if self._in_bytes else [self._last]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return True


@asynccontextmanager
async def serving_steps(*, pipelines: bool, in_bytes: bool = False) -> AsyncIterator[StepServer]:
    """The server on a port of its own, until the end of the block."""
    server = StepServer(pipelines=pipelines, in_bytes=in_bytes)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.over.set()
        listening.close()
        await listening.wait_closed()
        for writer in server.open.values():
            writer.close()
        await asyncio.gather(*server.open)
