"""The Kafka cluster that the settings name. The client is imported only if there is one."""

import secrets
from typing import TYPE_CHECKING

from tidings.config import Config
from tidings.domain.errors import Invalid
from tidings.engine import Engine
from tidings.node.stores import MEMORY, client_missing, file_of

if TYPE_CHECKING:
    from tidings.bus.kafka.topics import Cluster
    from tidings.delivery.services import NotificationServices
    from tidings.edges.kafka.request_topics import Requests
    from tidings.node.kafka_services import Joined


def join_kafka(engine: Engine, config: Config, services: "NotificationServices | None" = None) -> "Joined":
    """Connect the engine to the Kafka of the settings; `services` accepts the notifications among the requests."""
    cluster, requests = cluster_of(config)
    from tidings.delivery.services import NotificationServices
    from tidings.node.kafka_services import join

    services = services or NotificationServices(engine.store.tables, engine, engine.clock)
    return join(engine, config, cluster, requests, services.acceptance)


def cluster_of(config: Config) -> "tuple[Cluster, Requests]":
    """The cluster and the requests that are read from it; checks the settings before anything is opened."""
    try:
        from tidings.bus.kafka.topics import Cluster
    except ImportError:
        raise client_missing("Kafka", "kafka") from None
    from tidings.edges.kafka.request_topics import Requests
    from tidings.wires.wire import Destinations

    kafka = config.kafka
    settings: dict[str, str] = {"security.protocol": kafka.security}
    if kafka.security.startswith("sasl"):
        if kafka.sasl_username is None or kafka.sasl_password is None:
            raise Invalid(
                "kafka.sasl_username",
                f"is required because kafka.security is {kafka.security}: set it and kafka.sasl_password",
            )
        settings |= {"sasl.mechanism": kafka.sasl_mechanism, "sasl.username": kafka.sasl_username}
        settings["sasl.password"] = kafka.sasl_password
    files = {"ca": kafka.ssl_ca, "certificate": kafka.ssl_certificate, "key": kafka.ssl_key}
    settings |= {f"ssl.{name}.location": _readable(f"kafka.ssl_{name}", path) for name, path in files.items() if path}
    name = kafka.name if config.store.path != MEMORY else f"{kafka.name}-{secrets.token_hex(4)}"
    requests = Requests(kafka.wires, kafka.tenants, kafka.schedules, kafka.destinations)
    if kafka.history is not None and (
        reason := Destinations(schedules=kafka.schedules.keys()).forbidden("", kafka.history)
    ):
        raise Invalid("kafka.history", reason)
    cluster = Cluster(
        kafka.servers or "",
        name,
        settings,
        create_topics=kafka.topics == "create",
        partitions=kafka.partitions,
        replication=kafka.replication,
        takes=requests.takes,
        compacted=kafka.schedules.keys(),
    )
    return cluster, requests


def _readable(key: str, path: str) -> str:
    """Check that a file of the settings can be read; the client would only report that Kafka does not answer."""
    file = file_of(path)
    try:
        if key != "kafka.ssl_ca" or not file.is_dir():  # a folder of certificates is allowed too
            file.open("rb").close()
    except OSError as error:
        raise Invalid(
            key, f"{path} cannot be read ({error.strerror}): give a PEM file that this user can read"
        ) from None
    return str(file)
