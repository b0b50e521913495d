"""The composition root: the only file that names adapters. Builds a node from its settings and runs it."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidings import __version__, ports
from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.dispatch.lanes import Companion
from tidings.domain.errors import Invalid, NotFound, TidingsError
from tidings.domain.facts import Listener
from tidings.domain.names import check_name
from tidings.edges.cli.program import program
from tidings.engine import Engine, Settings
from tidings.observe.logs import FactLog
from tidings.observe.logs import configure as configure_logs
from tidings.ports import ApiKey, Keys, Store

if TYPE_CHECKING:
    from tidings.bus.kafka.client import Cluster
    from tidings.bus.kafka.follow import KafkaFollowing
    from tidings.edges.http.auth import KeyRing
    from tidings.observe.kafka import KafkaMetrics
    from tidings.wires.requests import Requests

MEMORY = ":memory:"
URL_DEFAULT = "http://127.0.0.1:8460"
SWITCH_INTERVAL_S = 0.0005  # the writer's thread and the loop hand over to each other often
STOP_S_MAX = 4.7

T = TypeVar("T")
logger = logging.getLogger("tidings")


class CannotStart(TidingsError):
    """A node that must not run like this; the text says how to go on."""


async def open_store(path: str, config: Config, clock: Clock) -> Store:
    """The store that a path names; `:memory:` forgets everything at its end."""
    created = clock.now()
    if path == MEMORY:
        from tidings.timeline.memory.store import MemoryStore

        return MemoryStore(
            partitions=config.log.partitions,
            id_retention_us=config.ids.retention_us,
            retention_us=config.log.retention_us,
            retention_bytes=config.log.retention_bytes,
            receipt_retention_us=config.ids.idempotency_retention_us,
            created=created,
        )
    from tidings.timeline.sqlite.store import SqliteStore

    if file_of(path).is_dir():
        raise Invalid("store", f"{path} is a folder: name a file in it, such as {Path(path) / 'tidings.db'}")
    return await SqliteStore.open(
        file_of(path),
        partitions=config.log.partitions,
        id_retention_us=config.ids.retention_us,
        retention_us=config.log.retention_us,
        retention_bytes=config.log.retention_bytes,
        receipt_retention_us=config.ids.idempotency_retention_us,
        created=created,
    )


def file_of(path: str) -> Path:
    """The file that a path names, `~` understood."""
    return Path(path).expanduser()


def _is_there(path: str) -> bool:
    return path != MEMORY and file_of(path).exists()


def build_engine(store: Store, config: Config, clock: Clock, listeners: Sequence[Listener] = ()) -> Engine:
    """An engine over a store, told what the settings say."""
    settings = Settings(
        limits=config.limits,
        low_jitter_us=config.dispatch.low_priority_jitter_us,
        id_retention_us=config.ids.retention_us,
        bus="log" if config.kafka.servers is None else "kafka",
    )
    return Engine(store, clock, settings, listeners)


# Kafka


class Joined(NamedTuple):
    """What else there is of Kafka: its topics for readers, its figures."""

    following: "KafkaFollowing"
    metrics: "KafkaMetrics"


def join_kafka(engine: Engine, config: Config) -> Joined:
    """Let the engine read requests from Kafka and release to it."""
    cluster, requests = _kafka(config)
    from tidings.bus.kafka.follow import KafkaFollowing
    from tidings.bus.kafka.forwarder import Forwarder, Ways
    from tidings.bus.kafka.holding import Holding, held_name
    from tidings.bus.kafka.lane import Lane
    from tidings.bus.kafka.plain import PlainLane
    from tidings.edges.kafka.beginning import Beginning
    from tidings.edges.kafka.facts import KafkaFacts
    from tidings.edges.kafka.intake import KafkaIntake
    from tidings.observe.kafka import KafkaMetrics, KafkaStats

    facts = KafkaFacts(cluster, engine.clock) if config.kafka.facts == "on" else None
    identity = engine.store.identity
    kind = Lane if config.kafka.release == "exactly_once" else PlainLane
    ways = Ways()

    def accompany(lane: ports.Lane) -> list[Companion]:
        def owns() -> bool:
            return any(owned.number == lane.number for owned in engine.store.lanes())

        way = kind(cluster, identity, str(lane.number))
        aside = kind(cluster, identity, held_name(lane.number), singly=True)
        forwarder = Forwarder(lane, way, engine.clock, engine.tell, owns)
        forwarder.published = None if facts is None else facts.released
        ways.add(forwarder, lane.number)
        return [forwarder, Holding(lane, aside, forwarder, engine.clock, engine.tell, owns)]

    engine.admission.forbidden = requests.destinations.forbidden
    intake = KafkaIntake(engine, cluster, requests.wires, lambda: ways.have_begun)
    engine.lanes.accompany(accompany)
    engine.accompany(Beginning(engine, cluster, intake, config.kafka.start))
    if facts is not None:
        engine.listen(facts)
        engine.accompany(facts)
    lost = (lambda: 0) if facts is None else (lambda: facts.dropped)
    metrics = KafkaMetrics(ways, intake, engine.lanes.next_due, engine.clock, lost)
    engine.listen(metrics)
    if config.kafka.stats == "on":
        engine.accompany(KafkaStats(metrics))
    return Joined(KafkaFollowing(cluster, engine.clock), metrics)


def _kafka(config: Config) -> "tuple[Cluster, Requests]":
    """Which Kafka, and what is read of it; refuses what can be told before anything is opened."""
    try:
        from tidings.bus.kafka.client import Cluster
    except ImportError:
        raise CannotStart("Kafka needs its client: pip install 'tidings[kafka]'") from None
    from tidings.wires.requests import Requests

    kafka = config.kafka
    settings: dict[str, str] = {"security.protocol": kafka.security}
    if kafka.security.startswith("sasl"):
        if kafka.sasl_username is None or kafka.sasl_password is None:
            raise Invalid("kafka.sasl_username", f"kafka.security is {kafka.security}: give it and kafka.sasl_password")
        settings |= {"sasl.mechanism": kafka.sasl_mechanism, "sasl.username": kafka.sasl_username}
        settings["sasl.password"] = kafka.sasl_password
    files = {"ca": kafka.ssl_ca, "certificate": kafka.ssl_certificate, "key": kafka.ssl_key}
    settings |= {f"ssl.{name}.location": _readable(f"kafka.ssl_{name}", path) for name, path in files.items() if path}
    name = kafka.name if config.store.path != MEMORY else f"{kafka.name}-{secrets.token_hex(4)}"
    requests = Requests(kafka.wires, kafka.tenants, kafka.schedules, kafka.destinations)
    topics = kafka.topics == "create", kafka.partitions, kafka.replication
    return Cluster(kafka.servers or "", name, settings, *topics, requests.takes), requests


def _readable(key: str, path: str) -> str:
    """The file that a setting names; the client would only say that Kafka is away."""
    file = file_of(path)
    try:
        if key != "kafka.ssl_ca" or not file.is_dir():  # a folder of certificates is as good
            file.open("rb").close()
    except OSError as error:
        raise Invalid(
            key, f"{path} cannot be read ({error.strerror}): name a PEM file that this user can read"
        ) from None
    return str(file)


# A node that serves


async def serve_node(config: Config, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serve until `stop` is set; `ready` is told the URL once it listens.

    The socket first, so that a start which is refused leaves no new file behind.
    """
    from tidings.edges.http.auth import KeyRing
    from tidings.edges.http.server import listen

    clock = SystemClock()
    with listen(config.server.host, config.server.port) as listener:
        if not _is_there(config.store.path):
            _check_reach(config, has_keys=False)
        if config.kafka.servers is not None:
            _kafka(config)
        store = await open_store(config.store.path, config, clock)
        facts = FactLog()
        engine = build_engine(store, config, clock, [facts])
        try:
            keys = KeyRing(store, clock)
            _check_reach(config, has_keys=not await keys.is_empty())
            await _serve(engine, keys, listener, config, stop, ready)
        finally:
            await engine.stop()
            facts.flush()


