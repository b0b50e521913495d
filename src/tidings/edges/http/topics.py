"""Topics on the log and on Kafka: list, publish, read, follow; and consumer groups."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tidings.domain.errors import BusError, Invalid
from tidings.domain.names import BUSES, Bus
from tidings.edges.advice import NO_ANSWER, kafka_text
from tidings.edges.http.auth import Caller
from tidings.edges.http.inputs import (
    SMALL_BODY_BYTES_MAX,
    body_kind,
    decode,
    one_of,
    query_of,
    read_body,
    seconds,
    whole_number,
)
from tidings.edges.http.problems import Refusal
from tidings.edges.http.readers import counted
from tidings.edges.http.routes import Call, Edge, Handler, Reply, json_answer
from tidings.edges.http.schedules import accept
from tidings.edges.http.streams import (
    BATCH_RECORDS,
    EventStream,
    encoded,
    positions_before,
    unless_interrupted,
)
from tidings.shapes.topic import PAGE_RECORDS_DEFAULT, WAIT_S_MAX, Commit, Fetch, Join, Member
from tidings.tasks import end
from tidings.wires.answers import encode, kafka_document, record_document, topic_document
from tidings.wires.wire import is_topic, owned

if TYPE_CHECKING:
    from tidings.bus.kafka.topic_reader import Follower, KafkaTopicReader, Seen

Body = TypeVar("Body", bound=msgspec.Struct)

STREAM_US = 60_000_000
ANSWER_S = 3.0
CHECK_AGAIN_S = 0.25

T = TypeVar("T")
logger = logging.getLogger("tidings.kafka")


class Topics:
    """The resource `/v1/topics` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine
        self._kafka = KafkaTopics(edge)

    def _topic(self, call: Call) -> str:
        topic = call.text("topic")
        self._engine.admission.check_topic(topic)
        return topic

    def _bus(self, query: dict[str, str]) -> Bus:
        """The bus that the query names, else the one that schedules are released to."""
        default: Bus = "log" if self._edge.kafka is None else self._engine.settings.bus
        return one_of(query, "bus", {bus: bus for bus in BUSES}) or default

    async def index(self, call: Call) -> Reply:
        """All topics with their sizes."""
        if self._bus(query_of(call.scope, "bus")) == "kafka":
            return await self._kafka.index(call)
        topics = await self._engine.store.topics(call.caller.tenant)
        return json_answer({"topics": [topic_document(topic) for topic in topics], "bus": "log"})

    async def publish(self, call: Call) -> Reply:
        """A schedule that is due now: one, an array, or lines."""
        return await accept(self._edge, call, call.text("topic"))

    async def read(self, call: Call) -> Reply:
        """Records from a position on; waits for the first one if asked to."""
        query = query_of(call.scope, "cursor", "limit", "wait", "bus")
        limit = self._limit(query)
        wait_us = seconds(query.get("wait"), "wait", WAIT_S_MAX)
        topic, cursor = self._topic(call), query.get("cursor")
        if self._bus(query) == "kafka":
            return await self._kafka.read(call, topic, cursor, limit, wait_us)
        page = None
        if wait_us:
            read = self._engine.read(call.caller.tenant, topic, cursor, limit, wait_us)
            page = await unless_interrupted(self._edge, call, read)
        records, behind = page or await self._engine.read(call.caller.tenant, topic, cursor, limit)
        documents = [record_document(record) for record in records]
        return json_answer({"records": documents, "cursor": behind, "bus": "log"})

    async def stream(self, call: Call) -> Reply:
        """Records as they are released, until the client disconnects."""
        query = query_of(call.scope, "cursor", "bus")
        topic, cursor = self._topic(call), query.get("cursor")
        if last := call.headers.get(b"last-event-id"):
            cursor = last.decode("latin-1")
        if self._bus(query) == "kafka":
            return await self._kafka.stream(call, topic, cursor)
        # Read before the stream starts, so that a wrong cursor is refused and `latest` means now.
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


class Groups:
    """The resources below `/v1/topics/{topic}/groups/{group}`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine

    async def join(self, call: Call) -> Reply:
        """Become a member."""
        joining = await _read(call, Join)
        return json_answer(await self._engine.groups.join(*_group(call), joining.member))

    async def heartbeat(self, call: Call) -> Reply:
        """Stay a member, and get the current partitions."""
        sent = await _read(call, Member)
        return json_answer(await self._engine.groups.heartbeat(*_group(call), sent.member, sent.generation))

    async def fetch(self, call: Call) -> Reply:
        """The next records of the member's partitions."""
        sent = await _read(call, Fetch)
        wait_us = seconds(None if sent.wait is None else str(sent.wait), "wait", WAIT_S_MAX)
        fetching = self._engine.groups.fetch(*_group(call), sent.member, sent.generation, sent.limit, wait_us)
        records = await unless_interrupted(self._edge, call, fetching)
        return json_answer({"records": [record_document(record) for record in records or ()]})

    async def commit(self, call: Call) -> Reply:
        """Store how far the group has processed its partitions."""
        sent = await _read(call, Commit)
        await self._engine.groups.commit(*_group(call), sent.member, sent.generation, sent.offsets)
        return json_answer({"member": sent.member, "committed": sent.offsets})

    async def leave(self, call: Call) -> Reply:
        """Give the member's partitions back."""
        sent = await _read(call, Member)
        await self._engine.groups.leave(*_group(call), sent.member, sent.generation)
        return json_answer({"member": sent.member, "left": True})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        verbs = (self.join, self.heartbeat, counted(self._edge, self.fetch), self.commit, self.leave)
        return {f"/v1/topics/{{topic}}/groups/{{group}}/{verb.__name__}": {"POST": verb} for verb in verbs}


