"""How a store begins with Kafka. The first time there is no place to go on from: the settings say where to start.

From the end means from where the request topics end at that moment, and these ends become the store's positions, all in
one transaction: whatever crashes afterwards, what is written from then on is read. A topic that appears later is not
among them and is read from its beginning, like every topic in the other case.
"""

import asyncio
import contextlib
import logging
from typing import Any, Literal

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tidings.bus.kafka.client import Cluster, quiet
from tidings.domain.errors import Moved, NotOwner, StoreError
from tidings.edges.kafka.intake import KafkaIntake
from tidings.engine import Engine
from tidings.ports import SourcePosition

Start = Literal["earliest", "latest"]

ASK_S = 3.0
RETRY_S = 0.5
JOINED = SourcePosition(
    "@joined", 0, 0, 1
)  # kept with the positions, for there may be no topic yet; no topic has this name

logger = logging.getLogger("tidings.kafka")


class StartPosition:
    """Runs an intake, once the store that has taken nothing from Kafka yet knows where to begin."""

    def __init__(self, engine: Engine, cluster: Cluster, intake: KafkaIntake, start: Start) -> None:
        self._engine = engine
        self._cluster = cluster
        self._intake = intake
        self._start = start
        self._stopped = asyncio.Event()

    @property
    def problem(self) -> str | None:
        """What it waits for, before it reads and then."""
        return self._intake.problem

    @problem.setter
    def problem(self, reason: str | None) -> None:
        self._intake.problem = reason

    async def run(self) -> None:
        """Begin, then read until stopped."""
        while not self._stopped.is_set() and not await self._begin():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), RETRY_S)
        await self._intake.run()

    def wake(self) -> None:
        """There is nothing to be woken for."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopped.set()
        self._intake.stop()

    async def _begin(self) -> bool:
        """Whether it can be read; False while this process stands by, or Kafka is away."""
        if not self._engine.readiness()[0]:
            return False
        try:
            if not await self._engine.store.positions():
                await self._first()
        except (KafkaException, Moved, NotOwner, StoreError) as error:
            self.problem = str(error.args[0])
            return False
        return True

    async def _first(self) -> None:
        if self._start == "earliest":
            logger.info("nothing is read from Kafka yet: begins at the beginning, what is past leaves (kafka.start)")
            return
        parts = await asyncio.to_thread(ends, self._cluster)
        await self._engine.take([], [JOINED, *parts], lambda _: [])
        logger.info("begins at the end of %d partitions of request topics (kafka.start)", len(parts))


def ends(cluster: Cluster) -> list[SourcePosition]:
    """The request topics that are there, up to their ends. What is in an open transaction is beyond its end."""
    admin = AdminClient(cluster.options(), logger=quiet())
    names = [name for name in admin.list_topics(timeout=ASK_S).topics if cluster.takes(name)]
    sources: dict[TopicPartition, str] = {}
    asked = admin.describe_topics(TopicCollection(names), request_timeout=ASK_S) if names else {}
    for name, described in asked.items():
        try:
            topic = described.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            continue  # gone meanwhile
        sources |= {TopicPartition(name, part.id): f"{name}@{topic.topic_id}" for part in topic.partitions}
    if not sources:
        return []
    end: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client says no types here
    found = admin.list_offsets(
        dict.fromkeys(sources, end), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ASK_S
    )
    return [
        SourcePosition(sources[place], place.partition, 0, answer.result().offset) for place, answer in found.items()
    ]
