"""One SMTP connection after its login: writes commands, several at once where the server allows it, and reads replies.

aiosmtplib connects, starts TLS and logs in; then this protocol takes over its transport, because a message needs two
round trips with PIPELINING (RFC 2920) instead of four, and a fraction of the CPU.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

from tidings.clock import Clock
from tidings.tasks import Deadlines

REPLY_BYTES_MAX = 64 * 1024  # of all replies to one message

_CODES = {str(code).encode(): code for code in range(200, 600)}


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A reply of the server; `text` has all of its lines."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """What is written at once, and the first digit that the reply to each of its commands must have."""

    data: bytes
    wanted: tuple[int, ...]


class Dialogue:
    """Exchanges, each begun once all replies to the one before are as wanted; and how far they came.

    `received` counts the replies, and `accepted` those before the first one that is not as wanted, which is `refused`.
    `last_code` is the code of the last reply after a refusal. `written` counts the exchanges that were begun, and
    `expected` the replies to them.
    """

    __slots__ = ("accepted", "exchanges", "expected", "last_code", "received", "refused", "written")

    def __init__(self, *exchanges: Exchange) -> None:
        self.exchanges = exchanges
        self.refused: Reply | None = None
        self.received = self.accepted = self.written = self.expected = self.last_code = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be written."""
        return self.refused is not None or self.written == len(self.exchanges)

    def begin(self) -> bytes:
        """The data of the next exchange."""
        exchange = self.exchanges[self.written]
        self.written += 1
        self.expected += len(exchange.wanted)
        return exchange.data

    def take_all(self, data: bytes) -> bool:
        """Take all replies to the exchange that was begun last, if this is exactly these, each as wanted and in one
        line, as most are; nothing otherwise."""
        wanted = self.exchanges[self.written - 1].wanted
        count = len(wanted)
        if self.received + count != self.expected or _as_wanted(wanted).fullmatch(data) is None:
            return False
        self.received += count
        self.accepted += count
        return True

    def take(self, reply: Reply) -> None:
        """The next reply to the exchange that was begun last."""
        if self.refused is None:
            wanted = self.exchanges[self.written - 1].wanted
            if reply.code // 100 == wanted[self.received - self.expected]:
                self.accepted += 1
            else:
                self.refused = reply
        self.received += 1
        self.last_code = reply.code


@lru_cache
def _as_wanted(wanted: tuple[int, ...]) -> re.Pattern[bytes]:
    """One line for each reply, which begins with the digit that is wanted."""
    return re.compile(b"".join([rb"%d[0-9]{2}(?: [^\r\n]*)?\r\n" % digit for digit in wanted]))


class SessionLost(Exception):
    """The connection was closed, or what came was not SMTP. The replies so far are in the dialogue."""


class SessionTimeout(SessionLost):
    """A reply did not come in time."""


