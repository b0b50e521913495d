"""The start position on Kafka of a store that has not read any requests: `kafka.start`, earliest or latest.

With `latest`, the present ends of the request topics become the store's positions in one transaction, so everything
that is written from then on is read, whatever crashes. A topic that is created later is read from its beginning, like
all topics with `earliest`.
"""

import asyncio
import contextlib
import logging
from typing import Any, Literal

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tidings.bus.kafka.topics import Cluster, quiet_logger
from tidings.domain.errors import Moved, NotOwner, StoreError
from tidings.edges.kafka.intake import KafkaIntake
from tidings.engine import Engine
from tidings.ports import SourcePosition

Start = Literal["earliest", "latest"]

ASK_S = 3.0
RETRY_S = 0.5
JOINED = SourcePosition(
    "@joined", 0, 0, 1
)  # stored with the positions, because there may be no topic yet; not a valid topic name

logger = logging.getLogger("tidings.kafka")


class StartPosition:
    """A background service: sets the start position of a new store, then runs the intake."""

    def __init__(self, engine: Engine, cluster: Cluster, intake: KafkaIntake, start: Start) -> None:
        self._engine = engine
        self._cluster = cluster
        self._intake = intake
        self._start = start
        self._stopped = asyncio.Event()

    @property
    def problem(self) -> str | None:
        """Why no requests are read; None if they are."""
        return self._intake.problem

    async def run(self) -> None:
        """Set the start position, then read until stopped."""
        while not self._stopped.is_set() and not await self._begin():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), RETRY_S)
        await self._intake.run()

    def wake(self) -> None:
        """Nothing to do: the intake polls Kafka."""

    def stop(self) -> None:
        """Stop once the current batch is finished."""
        self._stopped.set()
        self._intake.stop()

    async def _begin(self) -> bool:
        """True once the intake can start; False while this process stands by, or Kafka does not answer."""
        if not self._engine.readiness()[0]:
            return False
        try:
            if not await self._engine.store.positions():
                await self._set_start()
        except (KafkaException, Moved, NotOwner, StoreError) as error:
            self._intake.report_problem(str(error.args[0]))
            return False
        return True

    async def _set_start(self) -> None:
        if self._start == "earliest":
            logger.info(
                "first start with Kafka: reads requests from the beginning, releases overdue ones (kafka.start)"
            )
            return
        parts = await asyncio.to_thread(ends, self._cluster)
        await self._engine.take([], [JOINED, *parts], lambda _: [])
        logger.info(
            "first start with Kafka: reads from the end of %d partitions of request topics (kafka.start)", len(parts)
        )


def ends(cluster: Cluster) -> list[SourcePosition]:
    """The ends of all request topics. Records of an open transaction lie beyond the end."""
    admin = AdminClient(cluster.options(), logger=quiet_logger())
    names = [name for name in admin.list_topics(timeout=ASK_S).topics if cluster.takes(name)]
    sources: dict[TopicPartition, str] = {}
    asked = admin.describe_topics(TopicCollection(names), request_timeout=ASK_S) if names else {}
    for name, described in asked.items():
        try:
            topic = described.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            continue  # deleted meanwhile
        sources |= {TopicPartition(name, part.id): f"{name}@{topic.topic_id}" for part in topic.partitions}
    if not sources:
        return []
    end: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # untyped in the client
    found = admin.list_offsets(
        dict.fromkeys(sources, end), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ASK_S
    )
    return [
        SourcePosition(sources[partition], partition.partition, 0, answer.result().offset)
        for partition, answer in found.items()
    ]
