"""A node that serves: built from its settings, run until it is told to stop."""

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
SWITCH_INTERVAL_S = 0.0005  # the writer's thread and the loop hand over to each other often
STOP_S_MAX = 4.7
YOUNG_OBJECTS_MAX = 10_000  # more than are alive at once in a burst; with Python's 700 each is looked at several times

logger = logging.getLogger("tidings")


def build_engine(
    store: Store, config: Config, clock: Clock, listeners: Sequence[Listener] = (), url: str = ""
) -> Engine:
    """An engine over a store, told what the settings say, and how it is reached if it is."""
    name = config.node.name or f"{socket.gethostname()}:{os.getpid()}"
    settings = Settings(
        limits=config.limits,
        low_jitter_us=config.dispatch.low_priority_jitter_us,
        id_retention_us=config.ids.retention_us,
        bus="log" if config.kafka.servers is None else "kafka",
        forbidden=Destinations(config.kafka.destinations, config.kafka.schedules.keys()).forbidden,
        about=Report(name, config.node.roles, url, __version__),
    )
    return Engine(store, clock, settings, listeners)


async def serve_node(config: Config, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serve until `stop` is set; `ready` is told the URL once it listens.

    The socket first, so that a start which is refused leaves no new file behind.
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
        facts = FactLog(of_a_fleet=is_postgres(config.store.path))
        host, port = listener.getsockname()[:2]
        engine = build_engine(store, config, clock, [facts], url_of(host, port))
        async with contextlib.AsyncExitStack() as last:  # what is closed once the engine has stopped
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

    joined = join_kafka(engine, config, runtime.office) if config.kafka.servers is not None else None
    more = [joined.metrics.lines] if joined else []
    metrics = Metrics(__version__, engine.count, [*more, runtime.metrics.lines])
    engine.listen(metrics)
    following = joined.following if joined else None
    has_api = "api" in config.node.roles
    app = create_app(
        engine,
        keys=keys,
        metrics=metrics.render,
        version=__version__,
        office=runtime.office,
        kafka=following,
        has_api=has_api,
        server=config.server,
    )
    async with running_on(listener, app) as (host, port):
        await engine.start()
        ready(url_of(host, port))
        is_ready, reason = engine.readiness()
        if not is_ready:
            logger.warning("%s; takes over when it is free", reason, extra={"store": shown(config.store.path)})
        await _until(stop, engine)
        logger.info("stopping: the batch in hand is finished first")
        winding_down = asyncio.create_task(_wind_down(engine))
    await winding_down


async def _wind_down(engine: Engine) -> None:
    """While the server answers its last requests: calls of providers end, then the lanes."""
    await engine.drain()
    engine.lanes.stop()


async def _until(stop: asyncio.Event, engine: Engine) -> None:
    """Wait for the signal to stop. A node that can no longer release ends loudly, for another to take over."""
    stopping, working = asyncio.create_task(stop.wait()), asyncio.create_task(engine.wait())
    await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()
    working.cancel()


def _check_reach(config: Config, *, has_keys: bool) -> None:
    """Without keys nobody but this machine may reach us."""
    from tidings.edges.http.auth import is_loopback

    host, path = config.server.host, config.store.path
    if is_loopback(host) or has_keys or "api" not in config.node.roles:
        return
    store = without_password(path)
    hint = "" if store == path else "\n(the password is not shown: write it into the URL, or set PGPASSWORD)"
    raise CannotStart(
        f"refusing to listen on {host} without API keys: whoever reaches it could read and send everything\n"
        f"make a key first:       {program()} keys create admin --tenant default --admin --store {quote(store)}\n"
        f"or serve this machine:  {program()} serve --host 127.0.0.1{hint}"
    )


def run_node(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; answers the exit code."""
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
    """What is there once a node listens stays to its end: the collector of garbage need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    _announce(url, config)


def _stop_or_leave(stop: asyncio.Event, number: signal.Signals) -> None:
    """The first signal ends in good order and in time, even if the loop hangs; the second at once."""
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
    """The URL of an address that is listened on."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_from_here(url: str) -> str:
    """The same for a client on this machine: an address that stands for all of them cannot be called everywhere."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