class Session(asyncio.Protocol):
    """Takes over a transport, and holds one dialogue after the other."""

    def __init__(
        self,
        transport: asyncio.Transport,
        clock: Clock,
        deadlines: "Deadlines[Session]",
        timeout_s: float,
        *,
        pipelines: bool,
        takes_utf8: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._clock = clock
        self._deadlines = deadlines
        self._timeout_s = timeout_s
        self.pipelines = pipelines
        self.takes_utf8 = takes_utf8
        self._dialogue = Dialogue()
        self._waiter: asyncio.Future[None] | None = None
        self._lost: SessionLost | None = None
        self._rest = b""
        self._lines: list[str] = []
        self._received = 0
        transport.set_protocol(self)

    async def hold(self, dialogue: Dialogue) -> None:
        """Hold a dialogue until its end, or until a reply is not as wanted; `SessionLost` if replies do not come."""
        if self._lost is not None:
            raise self._lost
        self._dialogue, self._received = dialogue, 0
        self._waiter = self._loop.create_future()
        self._write()
        try:
            await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._waiter = None
            self._deadlines.remove(self)

    def quit(self) -> None:
        """Say goodbye, and close without waiting for the reply."""
        if self._lost is None:
            self._transport.write(b"QUIT\r\n")
        self._lost = self._lost or SessionLost("the connection was closed")
        self._transport.close()

    def close(self) -> None:
        """Close at once."""
        self._lost = self._lost or SessionLost("the connection was closed")
        self._transport.abort()

    def _write(self) -> None:
        """Begin the next exchange, which has its own time."""
        self._deadlines.add(self, self._timeout_s, self._clock.elapsed())
        self._transport.write(self._dialogue.begin())

    def time_out(self) -> None:
        """End the dialogue: the server took too long."""
        self._lose(SessionTimeout("no reply in time"))

    def _lose(self, error: SessionLost) -> None:
        self._lost = self._lost or error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self._transport.abort()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self._lose(SessionLost("the server closed the idle connection"))  # "421 idle for too long", or nonsense
            return
        self._received += len(data)
        if self._received > REPLY_BYTES_MAX:
            self._lose(SessionLost(f"the replies are larger than {REPLY_BYTES_MAX} bytes"))
            return
        dialogue = self._dialogue
        if self._rest or self._lines or not dialogue.take_all(data):
            error = self._read(data)
            if error:
                self._lose(SessionLost(error))
                return
            if dialogue.received < dialogue.expected:
                return
        if dialogue.is_over:
            self._waiter.set_result(None)
        else:
            self._write()

    def _read(self, data: bytes) -> str:
        """Read the next piece of the replies; returns what is wrong with it."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            error = self._take(line.rstrip(b"\r"))
            if error:
                return error
        return ""

    def _take(self, line: bytes) -> str:
        """Take one line of a reply (`250-more` or `250 last`); returns what is wrong with it."""
        code, separator = _CODES.get(line[:3]), line[3:4]
        if code is None or separator not in {b" ", b"-", b""}:
            return "the server does not speak SMTP"
        dialogue = self._dialogue
        if dialogue.received == dialogue.expected:
            return "the server sent more replies than it was asked for"
        self._lines.append(line[4:].decode("utf-8", "replace"))
        if separator != b"-":
            dialogue.take(Reply(code, "\n".join(self._lines)))
            self._lines = []
        return ""

    def eof_received(self) -> bool:
        self._lose(SessionLost("the server closed the connection"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(SessionLost(str(error) if error else "the server closed the connection"))


def dot_stuffed(content: bytes) -> bytes:
    """A message as it follows DATA: dots at the beginning of its lines doubled, and the final dot.

    All of its lines must end with CRLF, as `compose` writes them: a bare CR or LF would let text be read as the end of
    the message by some servers (SMTP smuggling).
    """
    return content.replace(b"\r\n.", b"\r\n..") + b".\r\n"


Connection = TypeVar("Connection")


class Lease(Generic[Connection]):
    """One connection while somebody uses it; `is_kept` says that it was used before."""

    __slots__ = ("connection", "returned", "uses")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.uses = 1
        self.returned = 0

    @property
    def is_kept(self) -> bool:
        return self.uses > 1


class Pool(Generic[Connection]):
    """A call that finds all connections in use waits for its turn."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        disconnect: Callable[[Connection], None],
        clock: Clock,
        *,
        size: int,
        uses_max: int,
        idle_us: int,
    ) -> None:
        self._connect, self._disconnect = connect, disconnect
        self._clock = clock
        self._free = size  # turns: so many more connections may be in use
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._uses_max, self._idle_us = uses_max, idle_us
        self._idle: list[Lease[Connection]] = []

    def take_idle(self) -> Lease[Connection] | None:
        """The connection that was used last, if one is free at once. Give it back."""
        lease = self._pop_idle() if self._free else None
        if lease is not None:
            self._free -= 1
        return lease

    async def take(self, *, fresh: bool = False) -> Lease[Connection]:
        """The connection that was used last, or a new one; raises what connecting raises. Give it back."""
        if self._free:
            self._free -= 1
        else:
            await self._wait()
        try:
            lease = None if fresh else self._pop_idle()
            return Lease(await self._connect()) if lease is None else lease
        except BaseException:
            self._release()
            raise

    def give(self, lease: Lease[Connection], *, usable: bool) -> None:
        """Put it back for the next, or close it."""
        try:
            if usable and lease.uses < self._uses_max:
                lease.returned = self._clock.elapsed()
                self._idle.append(lease)
            else:
                self._disconnect(lease.connection)
        finally:
            self._release()

    def close(self) -> None:
        """Close those that are not in use."""
        while self._idle:
            self._disconnect(self._idle.pop().connection)

    def _pop_idle(self) -> Lease[Connection] | None:
        while self._idle:
            lease = self._idle.pop()
            if self._clock.elapsed() - lease.returned <= self._idle_us:
                lease.uses += 1
                return lease
            self._disconnect(lease.connection)
        return None

    async def _wait(self) -> None:
        """Wait for a turn, which `_release` hands to the one that has waited longest."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
