"""A network between a client and any server: passes bytes on, cuts all connections, or falls silent.

    with Pipe(postgres.port) as pipe:        # clients connect to pipe.port
        pipe.silence()                       # nothing passes, nothing ends: a cable is pulled
        ...
        pipe.mend(deliver=True)              # and is put back: what was on its way arrives late

It does not know what it passes (proxy.py does, for Kafka).
"""

import array
import contextlib
import fcntl
import selectors
import socket
import termios
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal, Self

from tests.servers.ports import HOST

CHUNK_BYTES = 65_536
ANSWER_S_MAX = 10.0


class Pipe:
    """One thread passes everything. As a context manager it ends with the block."""

    def __init__(self, upstream: int) -> None:
        self.passed = 0  # bytes, both ways
        self._upstream = upstream
        self._listener = socket.create_server((HOST, 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._state: Literal["open", "silent", "cut", "closed"] = "open"
        self._others: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._bell, self._ringer = socket.socketpair()
        for heard in (self._bell, self._listener):
            self._selector.register(heard, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> int:
        """Cut all connections, and new ones until `mend`; returns how many there were."""
        return self._order(self._cut)

    def silence(self) -> int:
        """From now on nothing passes, in either direction, and nothing ends; returns how many links there are."""
        return self._order(self._silence)

    def mend(self, *, deliver: bool = True) -> int:
        """Pass bytes again. Those that came meanwhile are delivered late, or lost together with their links.

        Returns how many bytes that were, on the way to the server.
        """
        return self._order(lambda: self._mend(deliver))

    def close(self) -> None:
        """Cut all connections for good."""
        self._order(self._close)
        self._thread.join()

    # Its thread

    def _order(self, act: Callable[[], int]) -> int:
        answers: SimpleQueue[int] = SimpleQueue()
        self._orders.put(lambda: answers.put(act()))
        self._ringer.send(b"!")
        return answers.get(timeout=ANSWER_S_MAX)

    def _run(self) -> None:
        while self._state != "closed":
            for key, _ in self._selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if source is self._bell:
                    source.recv(1)
                    self._orders.get()()
                    break  # what else was ready may be gone
                if source is self._listener:
                    self._accept()
                elif source in self._others:
                    self._pass(source)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self._state == "cut":
                raise ConnectionRefusedError
            server = socket.create_connection((HOST, self._upstream))
        except OSError:
            client.close()
            return
        for end, other in ((client, server), (server, client)):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _pass(self, source: socket.socket) -> None:
        try:
            chunk = source.recv(CHUNK_BYTES)
            if chunk:
                self.passed += len(chunk)
                self._others[source].sendall(chunk)
                return
        except OSError:
            pass
        self._end(source)

    def _end(self, end: socket.socket) -> None:
        for each in (end, self._others[end]):
            del self._others[each]
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            each.close()

    def _cut(self) -> int:
        links = len(self._others) // 2
        while self._others:
            self._end(next(iter(self._others)))
        self._state = "cut"
        return links

    def _silence(self) -> int:
        self._state = "silent"
        for each in (self._listener, *self._others):
            self._selector.unregister(each)
        return len(self._others) // 2

    def _mend(self, deliver: bool) -> int:
        held = sum(_unread(each) for each in self._others if each.getpeername()[1] != self._upstream)
        if self._state == "silent":
            for each in (self._listener, *self._others):
                self._selector.register(each, selectors.EVENT_READ)
            if not deliver:
                self._cut()
        self._state = "open"
        return held

    def _close(self) -> int:
        links = self._cut()
        self._state = "closed"
        self._selector.close()
        for each in (self._listener, self._bell, self._ringer):
            each.close()
        return links


def _unread(end: socket.socket) -> int:
    """The number of bytes that arrived and were not read."""
    size = array.array("i", [0])
    fcntl.ioctl(end.fileno(), termios.FIONREAD, size)
    return size[0]
