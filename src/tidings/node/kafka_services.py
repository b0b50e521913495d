"""The services of a node with Kafka: intake, release and facts. Importing this module needs the Kafka client."""

import asyncio
import logging
from functools import partial
from typing import NamedTuple

from tidings import ports
from tidings.bus.kafka.follow_up import FollowUp, Plan
from tidings.bus.kafka.forwarder import Forwarder, Forwarders, PublishLimit
from tidings.bus.kafka.parked_topics import ParkedTopics, parked_name
from tidings.bus.kafka.producers import IdempotentProducer, TransactionalProducer
from tidings.bus.kafka.topic_reader import KafkaTopicReader
from tidings.bus.kafka.topics import Cluster
from tidings.config import Config
from tidings.delivery.accept.acceptance import Acceptance
from tidings.dispatch.lanes import BackgroundService
from tidings.edges.kafka.facts import KafkaFacts
from tidings.edges.kafka.intake import KafkaIntake
from tidings.edges.kafka.request_topics import Requests
from tidings.edges.kafka.start_position import StartPosition
from tidings.engine import Engine
from tidings.observe.metrics import KafkaMetrics, KafkaStats, KasprMetrics, Worker

logger = logging.getLogger("tidings.kafka")


class Joined(NamedTuple):
    """What a node with Kafka has in addition: readers of topics, and metrics."""

    topics: KafkaTopicReader
    metrics: KafkaMetrics


def join(engine: Engine, config: Config, cluster: Cluster, requests: Requests, notifying: Acceptance) -> Joined:
    """Let the engine read requests from a cluster and release to it."""
    facts = KafkaFacts(cluster, engine.clock) if config.kafka.facts == "on" else None
    kind = TransactionalProducer if config.kafka.release == "exactly_once" else IdempotentProducer
    release = KafkaRelease(engine, cluster, kind, facts, _plan(engine, config, requests))
    intake = KafkaIntake(engine, cluster, requests, notifying, release.may_begin)
    engine.lanes.add_services(release.services)
    if "intake" in config.node.roles:
        engine.add_service(StartPosition(engine, cluster, intake, config.kafka.start))
    if facts is not None:
        engine.listen(facts)
        engine.add_service(facts)
    dropped = (lambda: 0) if facts is None else (lambda: facts.dropped)
    kaspr = _kaspr_metrics(engine, config, cluster, intake, release) if "kaspr" in config.kafka.wires else None
    metrics = KafkaMetrics(release.forwarders, intake, dropped, kaspr)
    engine.listen(metrics)
    if config.kafka.stats == "on":
        engine.add_service(KafkaStats(metrics))
    return Joined(KafkaTopicReader(cluster, engine.clock), metrics)


def _kaspr_metrics(
    engine: Engine, config: Config, cluster: Cluster, intake: KafkaIntake, release: "KafkaRelease"
) -> KasprMetrics:
    about = engine.settings.about
    reads = "intake" in config.node.roles
    return KasprMetrics(
        Worker(name=about.name, group=cluster.name, version=f"tidings-{about.version}"),
        lambda: intake.apps if reads else None,
        engine.lanes.next_due,
        lambda: release.forwarders.problem is None and intake.problem is None,
        engine.clock,
    )


def _plan(engine: Engine, config: Config, requests: Requests) -> Plan | None:
    """History copies and tombstones for schedules of etf1's wire; None if the settings ask for neither.

    There are none with `at_least_once`: the outbox would keep released records for them, and without a marker on Kafka
    a restart would publish these again.
    """
    tombstones, history = config.kafka.tombstones == "on", config.kafka.history
    if requests.etf1 is None or not (tombstones or history):
        return None
    if config.kafka.release == "at_least_once":
        logger.info("kafka.release is at_least_once: etf1 schedules get no history copies and no tombstones")
        return None

    async def is_pending(tenant: str, schedule_id: str) -> bool:
        found = await engine.store.find(tenant, schedule_id, engine.clock.now())
        return found is not None and found.state in {"pending", "paused"}

    return Plan(origin_of=requests.etf1.origin_of, is_pending=is_pending, history=history, tombstones=tombstones)


class KafkaRelease:
    """Builds the Kafka services of a lane: the forwarder, the parked topics, and the follow-up."""

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
        self._limit = PublishLimit()
        self.forwarders = Forwarders()

    def services(self, lane: ports.Lane) -> list[BackgroundService]:
        """The services of a lane while we own it."""
        engine = self._engine

        def owns() -> bool:
            return any(owned.number == lane.number for owned in engine.store.lanes())

        number = lane.number
        follow_up = None
        if self._plan is not None:
            producer = self._producer(number, f"{number}-follow-up")
            follow_up = FollowUp(self._plan, outbox=lane, producer=producer, clock=engine.clock, owns=owns)
        forwarder = Forwarder(
            outbox=lane,
            producer=self._producer(number, str(number), reports=False),
            clock=engine.clock,
            on_fact=engine.publish,
            owns=owns,
            limit=self._limit,
            follow_up=follow_up,
            on_published=None if self._facts is None else self._facts.released,
            on_connected=partial(self.forwarders.on_connected, number),
        )
        self.forwarders.add(forwarder, number)
        parked = ParkedTopics(
            outbox=lane,
            producer=self._producer(number, parked_name(number), one_by_one=True),
            forwarder=forwarder,
            follow_up=follow_up,
            clock=engine.clock,
            on_fact=engine.publish,
            owns=owns,
        )
        return [forwarder, parked] if follow_up is None else [forwarder, parked, follow_up]

    async def may_begin(self) -> bool:
        """Whether the progress on Kafka was found to be that of our store. A node without lanes checks it here."""
        if self.forwarders.have_begun or self._engine.store.lanes():
            return self.forwarders.have_begun
        await asyncio.to_thread(self._producer(0, "0").peek)
        return True

    def _producer(
        self, lane: int, name: str, *, one_by_one: bool = False, reports: bool = True
    ) -> TransactionalProducer:
        store = self._engine.store
        return self._kind(
            self._cluster,
            store.identity,
            name,
            one_by_one=one_by_one,
            reports=reports,
            predecessors={each.identity: each.end(lane) for each in store.predecessors},
        )
