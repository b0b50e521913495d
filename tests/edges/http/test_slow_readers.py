"""Clients that do not read: their cost, when they are disconnected, and how many may read at once."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest

from tests.edges.http.site import Site, serving
from tidings.config.settings import Server
from tidings.edges.http.auth import make_key
from tidings.edges.http.server import CHECKS, BoundedProtocol
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

RECORD_BYTES = 200_000
RECORDS = 60  # more than the socket buffers of the kernel take
BATCH_BYTES = 512 * 1024
HOUR_US = 3_600_000_000


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[BoundedProtocol]:
    """The server's side of every connection, in the order in which they were opened."""
    made: list[BoundedProtocol] = []
    original = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        made.append(self)
        original(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    return made


@asynccontextmanager
async def filled(server: Server) -> AsyncIterator[Site]:
    """A server whose topic `large` has more than a client can take without reading."""
    async with serving(MemoryStore(), server=server) as site:
        lines = [json.dumps({"key": str(n), "value": "x" * RECORD_BYTES}) for n in range(RECORDS)]
        headers = {"Content-Type": "application/x-ndjson"}
        await site.call("POST", "/v1/topics/large/records", data="\n".join(lines).encode(), headers=headers)

        async def all_released() -> bool:
            [topic] = (await site.call("GET", "/v1/topics")).document["topics"]
            return bool(topic["records"] == RECORDS)

        await eventually(all_released)
        yield site


@contextmanager
def stuck(site: Site, request: str = "GET /v1/topics/large/stream", body: str = "") -> Iterator[socket.socket]:
    """A client that sends a request and reads nothing."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect((site.host, site.port))
        client.sendall(f"{request} HTTP/1.1\r\nHost: localhost\r\n{body or chr(13) + chr(10)}".encode())
        yield client


async def read_to_end(client: socket.socket) -> bytes:
    """All that is left, until the server closes."""
    client.setblocking(False)
    loop, parts = asyncio.get_running_loop(), list[bytes]()
    async with asyncio.timeout(20):
        while part := await loop.sock_recv(client, 1_000_000):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.slow
async def test_a_client_that_does_not_read_holds_one_batch(connections: list[BoundedProtocol]) -> None:
    async with filled(Server(slow_reader_timeout_us=HOUR_US)) as site, AsyncExitStack() as clients:
        before = len(connections)
        for _ in range(10):
            clients.enter_context(stuck(site))
        await eventually(lambda: len(connections) == before + 10 and all(each.is_full for each in connections[before:]))
        held = [each.transport.get_write_buffer_size() for each in connections[before:]]
        assert max(held) < BATCH_BYTES + RECORD_BYTES + 10_000
        await site.call("GET", "/v1/topics")  # others are served, and nothing more was written meanwhile
        assert held == [each.transport.get_write_buffer_size() for each in connections[before:]]


@pytest.mark.slow
async def test_a_stream_that_is_not_read_ends_with_the_reason(
    connections: list[BoundedProtocol], caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(Server(slow_reader_timeout_us=400_000)) as site:
        with caplog.at_level(logging.WARNING, "tidings.http"), stuck(site) as client:
            await eventually(lambda: bool(caplog.records))
            end = await read_to_end(client)
        [line] = caplog.records
        about = vars(line)
        assert "read nothing for 0.4 s (server.slow_reader_timeout)" in line.getMessage()
        assert (about["path"], about["tenant"], about["key"]) == ("/v1/topics/large/stream", "default", "")
        assert about["bytes"] > 64 * 1024
        _, _, error = end.rpartition(b"event: error\ndata: ")
        assert error.endswith(b"\r\n0\r\n\r\n")  # the stream ends as HTTP wants it
        problem = json.loads(error.partition(b"\n")[0])
        assert problem["type"] == "urn:tidings:problem:slow_reader"
        assert "connect again" in problem["detail"]
        await eventually(lambda: not site.app.edge.readers.count)


@pytest.mark.slow
async def test_an_answer_that_is_not_read_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with filled(Server(slow_reader_timeout_us=200_000)) as site:
        # Several requests at once: one answer may fit into the socket buffers of the kernel.
        request = "GET /v1/topics/large/records?wait=1"
        more = f"\r\n{request} HTTP/1.1\r\nHost: localhost\r\n" * 30 + "\r\n"
        with caplog.at_level(logging.WARNING, "tidings.http"), stuck(site, request, more):
            await eventually(lambda: bool(caplog.records))
            await eventually(lambda: not site.app.edge.readers.count)


@pytest.mark.slow
async def test_a_client_that_does_not_read_its_outcomes_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    line = '{"topic": "t", "at": "2030-01-01T00:00:00Z", "labels": {"a": "b"}, "value": 1}\n'
    body = f"Content-Type: application/x-ndjson\r\nContent-Length: 1000000000\r\n\r\n{line * 200}"
    async with serving(MemoryStore(), server=Server(slow_reader_timeout_us=200_000)) as site:
        with caplog.at_level(logging.WARNING, "tidings.http"), stuck(site, "POST /v1/schedules", body) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            while not caplog.records:
                sending = loop.sock_sendall(client, line.encode() * 1_000)
                try:
                    await asyncio.wait_for(sending, 1)
                except (TimeoutError, ConnectionError):
                    await eventually(lambda: bool(caplog.records))
            assert vars(caplog.records[0])["path"] == "/v1/schedules"
            await eventually(lambda: site.app.edge.buffered_answers.size_bytes == 0)


@pytest.mark.slow
async def test_a_client_that_reads_slowly_stays(connections: list[BoundedProtocol]) -> None:
    async with filled(Server(slow_reader_timeout_us=HOUR_US)) as site:
        before = len(connections)
        with stuck(site) as client:
            await eventually(lambda: len(connections) > before and connections[-1].is_full)
            connection = connections[-1]
            loop = asyncio.get_running_loop()
            client.setblocking(False)
            for _ in range(3):
                for _ in range(CHECKS - 1):
                    connection._check()
                assert not connection.transport.is_closing()
                size = connection.transport.get_write_buffer_size()
                while connection.transport.get_write_buffer_size() == size:
                    await loop.sock_recv(client, 10_000)
                await eventually(lambda: connection.is_full)
            checks = 0
            while not connection.transport.is_closing():
                connection._check()
                checks += 1
            assert CHECKS <= checks <= CHECKS + 1


@pytest.mark.slow
async def test_a_server_stops_although_a_client_does_not_read(connections: list[BoundedProtocol]) -> None:
    async with filled(Server(slow_reader_timeout_us=HOUR_US)) as site:
        before = len(connections)
        client = stuck(site)
        with client:
            await eventually(lambda: len(connections) > before and connections[-1].is_full)
            site.app.stop()
            await eventually(lambda: not site.app.edge.readers.count)


async def test_a_key_has_so_many_readers() -> None:
    store = MemoryStore()
    key, kept = make_key("app", "acme", admin=False, now=0)
    other, kept_too = make_key("other", "acme", admin=False, now=0)
    await store.add_key(kept)
    await store.add_key(kept_too)
    limits = Server(readers_per_key_max=2, readers_max=3)
    async with serving(store, key=key, server=limits) as site, AsyncExitStack() as streams:
        others = {"Authorization": f"Bearer {other}"}
        path = "/v1/topics/news/stream"
        first = await streams.enter_async_context(site.session.get(site.at(path)))
        await streams.enter_async_context(site.session.get(site.at(path)))
        refused = await site.call("GET", path)
        assert (refused.status, refused.problem["type"]) == (429, "urn:tidings:problem:quota")
        assert "the key 'app' has 2 reads open" in refused.problem["detail"]
        assert "Retry-After" in refused.headers
        assert (await site.call("GET", "/v1/topics/news/records?wait=1")).status == 429
        await streams.enter_async_context(site.session.get(site.at(path), headers=others))
        full = await site.call("GET", path, headers=others)
        assert (full.status, full.problem["type"]) == (503, "urn:tidings:problem:unavailable")
        assert "server.readers_max" in full.problem["detail"]
        assert (await site.call("GET", "/v1/topics")).status == 200  # what is no read is not counted
        first.close()
        await eventually(lambda: site.app.edge.readers.count == 2)
        assert (await site.call("GET", "/v1/topics/news/records")).status == 200


async def test_a_node_has_so_many_connections() -> None:
    async with serving(MemoryStore(), server=Server(connections_max=1)) as site:
        async with site.session.get(site.at("/v1/topics/news/stream")) as stream:
            assert stream.status == 200
            refused = await site.call("GET", "/v1/topics")
            assert (refused.status, refused.headers["Connection"]) == (503, "close")
            assert "server.connections_max" in refused.problem["detail"]
            assert (await site.call("GET", "/healthz")).status == 200
        await eventually(lambda: not site.app.edge.readers.count)
        assert (await site.call("GET", "/v1/topics")).status == 200