async def _serve(
    engine: Engine,
    keys: "KeyRing",
    listener: socket.socket,
    config: Config,
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    from tidings.edges.http.app import create_app
    from tidings.edges.http.server import running_on
    from tidings.observe.metrics import Metrics

    joined = join_kafka(engine, config) if config.kafka.servers is not None else None
    metrics = Metrics(__version__, engine.count, [joined.metrics.lines] if joined else ())
    engine.listen(metrics)
    following = joined.following if joined else None
    app = create_app(engine, keys=keys, metrics=metrics.render, version=__version__, kafka=following)
    async with running_on(listener, app) as (host, port):
        await engine.start()
        ready(url_of(host, port))
        is_ready, reason = engine.readiness()
        if not is_ready:
            logger.warning("%s; takes over when it is free", reason, extra={"store": config.store.path})
        await _until(stop, engine)
        logger.info("stopping: the batch in hand is finished first")
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

    host, store = config.server.host, config.store.path
    if is_loopback(host) or has_keys:
        return
    raise CannotStart(
        f"refusing to listen on {host} without API keys: whoever reaches it could read and send everything\n"
        f"make a key first:       {program()} keys create admin --tenant default --admin --store {quote(store)}\n"
        f"or serve this machine:  {program()} serve --host 127.0.0.1"
    )


def run_node(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; answers the exit code."""
    from tidings.edges.http.server import loop_factory

    logs = config.logs
    configure_logs(logs.level, as_json=None if logs.format == "auto" else logs.format == "json")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_run(config))
    return 0


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_leave, stop, number)
    await serve_node(config, stop, lambda url: _announce(url, config))


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
        logger.info("listening on %s", url, extra={"url": url, "store": store, "version": __version__})
        return
    here = url_from_here(url)
    other = "" if here == URL_DEFAULT else f" --url {here}"
    sys.stdout.write(
        f"Tidings {__version__} listens on {url}\n"
        f"  store     {store if store == MEMORY else file_of(store).resolve()}\n"
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


# API keys, in a store that no server need have open


def create_key(path: str, name: str, tenant: str, admin: bool) -> str:
    """Make a key and answer it: only its digest is kept."""
    from tidings.edges.http.auth import make_key

    check_name(name, "name")
    check_name(tenant, "tenant")
    key, stored = make_key(name, tenant, admin=admin, now=SystemClock().now())

    async def add(keys: Keys) -> None:
        await keys.add_key(stored)

    _with_keys(path, add)
    return key


def list_keys(path: str) -> list[ApiKey]:
    """The keys of a store, by name."""

    async def read(keys: Keys) -> list[ApiKey]:
        return await keys.keys()

    _check_exists(path)
    return _with_keys(path, read)


def revoke_key(path: str, name: str) -> bool:
    """Forget a key; False if there is none of that name."""

    async def revoke(keys: Keys) -> bool:
        return await keys.revoke_key(name)

    _check_exists(path)
    return _with_keys(path, revoke)


def _with_keys(path: str, act: Callable[[Keys], Awaitable[T]]) -> T:
    async def run() -> T:
        store = await open_store(path, Config(), SystemClock())
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _check_exists(path: str) -> None:
    if not _is_there(path):
        name = program()
        raise NotFound(f"there is no store {path}: `{name} serve` or `{name} keys create` makes it")
