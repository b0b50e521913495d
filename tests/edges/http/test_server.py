"""The server itself: health, metrics, a port in use, and shutdown in time."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.edges.http.site import FAR, NDJSON, VERSION, Site, serving
from tidings.clock import SystemClock
from tidings.domain.errors import Invalid
from tidings.domain.fleet import Report
from tidings.domain.schedules.schedule import Topic
from tidings.edges.http.app import create_app
from tidings.edges.http.server import PortTaken, listen, loop_factory, running, serve
from tidings.engine import Engine
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore


async def test_health_and_readiness(site: Site) -> None:
    assert (await site.call("GET", "/healthz")).document == {"status": "ok", "version": VERSION}
    assert (await site.call("GET", "/readyz")).document == {"status": "ready", "detail": "ready"}


async def test_the_root_redirects_to_the_page(site: Site) -> None:
    for method in ("GET", "HEAD"):
        reply = await site.call(method, "/", allow_redirects=False)
        assert (reply.status, reply.headers["Location"]) == (307, "/docs")
    assert b"<!doctype html>" in (await site.call("GET", "/")).body


async def test_every_document_ends_its_line(site: Site) -> None:
    await site.add(id="a")
    for method, path, document in (
        ("GET", "/healthz", None),
        ("GET", "/openapi.json", None),
        ("GET", "/v1/schedules", None),
        ("GET", "/v1/schedules/a", None),
        ("GET", "/v1/schedules/nothing", None),
        ("PUT", "/v1/schedules/b", {"topic": "t", "at": FAR}),
        ("POST", "/v1/schedules", [{"topic": "t", "at": FAR}]),
        ("GET", "/nothing", None),
    ):
        body = (await site.call(method, path, document)).body
        assert body.endswith(b"\n"), path
        assert not body.endswith(b"\n\n"), path


class Away:
    """A companion that waits for a broker, as the way to Kafka and the intake do."""

    def __init__(self, problem: str) -> None:
        self.problem: str | None = problem
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        await self._stopped.wait()

    def wake(self) -> None:
        """There is nothing to be woken for."""

    def stop(self) -> None:
        self._stopped.set()


RAW = 'KafkaError{code=_TRANSPORT,val=-195,str="Failed to get metadata: Local: Broker transport failure"}'


@pytest.mark.parametrize(
    ("problems", "expected"),
    [
        ([RAW, RAW], "no broker can be reached"),
        ([f"Kafka does not answer: {RAW}", RAW], "no broker can be reached"),
        (['KafkaError{code=X,val=1,str="Local: Timed out"}', "fenced"], "no broker answers in time; fenced"),
        (['KafkaError{FATAL,code=X,val=1,str="say "x""}'], 'say "x"'),
    ],
)
async def test_each_problem_with_kafka_is_reported_once_in_plain_words(problems: list[str], expected: str) -> None:
    clock = SystemClock()
    engine = Engine(MemoryStore(), clock)
    engine.add_service(*map(Away, problems))
    await engine.start()
    try:
        app = create_app(engine, version=VERSION)
        async with running(app) as (host, port), aiohttp.ClientSession() as session:
            reply = await Site(engine, app, session, host, port).call("GET", "/readyz")
    finally:
        await engine.stop()
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert reply.problem["detail"] == f"changes are accepted, but Kafka is unavailable: {expected}"


class StandbyStore(MemoryStore):
    """Owned by another process."""

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        return False

    def lanes(self) -> tuple[()]:
        return ()


async def test_a_standby_is_not_ready() -> None:
    async with serving(StandbyStore()) as site:
        reply = await site.call("GET", "/readyz")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert "another process owns this store, or was killed less than 3 s ago" in reply.problem["detail"]
        assert (await site.call("GET", "/healthz")).status == 200
        assert b"tidings_owner 0" in (await site.call("GET", "/metrics")).body


async def test_metrics_count_what_happened(site: Site) -> None:
    await site.publish("greetings", value="x")
    await site.add(id="later")
    await site.call("POST", "/v1/schedules", {"topic": "no spaces"})
    await site.call("POST", "/v1/schedules", {"topic": "a", "zzz": 1})
    reply = await site.call("GET", "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    for line in (
        "tidings_released_total 1",
        "tidings_pending 1",
        'tidings_commands_total{outcome="scheduled"} 2',
        'tidings_refused_total{field="topic"} 1',
        'tidings_refused_total{field="body"} 1',
        "tidings_lateness_seconds_count 1",
        "tidings_up 1",
    ):
        assert f"{line}\n" in text


async def test_metrics_are_not_found_without_a_renderer() -> None:
    engine = Engine(MemoryStore(), SystemClock())
    app = create_app(engine, version="1")
    async with running(app) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        await writer.wait_closed()
    await engine.stop()


def test_a_port_in_use_says_what_to_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port} is in use by another program.*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(Invalid, match="is not an address of this machine: choose"):
        listen("192.0.2.1", 0)
    with pytest.raises(Invalid, match="host: 'no such host' is not an address"):
        listen("no such host", 80)


async def test_it_listens_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    engine = Engine(MemoryStore(), SystemClock())
    try:
        async with running(create_app(engine, version="1"), "::1") as (host, _):
            assert host == "::1"
    except PortTaken:
        pytest.skip("no IPv6 here")
    finally:
        await engine.stop()


async def test_it_ends_in_time_with_streams_polls_and_uploads_open() -> None:
    clock = SystemClock()

    async def endless() -> AsyncIterator[bytes]:
        yield f'{{"topic": "a", "at": "{FAR}"}}\n'.encode()
        await asyncio.Event().wait()

    async with serving(MemoryStore()) as site:
        stream = await site.session.get(site.at("/v1/topics/a/stream"))
        poll = asyncio.create_task(site.call("GET", "/v1/topics/a/records?wait=60"))
        upload = await site.session.post(site.at("/v1/schedules"), data=endless(), headers=NDJSON)
        assert b"scheduled" in await upload.content.readline()
        await eventually(lambda: len(site.engine.following._signals) == 1)
        began = clock.elapsed()
        site.app.stop()
        assert (await poll).document["records"] == []
        assert b"retry" in await stream.content.read()
        assert await upload.content.read() == b""
        assert (await site.call("GET", "/readyz")).status == 503
    assert clock.elapsed() - began < 3_000_000


@pytest.mark.slow
async def test_it_ends_in_time_with_a_client_that_reads_nothing() -> None:
    clock = SystemClock()
    async with serving(MemoryStore()) as site:
        for n in range(40):
            await site.publish("large", value="x" * 500_000, key=str(n))
        reader, writer = await asyncio.open_connection(site.host, site.port, limit=1024)
        writer.write(f"GET /v1/topics/large/stream HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
        await reader.readline()
        began = clock.elapsed()
    assert clock.elapsed() - began < 3_500_000
    writer.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(number: signal.Signals) -> None:
    async def main() -> list[tuple[str, int]]:
        engine = Engine(MemoryStore(), SystemClock())
        addresses: list[tuple[str, int]] = []

        def started(host: str, port: int) -> None:
            addresses.append((host, port))
            asyncio.get_running_loop().call_soon(signal.raise_signal, number)

        await serve(create_app(engine, version="1"), port=0, started=started)
        await engine.stop()
        return addresses

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        [(host, port)] = runner.run(main())
    assert host == "127.0.0.1"
    assert port > 0


async def test_an_event_ends_it() -> None:
    engine = Engine(MemoryStore(), SystemClock())
    stop = asyncio.Event()
    app = create_app(engine, version="1")
    await serve(app, port=0, stop=stop, started=lambda host, port: stop.set())
    await engine.stop()


class SilentStore(MemoryStore):
    """A store that does not answer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def topics(self, tenant: str) -> list[Topic]:
        self.asked.set()
        await asyncio.Event().wait()
        return []


@pytest.mark.slow
async def test_a_request_that_waits_for_a_silent_store_is_answered_at_shutdown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SilentStore()
    async with aiohttp.ClientSession() as session:
        async with serving(store) as site:
            asking = asyncio.create_task(session.get(site.at("/v1/topics")))
            await store.asked.wait()
        reply = await asking
        assert reply.status == 503
        assert "shutting down: try again" in (await reply.json(content_type=None))["detail"]
    assert "Traceback" not in caplog.text


class BrokenStore(MemoryStore):
    """Has a fault of its own."""

    async def topics(self, tenant: str) -> list[Topic]:
        raise RuntimeError("a bug")


async def test_an_internal_error_is_a_problem_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(BrokenStore()) as site:
        reply = await site.call("GET", "/v1/topics")
        assert reply.status == 500
        assert "a bug" not in reply.body.decode()
        assert "log" in reply.problem["detail"]
    assert "a bug" in caplog.text
