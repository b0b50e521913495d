"""Limits on open reads (streams, pages and long polls), and the connections that they are sent over."""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Protocol

from starlette.types import Scope, Send

from tidings.config.settings import Server
from tidings.edges.http.auth import Caller
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal

if TYPE_CHECKING:
    from tidings.edges.http.routes import Call, Edge, Handler, Reply

_RETRY = {"retry-after": str(RETRY_AFTER_S)}


class Readers:
    """Counts the reads that are open, or whose answer the client has not fetched yet, by API key and in all."""

    def __init__(self, limits: Server) -> None:
        self._limits = limits
        self._by_key: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many reads are open."""
        return self._by_key.total()

    def admit(self, caller: Caller) -> Callable[[], None]:
        """Count one more read; returns the function that ends it. Raises a refusal if there are too many."""
        own, most = self._limits.readers_per_key_max, self._limits.readers_max
        if self._by_key[caller.key] >= own:
            holder = f"the key {caller.key!r} has" if caller.key else "clients without a key have"
            detail = f"{holder} {own} reads open, the most for one key (server.readers_per_key_max): close some of them"
            raise Refusal("quota", detail, headers=_RETRY)
        if self.count >= most:
            detail = f"{most} reads are open, the most for one node (server.readers_max): try again later"
            raise Refusal("unavailable", detail, headers=_RETRY)
        self._by_key[caller.key] += 1
        return lambda: self._end(caller.key)

    def _end(self, key: str) -> None:
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]


class BufferedAnswers:
    """The bytes of answers that are buffered, on all connections, for clients that send everything before they read."""

    def __init__(self) -> None:
        self.size_bytes = 0


class Connection(Protocol):
    """The connection of a request, for the sender of a long answer. `last_words` are sent before a disconnect."""

    last_words: bytes | None

    @property
    def is_full(self) -> bool:
        """Whether the client has to read before more is written."""
        ...

    async def drained(self) -> None:
        """Wait until the client has read most of what was written, or is gone."""
        ...

    def abort(self) -> None:
        """Close at once; what was not read is lost."""
        ...


class _Unbuffered:
    """The connection of a server other than ours, which has its own flow control."""

    last_words: bytes | None = None
    is_full = False

    async def drained(self) -> None:
        """Return at once: the state of its buffer is not known."""

    def abort(self) -> None:
        """Nothing to do: it ends by itself."""


def connection_of(scope: Scope) -> Connection:
    """The connection of a request."""
    found: Connection | None = scope.get("state", {}).get("connection")
    return _Unbuffered() if found is None else found


def counted(edge: "Edge", handler: "Handler") -> "Handler":
    """The same handler, counted as one read from its start until the client has fetched the answer."""

    @wraps(handler)
    async def admitted(call: "Call") -> "Reply":
        end = edge.readers.admit(call.caller)
        try:
            return _Counted(await handler(call), connection_of(call.scope), end)
        except BaseException:
            end()
            raise

    return admitted


class _Counted:
    """An answer that ends its read once the client has fetched it."""

    def __init__(self, reply: "Reply", connection: Connection, end: Callable[[], None]) -> None:
        self._reply = reply
        self._connection = connection
        self._end = end

    async def __call__(self, send: Send) -> None:
        try:
            await self._reply(send)
            await self._connection.drained()
        finally:
            self._end()