def _group(call: Call) -> tuple[str, str, str]:
    return call.caller.tenant, call.text("topic"), call.text("group")


async def _read(call: Call, kind: type[Body]) -> Body:
    query_of(call.scope)
    body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
    if body:
        body_kind(call.headers)
    return decode(msgspec.json.Decoder(kind), body or b"{}", kind)  # all of its fields may be left out


class KafkaTopics:
    """The answers of `/v1/topics` and the paths below it with `bus=kafka`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._bytes_max = edge.engine.settings.limits.page_bytes_max

    @property
    def _reader(self) -> "KafkaTopicReader":
        if self._edge.kafka is None:
            raise Invalid(
                "bus", "this server is not connected to Kafka: start it with --kafka host:port, or use bus=log"
            )
        return self._edge.kafka

    async def index(self, call: Call) -> Reply:
        """The topics that the caller may read, without their sizes."""
        mine = None if call.caller.admin else owned(call.caller.tenant)
        topics = [
            {"name": name, "partitions": [{"partition": number} for number in range(partitions)]}
            for name, partitions in sorted((await self._answered(self._reader.topics())).items())
            if mine is None or name in mine
        ]
        return json_answer({"topics": topics, "bus": "kafka"})

    async def read(self, call: Call, topic: str, cursor: str | None, limit: int, wait_us: int) -> Reply:
        """Committed records from a position on."""
        _check(call.caller, topic)
        async with self._open(topic, cursor) as follower:
            found = (
                await unless_interrupted(self._edge, call, follower.read(limit, wait_us, self._bytes_max))
                if wait_us
                else None
            )
            records = await follower.read(limit, 0, self._bytes_max) if found is None else found
            documents = [_document(record) for record in records]
            return json_answer({"records": documents, "cursor": follower.cursor, "bus": "kafka"})

    async def stream(self, call: Call, topic: str, cursor: str | None) -> Reply:
        """Committed records as they appear, until the client disconnects."""
        _check(call.caller, topic)
        async with AsyncExitStack() as stack:
            follower = await stack.enter_async_context(self._open(topic, cursor))
            kept = stack.pop_all()

        @asynccontextmanager
        async def source() -> AsyncIterator[AsyncIterator[bytes]]:
            async with kept:
                yield _events(follower, self._bytes_max)

        return EventStream(self._edge, call, follower.cursor, source)

    @asynccontextmanager
    async def _open(self, topic: str, cursor: str | None) -> AsyncIterator["Follower"]:
        async with AsyncExitStack() as stack:
            yield await self._answered(stack.enter_async_context(self._reader.open(topic, cursor)))

    async def _answered(self, work: Coroutine[Any, Any, T]) -> T:
        """The answer of Kafka. While Kafka is known to be unavailable, fail before the timeout of its client."""
        task = asyncio.create_task(work)
        timeout_s = ANSWER_S
        try:
            while not (await asyncio.wait({task}, timeout=timeout_s))[0]:
                if problems := self._edge.engine.problems():
                    raise BusError(NO_ANSWER + kafka_text(problems[0]).removeprefix(NO_ANSWER))
                timeout_s = CHECK_AGAIN_S
            return task.result()
        finally:
            if not task.done():
                await end([task])


def _check(caller: Caller, topic: str) -> None:
    if not is_topic(topic):
        raise Invalid("topic", "is not a valid topic name: use letters, digits, '.', '_' and '-' only")
    if not caller.admin and topic not in owned(caller.tenant):
        names = ", ".join(sorted(owned(caller.tenant)))
        detail = (
            f"{topic} on Kafka may contain records of other tenants: this key may read {names}; an admin key may read"
            " any topic; with bus=log, topics belong to the tenant"
        )
        raise Refusal("forbidden", detail)


async def _events(follower: "Follower", bytes_max: int) -> AsyncIterator[bytes]:
    """Records as events, the id of each the position behind it. Ends if Kafka is unavailable: the client reconnects."""
    try:
        while True:
            records = await follower.read(BATCH_RECORDS, STREAM_US, bytes_max)
            if records:
                body = [
                    b"".join(
                        b"id: %s\ndata: %s\n\n" % (record.cursor.encode(), encode(_document(record)))
                        for record in records
                    )
                ]
                del records  # not kept in memory while a slow client reads
                yield body.pop()
    except BusError as error:
        logger.warning("disconnected a client that follows a topic on Kafka: %s", error)


def _document(record: "Seen") -> dict[str, object]:
    return kafka_document(record.topic, record.partition, record.offset, record.timestamp_us, record.message)
