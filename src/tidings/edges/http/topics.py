"""Topics: which there are, publish now, read a page, follow."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidings.domain.destination import BUSES, Bus
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import one_of, query_of, seconds, whole_number
from tidings.edges.http.kafka import KafkaTopics
from tidings.edges.http.readers import counted
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.edges.http.sse import BATCH_RECORDS, EventStream, encoded, positions_before
from tidings.edges.http.submissions import accept
from tidings.edges.http.waiting import unless_ended
from tidings.shapes.topic import PAGE_RECORDS_DEFAULT, WAIT_S_MAX
from tidings.wires.answers import record_document, topic_document


class Topics:
    """The resource `/v1/topics` and what lies below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine
        self._kafka = KafkaTopics(edge)

    def _topic(self, call: Call) -> str:
        topic = call.text("topic")
        self._engine.admission.check_topic(topic)
        return topic

    def _bus(self, query: dict[str, str]) -> Bus:
        """The bus that is asked for; without a word the one that schedules go to."""
        default: Bus = "log" if self._edge.kafka is None else self._engine.settings.bus
        return one_of(query, "bus", {bus: bus for bus in BUSES}) or default

    async def index(self, call: Call) -> Reply:
        """Every topic with its size."""
        if self._bus(query_of(call.scope, "bus")) == "kafka":
            return await self._kafka.index(call)
        topics = await self._engine.store.topics(call.caller.tenant)
        return json_answer({"topics": [topic_document(topic) for topic in topics], "bus": "log"})

    async def publish(self, call: Call) -> Reply:
        """A schedule that is due now: one, an array, or lines."""
        return await accept(self._edge, call, call.text("topic"))

    async def read(self, call: Call) -> Reply:
        """Records from a position on, waiting for the first if asked to."""
        query = query_of(call.scope, "cursor", "limit", "wait", "bus")
        limit = self._limit(query)
        wait_us = seconds(query.get("wait"), "wait", WAIT_S_MAX)
        topic, cursor = self._topic(call), query.get("cursor")
        if self._bus(query) == "kafka":
            return await self._kafka.read(call, topic, cursor, limit, wait_us)
        page = None
        if wait_us:
            waiting = self._engine.read(call.caller.tenant, topic, cursor, limit, wait_us)
            page = await unless_ended(self._edge, call, waiting)
        records, behind = page or await self._engine.read(call.caller.tenant, topic, cursor, limit)
        documents = [record_document(record) for record in records]
        return json_answer({"records": documents, "cursor": behind, "bus": "log"})

    async def stream(self, call: Call) -> Reply:
        """Records as they are released, without end."""
        query = query_of(call.scope, "cursor", "bus")
        topic, cursor = self._topic(call), query.get("cursor")
        if last := call.headers.get(b"last-event-id"):
            cursor = last.decode("latin-1")
        if self._bus(query) == "kafka":
            return await self._kafka.stream(call, topic, cursor)
        # Here rather than in the stream: a wrong cursor is still refused, and `latest` is now.
        records, behind = await self._engine.read(call.caller.tenant, topic, cursor, 1)
        *_, start = positions_before(records, behind, self._engine.store.partitions)

        @asynccontextmanager
        async def source() -> AsyncIterator[AsyncIterator[bytes]]:
            partitions = self._engine.store.partitions
            async with self._engine.follow(call.caller.tenant, topic, start, BATCH_RECORDS) as batches:
                yield encoded(batches, partitions)

        return EventStream(self._edge, call, start, source)

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/v1/topics": {"GET": self.index},
            "/v1/topics/{topic}/records": {"GET": counted(self._edge, self.read), "POST": self.publish},
            "/v1/topics/{topic}/stream": {"GET": counted(self._edge, self.stream)},
        }

    def _limit(self, query: dict[str, str]) -> int:
        rows_max = self._engine.settings.limits.page_rows_max
        return whole_number(query, "limit", min(PAGE_RECORDS_DEFAULT, rows_max), 1, rows_max)
