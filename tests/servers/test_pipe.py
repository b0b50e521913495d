"""The pipe: passing, silence and cuts."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.servers.pipe import Pipe
from tests.servers.ports import HOST


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            with client:
                if (said := client.recv(100)) == b"end":
                    return
                while said:
                    client.sendall(said)
                    said = client.recv(100)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    with socket.create_connection(listener.getsockname()) as last:
        last.sendall(b"end")
        thread.join()
    listener.close()


def client(pipe: Pipe) -> socket.socket:
    return socket.create_connection((HOST, pipe.port), timeout=5)


def is_ended(end: socket.socket) -> bool:
    try:
        return not end.recv(100)
    except ConnectionError:
        return True


def test_bytes_pass(echo: int) -> None:
    with Pipe(echo) as pipe, client(pipe) as end:
        end.sendall(b"hello")
        assert end.recv(100) == b"hello"
        assert pipe.passed == 10


def test_silence_holds_bytes_and_delivers_them_late(echo: int) -> None:
    with Pipe(echo) as pipe, client(pipe) as end:
        end.sendall(b"one")
        assert end.recv(100) == b"one"
        before = pipe.passed
        assert pipe.silence() == 1
        end.sendall(b"two")
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(100)
        assert pipe.passed == before
        assert pipe.mend() == 3
        end.settimeout(5)
        assert end.recv(100) == b"two"


def test_silence_may_end_in_lost_bytes(echo: int) -> None:
    with Pipe(echo) as pipe:
        with client(pipe) as end:
            end.sendall(b"one")
            assert end.recv(100) == b"one"
            pipe.silence()
            end.sendall(b"two")
            assert pipe.mend(deliver=False) == 3
            assert is_ended(end)
        with client(pipe) as end:
            end.sendall(b"three")
            assert end.recv(100) == b"three"


def test_a_cut_ends_links_and_refuses_new_ones(echo: int) -> None:
    with Pipe(echo) as pipe, client(pipe) as end:
        end.sendall(b"one")
        assert end.recv(100) == b"one"
        assert pipe.cut() == 1
        assert not end.recv(100)
        with client(pipe) as other:
            assert is_ended(other)
        pipe.mend()
        with client(pipe) as other:
            other.sendall(b"two")
            assert other.recv(100) == b"two"
