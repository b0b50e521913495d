"""Every setting of a node, with its default.

The name of a field has its unit (`retention_us`, `value_bytes_max`); the key in the file has none (`retention`,
`value_size_max`), because there the value has it: "7d", "1 MiB".
"""

from typing import Literal

import msgspec

from tidings.config.checks import ProviderTable
from tidings.domain.fleet import ROLES, Role
from tidings.domain.names import Past
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.schedules.schedule import Limits
from tidings.domain.units import DAY_US

SECOND_US = 1_000_000

Guarantee = Literal["exactly_once", "at_least_once"]
WireName = Literal["intervals", "kaspr", "etf1", "native", "notify"]


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the HTTP API listens, and how many clients it serves at once."""

    host: str = "127.0.0.1"
    port: int = 8460
    connections_max: int = 4_096
    readers_max: int = 1_024
    readers_per_key_max: int = 256
    slow_reader_timeout_us: int = 30 * SECOND_US


class Node(msgspec.Struct, frozen=True):
    """The name of this node among those that share a store, its roles, the channels to which it delivers, and the
    number of its processes."""

    name: str | None = None
    roles: tuple[Role, ...] = ROLES
    channels: tuple[ChannelName, ...] = CHANNEL_NAMES
    processes: int = 1


class Store(msgspec.Struct, frozen=True):
    """Where everything is stored; `schema` and `lanes` apply to PostgreSQL only."""

    path: str = "tidings.db"
    schema: str = "tidings"
    lanes: int = 16


class Log(msgspec.Struct, frozen=True):
    """The built-in bus: how long and how much it retains, and its number of partitions."""

    retention_us: int = 7 * DAY_US
    retention_bytes: int | None = None
    partitions: int = 4


class Ids(msgspec.Struct, frozen=True):
    """How long finished ids, and answers to an Idempotency-Key, are remembered."""

    retention_us: int = 7 * DAY_US
    idempotency_retention_us: int = DAY_US


class Kafka(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka, if `servers` is set: requests are read from its topics, and records are released to them."""

    servers: str | None = None
    name: str = "tidings"
    wires: tuple[WireName, ...] = ("intervals", "kaspr", "etf1", "native", "notify")
    tenants: tuple[str, ...] = ("*",)
    schedules: dict[str, str] = msgspec.field(default_factory=lambda: {"schedules": "default"})
    tombstones: Literal["off", "on"] = "on"
    history: str | None = "history"
    destinations: dict[str, tuple[str, ...]] = {}
    start: Literal["earliest", "latest"] = "earliest"
    topics: Literal["create", "expect"] = "create"
    partitions: int = 1
    replication: int = 1
    release: Guarantee = "exactly_once"
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-256"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_ca: str | None = None
    ssl_certificate: str | None = None
    ssl_key: str | None = None
    facts: Literal["off", "on"] = "off"
    stats: Literal["off", "on"] = "off"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Sending notifications: timeouts, concurrency, retries, circuit breakers, and the URL at which users and providers
    reach this node."""

    public_url: str | None = None
    link_key: dict[str, str] = {}
    older_link_key: dict[str, str] = {}
    send_timeout_us: int = 30 * SECOND_US
    concurrency: int = 64
    concurrency_reserved: int = 8
    attempts_max: int = 8
    retry_first_us: int = 5 * SECOND_US
    retry_longest_us: int = 3_600 * SECOND_US
    age_max_us: int = DAY_US
    retention_us: int = 30 * DAY_US
    breaker_failures: int = 10
    breaker_first_us: int = 15 * SECOND_US
    breaker_longest_us: int = 600 * SECOND_US


class Dispatch(msgspec.Struct, frozen=True):
    """How releases are spread over time, and what happens to times in the past."""

    low_priority_jitter_us: int = 0
    past: Past = "send"


class Logs(msgspec.Struct, frozen=True):
    """The format and level of the program's own log lines."""

    format: Literal["auto", "human", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of a node."""

    server: Server = Server()
    node: Node = Node()
    store: Store = Store()
    log: Log = Log()
    ids: Ids = Ids()
    dispatch: Dispatch = Dispatch()
    kafka: Kafka = Kafka()
    delivery: Delivery = Delivery()
    logs: Logs = Logs()
    limits: Limits = Limits()
    channels: tuple[ProviderTable, ...] = ()
