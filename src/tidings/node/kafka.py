"""Kafka, joined to an engine: requests are read from it, and what is released appears on it."""

import asyncio
import secrets
from typing import TYPE_CHECKING, NamedTuple

from tidings import ports
from tidings.config import Config
from tidings.dispatch.lanes import Companion
from tidings.domain.errors import Invalid
from tidings.engine import Engine
from tidings.node.stores import MEMORY, CannotStart, file_of

if TYPE_CHECKING:
    from tidings.bus.kafka.client import Cluster
    from tidings.bus.kafka.follow import KafkaFollowing
    from tidings.observe.kafka import KafkaMetrics
    from tidings.wires.requests import Requests


class Joined(NamedTuple):
    """What else there is of Kafka: its topics for readers, its figures."""

    following: "KafkaFollowing"
    metrics: "KafkaMetrics"


def join_kafka(engine: Engine, config: Config) -> Joined:
    """Let the engine read requests from Kafka and release to it."""
    cluster, requests = cluster_of(config)
    from tidings.bus.kafka.follow import KafkaFollowing
    from tidings.bus.kafka.forwarder import Forwarder, Ways
    from tidings.bus.kafka.holding import Holding, held_name
    from tidings.bus.kafka.lane import Lane
    from tidings.bus.kafka.plain import PlainLane
    from tidings.bus.kafka.turns import Turns
    from tidings.edges.kafka.beginning import Beginning
    from tidings.edges.kafka.facts import KafkaFacts
    from tidings.edges.kafka.intake import KafkaIntake
    from tidings.observe.kafka import KafkaMetrics, KafkaStats

    facts = KafkaFacts(cluster, engine.clock) if config.kafka.facts == "on" else None
    kind = Lane if config.kafka.release == "exactly_once" else PlainLane
    ways, turns = Ways(), Turns()

    def way_of(number: int, name: str, *, singly: bool = False) -> Lane:
        former = {each.identity: each.end(number) for each in engine.store.predecessors}
        return kind(cluster, engine.store.identity, name, singly=singly, former=former)

    def accompany(lane: ports.Lane) -> list[Companion]:
        def owns() -> bool:
            return any(owned.number == lane.number for owned in engine.store.lanes())

        way = way_of(lane.number, str(lane.number))
        aside = way_of(lane.number, held_name(lane.number), singly=True)
        forwarder = Forwarder(lane, way, engine.clock, engine.tell, owns, turns)
        forwarder.published = None if facts is None else facts.released
        ways.add(forwarder, lane.number)
        return [forwarder, Holding(lane, aside, forwarder, engine.clock, engine.tell, owns)]

    async def may_begin() -> bool:
        """Whether Kafka's progress was seen to be that of our store; who owns no lane looks for himself."""
        if ways.have_begun or engine.store.lanes():
            return ways.have_begun
        await asyncio.to_thread(way_of(0, "0").peek)
        return True

    engine.admission.forbidden = requests.destinations.forbidden
    intake = KafkaIntake(engine, cluster, requests.wires, may_begin)
    engine.lanes.accompany(accompany)
    if "intake" in config.node.roles:
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


def cluster_of(config: Config) -> "tuple[Cluster, Requests]":
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
