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
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tidings import __version__
from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.config.checks import is_postgres, without_password
from tidings.domain.facts import Listener
from tidings.domain.fleet import Report
from tidings.edges.cli.exit_codes import program
from tidings.engine import Engine, Settings
from tidings.node.kafka import cluster_of, join_kafka
from tidings.node.stores import CannotStart, check_address, check_processes, is_there, open_store, shown
from tidings.node.supervisor import Member, Render, parse_member, supervise
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
HANDLER_CLOSED = "the handler is closed"  # in the text of uvloop's error
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
        about=Report(name, config.node.roles, url, __version__, channels=config.node.channels),
    )
    return Engine(store, clock, settings, listeners)


def named(config: Config, member: Member | None) -> Config:
    """The settings of one of several processes: each has a name of its own in the fleet."""
    if member is None or config.node.name is None:
        return config  # nodes without a name are named after their process
    return replace(config, node=replace(config.node, name=f"{config.node.name}-{member.number}"))


async def serve_node(
    config: Config, stop: asyncio.Event, ready: Callable[[str], None], member: Member | None = None
) -> None:
    """Serve until `stop` is set; `ready` is called with the URL once the node listens. `member`: of several processes.

    The socket is opened first, so that a failed start leaves no new file behind.
    """
    from tidings.edges.http.auth import KeyRing
    from tidings.edges.http.server import listen
    from tidings.node.delivery import add_delivery, check_delivery, try_channels

    clock = SystemClock()
    with listen(config.server.host, config.server.port) if member is None else member.inherited() as listener:
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
        engine = build_engine(store, named(config, member), clock, [facts], url_of(host, port))
        async with contextlib.AsyncExitStack() as last:  # closed after the engine has stopped
            last.callback(facts.flush)
            try:
                keys = KeyRing(store, clock)
                _check_reach(config, has_keys=not await keys.is_empty())
                runtime = await add_delivery(engine, config, last)
                await _serve(engine, keys, runtime, listener, config, stop=stop, ready=ready, member=member)
            finally:
                await engine.stop()


async def _serve(
    engine: Engine,
    keys: "KeyRing",
    runtime: "NotificationRuntime",
    listener: socket.socket,
    config: Config,
    *,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    member: Member | None,
) -> None:
    from tidings.edges.http.app import create_app
    from tidings.edges.http.server import running_on
    from tidings.observe.metrics import Metrics

    kafka = join_kafka(engine, config, runtime.services) if config.kafka.servers is not None else None
    more = [kafka.metrics.lines] if kafka else []
    metrics = Metrics(__version__, engine.count, [*more, runtime.metrics.lines], runtime.metrics.unsettled)
    engine.listen(metrics)
    async with contextlib.AsyncExitStack() as stack:
        render: Render = metrics.render
        if member is not None:
            render = await stack.enter_async_context(member.shared_metrics(render))
        app = create_app(
            engine,
            keys=keys,
            metrics=render,
            version=__version__,
            services=runtime.services,
            kafka=kafka.topics if kafka else None,
            has_api="api" in config.node.roles,
            server=config.server,
        )
        host, port = await stack.enter_async_context(running_on(listener, app))
        await engine.start()
        ready(url_of(host, port))
        if member is not None:
            member.report_ready()
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


def run_node(config: Config, member: str | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. `member` is set in a process under a supervisor."""
    from tidings.edges.http.server import loop_factory

    logs = config.logs
    configure_logs(logs.level, as_json=None if logs.format == "auto" else logs.format == "json")
    if config.node.processes > 1 and member is None:
        return _supervise(config)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    under = None if member is None else parse_member(member)
    if under is not None:  # the settings may have changed since the supervisor was started
        config = replace(config, node=replace(config.node, processes=under.count))
        check_processes(config)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_run(config, under))
    logger.info("stopped")
    return 0


def _supervise(config: Config) -> int:
    """Run the processes of this node, with the arguments of this command, on one socket."""
    from tidings.edges.http.server import listen

    check_processes(config)
    check_address(config.store.path, config)
    with listen(config.server.host, config.server.port) as listener:
        url = url_of(*listener.getsockname()[:2])
        code = supervise(sys.argv[1:], listener, config.node.processes, lambda: _announce(url, config))
    logger.info("stopped")
    return code


async def _run(config: Config, member: Member | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_loop_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_leave, stop, number, member is None)
    if member is not None:
        member.watch(lambda: _stop_or_leave(stop, signal.SIGTERM, False))
    await serve_node(config, stop, lambda url: _ready(url, config, member), member)


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task handles.

    TLS bytes that arrive after we aborted their connection are no error, but uvloop reports one: it answers them on the
    closed transport (https://github.com/MagicStack/uvloop/issues/506).
    """
    error = context.get("exception")
    if isinstance(error, RuntimeError) and HANDLER_CLOSED in str(error) and "SSL" in str(context.get("message")):
        logger.debug("TLS bytes arrived after their connection was closed")
        return
    loop.default_exception_handler(context)


def _ready(url: str, config: Config, member: Member | None) -> None:
    """Exclude the objects of the start from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    if member is None:
        _announce(url, config)
    else:
        logger.info("process %d serves", member.number)


def _stop_or_leave(stop: asyncio.Event, number: signal.Signals, leaves: bool) -> None:
    """Stop cleanly and in time on the first signal, even if the event loop hangs.

    On the second exit at once, if it `leaves`: a process under a supervisor may get signals of both.
    """
    if stop.is_set():
        if leaves:
            os._exit(128 + number)
        return
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
