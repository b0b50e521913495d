"""The `serve` process: builds a node from its settings and runs it until it is stopped."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from tidings import __version__
from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.config.checks import is_postgres, without_password
from tidings.domain.facts import Listener
from tidings.domain.fleet import Report
from tidings.edges.cli.exit_codes import program
from tidings.engine import Engine, Settings
from tidings.node.kafka import cluster_of, join_kafka
from tidings.node.stores import CannotStart, check_address, is_there, open_store, shown
from tidings.observe.logs import FactLog
from tidings.observe.logs import configure as configure_logs
from tidings.ports import Store
from tidings.wires.wire import Destinations

if TYPE_CHECKING:
    from tidings.edges.http.auth import KeyRing
    from tidings.node.delivery import NotificationRuntime


URL_DEFAULT = "http://127.0.0.1:8460"
SWITCH_INTERVAL_S = 0.0005  # the writer thread and the event loop switch often
STOP_S_MAX = 4.7
YOUNG_OBJECTS_MAX = (
    10_000  # more than a burst allocates; with Python's default of 700 each object is visited several times
)

logger = logging.getLogger("tidings")


def build_engine(
    store: Store, config: Config, clock: Clock, listeners: Sequence[Listener] = (), url: str = ""
) -> Engine:
    """An engine over a store, with the settings applied; `url` is where other nodes see it listen, if it does."""
    name = config.node.name or f"{socket.gethostname()}:{os.getpid()}"
    settings = Settings(
        limits=config.limits,
        low_jitter_us=config.dispatch.low_priority_jitter_us,
        past=config.dispatch.past,
        id_retention_us=config.ids.retention_us,
        bus="log" if config.kafka.servers is None else "kafka",
        forbidden=Destinations(config.kafka.destinations, config.kafka.schedules.keys()).forbidden,
        about=Report(name, config.node.roles, url, __version__),
    )
    return Engine(store, clock, settings, listeners)


async def serve_node(config: Config, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serve until `stop` is set; `ready` is called with the URL once the node listens.

    The socket is opened first, so that a failed start leaves no new file behind.
    """
    from tidings.edges.http.auth import KeyRing
    from tidings.edges.http.server import listen
    from tidings.node.delivery import add_delivery, check_delivery, try_channels

    clock = SystemClock()
    with listen(config.server.host, config.server.port) as listener:
        check_address(config.store.path, config)
        if not is_there(config.store.path):
            _check_reach(config, has_keys=False)
        if config.kafka.servers is not None:
            cluster_of(config)
        check_delivery(config)
        await try_channels(config)
        store = await open_store(config.store.path, config, clock)
        facts = FactLog(in_fleet=is_postgres(config.store.path))
        host, port = listener.getsockname()[:2]
        engine = build_engine(store, config, clock, [facts], url_of(host, port))
        async with contextlib.AsyncExitStack() as last:  # closed after the engine has stopped
            last.callback(facts.flush)
            try:
                keys = KeyRing(store, clock)
                _check_reach(config, has_keys=not await keys.is_empty())
                runtime = await add_delivery(engine, config, last)
                await _serve(engine, keys, runtime, listener, config, stop, ready)
            finally:
                await engine.stop()


async def _serve(
    engine: Engine,
    keys: "KeyRing",
    runtime: "NotificationRuntime",
    listener: socket.socket,
    config: Config,
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    from tidings.edges.http.app import create_app
    from tidings.edges.http.server import running_on
    from tidings.observe.metrics import Metrics

    kafka = join_kafka(engine, config, runtime.office) if config.kafka.servers is not None else None
    more = [kafka.metrics.lines] if kafka else []
    metrics = Metrics(__version__, engine.count, [*more, runtime.metrics.lines])
    engine.listen(metrics)
    app = create_app(
        engine,
        keys=keys,
        metrics=metrics.render,
        version=__version__,
        office=runtime.office,
        kafka=kafka.topics if kafka else None,
        has_api="api" in config.node.roles,
        server=config.server,
    )
    async with running_on(listener, app) as (host, port):
        await engine.start()
        ready(url_of(host, port))
        is_ready, reason = engine.readiness()
        if not is_ready:
            logger.warning("%s; takes over when the lease is free", reason, extra={"store": shown(config.store.path)})
        await _until(stop, engine)
        logger.info("stopping: finishing the current batch")
        winding_down = asyncio.create_task(_wind_down(engine))
    await winding_down


async def _wind_down(engine: Engine) -> None:
    """Finish the calls to providers, then the lanes, while the server answers its last requests."""
    await engine.drain()
    engine.lanes.stop()


async def _until(stop: asyncio.Event, engine: Engine) -> None:
    """Wait for the signal to stop. A node that can no longer release ends with an error, for another to take over."""
    stopping, working = asyncio.create_task(stop.wait()), asyncio.create_task(engine.wait())
    await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()
    working.cancel()


def _check_reach(config: Config, *, has_keys: bool) -> None:
    """Refuse to listen beyond this machine without API keys."""
    from tidings.edges.http.auth import is_loopback

    host, path = config.server.host, config.store.path
    if is_loopback(host) or has_keys or "api" not in config.node.roles:
        return
    store = without_password(path)
    hint = "" if store == path else "\n(the password is not shown: add it to the URL, or set PGPASSWORD)"
    raise CannotStart(
        f"refusing to listen on {host} without API keys: anyone who can reach it could read and send everything\n"
        f"create a key first:     {program()} keys create admin --tenant default --admin --store {quote(store)}\n"
        f"or listen locally:      {program()} serve --host 127.0.0.1{hint}"
    )


def run_node(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    from tidings.edges.http.server import loop_factory

    logs = config.logs
    configure_logs(logs.level, as_json=None if logs.format == "auto" else logs.format == "json")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_run(config))
    logger.info("stopped")
    return 0


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_leave, stop, number)
    await serve_node(config, stop, lambda url: _ready(url, config))


def _ready(url: str, config: Config) -> None:
    """Exclude the objects of the start from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    _announce(url, config)


def _stop_or_leave(stop: asyncio.Event, number: signal.Signals) -> None:
    """Stop cleanly and in time on the first signal, even if the event loop hangs; exit at once on the second."""
    if stop.is_set():
        os._exit(128 + number)
    stop.set()
    last_resort = threading.Timer(STOP_S_MAX, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()


def _announce(url: str, config: Config) -> None:
    store = config.store.path
    if not sys.stdout.isatty():
        logger.info("listening on %s", url, extra={"url": url, "store": shown(store), "version": __version__})
        return
    here = url_from_here(url)
    other = "" if here == URL_DEFAULT else f" --url {here}"
    sys.stdout.write(
        f"Tidings {__version__} listens on {url}\n"
        f"  store     {shown(store)}\n"
        f"  docs      {here}/docs\n"
        f'  schedule  {program()} schedule --to greetings --at +5s \'{{"hello":"world"}}\'{other}\n'
        f"  follow    {program()} tail greetings{other}\n"
        "  stop      Ctrl-C\n"
    )
    sys.stdout.flush()


def url_of(host: str, port: int) -> str:
    """The URL of an address that the server listens on."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_from_here(url: str) -> str:
    """The same URL for a client on this machine: not every system can connect to the wildcard address."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
