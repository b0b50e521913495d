"""Kafka, joined to an engine: requests are read from it, and what is released appears on it."""

import asyncio
import secrets
from typing import TYPE_CHECKING, NamedTuple

from tidings import ports
from tidings.bus.kafka.client import Cluster
from tidings.bus.kafka.follow_up import FollowUp, Plan
from tidings.bus.kafka.forwarder import Forwarder, PublishLimit, Ways
from tidings.bus.kafka.parked_topics import ParkedTopics, parked_name
from tidings.bus.kafka.producers import IdempotentProducer, TransactionalProducer
from tidings.bus.kafka.topic_reader import KafkaTopicReader
from tidings.config import Config
from tidings.delivery.notifying import Notifying
from tidings.dispatch.lanes import BackgroundService
from tidings.domain.errors import Invalid
from tidings.edges.kafka.facts import KafkaFacts
from tidings.edges.kafka.intake import KafkaIntake
from tidings.edges.kafka.start_position import StartPosition
from tidings.engine import Engine
from tidings.node.stores import MEMORY, client_missing, file_of
from tidings.observe.metrics import KafkaMetrics, KafkaStats, KasprMetrics, Worker
from tidings.wires.requests import Requests

if TYPE_CHECKING:
    from tidings.bus.kafka.client import Cluster
    from tidings.delivery.office import Office
    from tidings.wires.requests import Requests


class Joined(NamedTuple):
    """What else there is of Kafka: its topics for readers, its figures."""

    following: KafkaTopicReader
    metrics: KafkaMetrics


def join(engine: Engine, config: Config, cluster: Cluster, requests: Requests, notifying: Notifying) -> Joined:
    """Let the engine read requests from this cluster and release to it."""
    facts = KafkaFacts(cluster, engine.clock) if config.kafka.facts == "on" else None
    kind = TransactionalProducer if config.kafka.release == "exactly_once" else IdempotentProducer
    outgoing = Outgoing(engine, cluster, kind, facts, _plan(engine, config, requests))
    engine.admission.forbidden = requests.destinations.forbidden
    intake = KafkaIntake(engine, cluster, requests, notifying, outgoing.may_begin)
    engine.lanes.accompany(outgoing.accompany)
    if "intake" in config.node.roles:
        engine.accompany(StartPosition(engine, cluster, intake, config.kafka.start))
    if facts is not None:
        engine.listen(facts)
        engine.accompany(facts)
    lost = (lambda: 0) if facts is None else (lambda: facts.dropped)
    kaspr = _kaspr_metrics(engine, config, cluster, intake, outgoing) if "kaspr" in config.kafka.wires else None
    metrics = KafkaMetrics(outgoing.ways, intake, lost, kaspr)
    engine.listen(metrics)
    if config.kafka.stats == "on":
        engine.accompany(KafkaStats(metrics))
    return Joined(KafkaTopicReader(cluster, engine.clock), metrics)


def _kaspr_metrics(
    engine: Engine, config: Config, cluster: Cluster, intake: KafkaIntake, outgoing: "Outgoing"
) -> KasprMetrics:
    about = engine.settings.about
    reads = "intake" in config.node.roles
    return KasprMetrics(
        Worker(name=about.name, group=cluster.name, version=f"tidings-{about.version}"),
        lambda: intake.apps if reads else None,
        engine.lanes.next_due,
        lambda: outgoing.ways.problem is None and intake.problem is None,
        engine.clock,
    )


def _plan(engine: Engine, config: Config, requests: Requests) -> Plan | None:
    """What is written after releases of etf1's schedules, None if nothing is."""
    tombstones, history = config.kafka.tombstones == "on", config.kafka.history
    if requests.etf1 is None or not (tombstones or history):
        return None

    async def is_pending(tenant: str, schedule_id: str) -> bool:
        found = await engine.store.find(tenant, schedule_id, engine.clock.now())
        return found is not None and found.state in {"pending", "paused"}

    return Plan(origin_of=requests.etf1.origin_of, is_pending=is_pending, history=history, tombstones=tombstones)


class Outgoing:
    """Makes what runs beside a lane: its way to Kafka, another for what is kept back, and one for what follows."""

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        kind: type[TransactionalProducer],
        facts: KafkaFacts | None,
        plan: Plan | None,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._cluster = cluster
        self._kind = kind
        self._facts = facts
        self._turns = PublishLimit()
        self.ways = Ways()

    def accompany(self, lane: ports.Lane) -> list[BackgroundService]:
        """What a lane needs while we own it."""
        engine = self._engine

        def owns() -> bool:
            return any(owned.number == lane.number for owned in engine.store.lanes())

        way = self._way(lane.number, str(lane.number))
        aside = self._way(lane.number, parked_name(lane.number), singly=True)
        forwarder = Forwarder(lane, way, engine.clock, engine.tell, owns, self._turns)
        forwarder.published = None if self._facts is None else self._facts.released
        self.ways.add(forwarder, lane.number)
        companions: list[BackgroundService] = [
            forwarder,
            ParkedTopics(lane, aside, forwarder, engine.clock, engine.tell, owns),
        ]
        if self._plan is not None:
            after = self._way(lane.number, f"{lane.number}-follow-up")
            forwarder.follow_up = FollowUp(self._plan, after, engine.clock, owns)
            companions.append(forwarder.follow_up)
        return companions

    async def may_begin(self) -> bool:
        """Whether Kafka's progress was seen to be that of our store; who owns no lane looks for himself."""
        if self.ways.have_begun or self._engine.store.lanes():
            return self.ways.have_begun
        await asyncio.to_thread(self._way(0, "0").peek)
        return True

    def _way(self, number: int, name: str, *, singly: bool = False) -> TransactionalProducer:
        store = self._engine.store
        former = {each.identity: each.end(number) for each in store.predecessors}
        return self._kind(self._cluster, store.identity, name, singly=singly, former=former)


def join_kafka(engine: Engine, config: Config, office: "Office | None" = None) -> "Joined":
    """Let the engine read requests from Kafka and release to it; `office` accepts the notifications among them."""
    cluster, requests = cluster_of(config)
    from tidings.delivery.office import Office

    office = office or Office(engine.store.documents, engine, engine.clock)
    return join(engine, config, cluster, requests, office.notifying)


def cluster_of(config: Config) -> "tuple[Cluster, Requests]":
    """Which Kafka, and what is read of it; refuses what can be told before anything is opened."""
    try:
        from tidings.bus.kafka.client import Cluster
    except ImportError:
        raise client_missing("Kafka", "kafka") from None
    from tidings.wires.requests import Requests
    from tidings.wires.wire import Destinations

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
    if kafka.history is not None and (
        reason := Destinations(schedules=kafka.schedules.keys()).forbidden("", kafka.history)
    ):
        raise Invalid("kafka.history", reason)
    topics = kafka.topics == "create", kafka.partitions, kafka.replication
    return Cluster(kafka.servers or "", name, settings, *topics, requests.takes, kafka.schedules.keys()), requests


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
