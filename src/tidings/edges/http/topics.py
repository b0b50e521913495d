"""Topics: which there are, publish now, read a page, follow."""

from tidings.domain.schedule import Record
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import query_of, seconds, whole_number
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.edges.http.sse import EventStream, positions_before
from tidings.edges.http.submissions import accept
from tidings.edges.http.waiting import unless_ended
from tidings.wires.answers import record_document, topic_document

WAIT_S_MAX = 60
PAGE_RECORDS_DEFAULT = 100
PAGE_BYTES_MAX = 16 * 1024 * 1024
FIRST_RECORDS = 100  # read before it is known how large the records are


class Topics:
    """The resource `/v1/topics` and what lies below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine

    def _topic(self, call: Call) -> str:
        topic = call.text("topic")
        self._engine.admission.check_topic(topic)
        return topic

    async def index(self, call: Call) -> Reply:
        """Every topic with its size."""
        query_of(call.scope)
        topics = await self._engine.store.topics(call.caller.tenant)
        return json_answer({"topics": [topic_document(topic) for topic in topics]})

    async def publish(self, call: Call) -> Reply:
        """A schedule that is due now: one, an array, or lines."""
        return await accept(self._edge, call, call.text("topic"))

    async def read(self, call: Call) -> Reply:
        """Records from a position on, waiting for the first if asked to."""
        query = query_of(call.scope, "cursor", "limit", "wait")
        limit = self._limit(query)
        wait_us = seconds(query.get("wait"), "wait", WAIT_S_MAX)
        topic, cursor = self._topic(call), query.get("cursor")
        page = None
        if wait_us:
            waiting = self._page(call.caller.tenant, topic, cursor, limit, wait_us)
            page = await unless_ended(self._edge, call, waiting)
        records, behind = page or await self._page(call.caller.tenant, topic, cursor, limit, 0)
        return json_answer({"records": [record_document(record) for record in records], "cursor": behind})

    async def stream(self, call: Call) -> Reply:
        """Records as they are released, without end."""
        query = query_of(call.scope, "cursor")
        topic, cursor = self._topic(call), query.get("cursor")
        if last := call.headers.get(b"last-event-id"):
            cursor = last.decode("latin-1")
        # Here rather than in the stream: a wrong cursor is still refused, and `latest` is now.
        records, behind = await self._engine.read(call.caller.tenant, topic, cursor, 1)
        *_, start = positions_before(records, behind, self._engine.store.partitions)
        return EventStream(self._edge, call, topic, start)

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/v1/topics": {"GET": self.index},
            "/v1/topics/{topic}/records": {"GET": self.read, "POST": self.publish},
            "/v1/topics/{topic}/stream": {"GET": self.stream},
        }

    def _limit(self, query: dict[str, str]) -> int:
        rows_max = self._engine.settings.limits.page_rows_max
        return whole_number(query, "limit", min(PAGE_RECORDS_DEFAULT, rows_max), 1, rows_max)

    async def _page(
        self, tenant: str, topic: str, cursor: str | None, limit: int, wait_us: int
    ) -> tuple[list[Record], str]:
        """At most that many, fewer where they are large."""
        records, behind = await self._engine.read(tenant, topic, cursor, min(limit, FIRST_RECORDS), wait_us)
        size = sum(len(record.message) for record in records)
        while records and len(records) < limit and size < PAGE_BYTES_MAX:
            room = max(1, (PAGE_BYTES_MAX - size) * len(records) // max(1, size))
            more, behind = await self._engine.read(tenant, topic, behind, min(limit - len(records), room))
            if not more:
                break
            records += more
            size += sum(len(record.message) for record in more)
        return records, behind
