"""Topics of Kafka over the same calls as those of the log, for those who may read them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tidings.domain.errors import BusError, Invalid
from tidings.edges.advice import NO_ANSWER, plain
from tidings.edges.http.auth import Caller
from tidings.edges.http.edge import Edge
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Reply, json_answer
from tidings.edges.http.sse import BATCH_RECORDS, EventStream
from tidings.edges.http.waiting import cancelled, unless_ended
from tidings.wires.answers import encode, kafka_document
from tidings.wires.destinations import is_topic, owned

if TYPE_CHECKING:
    from tidings.bus.kafka.follow import Follower, KafkaFollowing, Seen

STREAM_US = 60_000_000
ANSWER_S = 3.0
LOOK_AGAIN_S = 0.25

T = TypeVar("T")
logger = logging.getLogger("tidings.kafka")


class KafkaTopics:
    """What `/v1/topics` and the paths below it answer with `bus=kafka`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._bytes_max = edge.engine.settings.limits.page_bytes_max

    @property
    def _following(self) -> "KafkaFollowing":
        if self._edge.kafka is None:
            raise Invalid("bus", "this server has no Kafka: start it with --kafka host:port, or read the log")
        return self._edge.kafka

    async def index(self, call: Call) -> Reply:
        """The topics that the caller may read, without their sizes."""
        mine = None if call.caller.admin else owned(call.caller.tenant)
        topics = [
            {"name": name, "partitions": [{"partition": number} for number in range(partitions)]}
            for name, partitions in sorted((await self._answered(self._following.topics())).items())
            if mine is None or name in mine
        ]
        return json_answer({"topics": topics, "bus": "kafka"})

    async def read(self, call: Call, topic: str, cursor: str | None, limit: int, wait_us: int) -> Reply:
        """Committed records from a position on."""
        _check(call.caller, topic)
        async with self._open(topic, cursor) as follower:
            found = (
                await unless_ended(self._edge, call, follower.read(limit, wait_us, self._bytes_max))
                if wait_us
                else None
            )
            records = await follower.read(limit, 0, self._bytes_max) if found is None else found
            documents = [_document(record) for record in records]
            return json_answer({"records": documents, "cursor": follower.cursor, "bus": "kafka"})

    async def stream(self, call: Call, topic: str, cursor: str | None) -> Reply:
        """Committed records as they come, without end."""
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
            yield await self._answered(stack.enter_async_context(self._following.open(topic, cursor)))

    async def _answered(self, work: Coroutine[Any, Any, T]) -> T:
        """What Kafka answers. Where it is known to be away, nobody waits for as long as one that is slow may take."""
        task = asyncio.create_task(work)
        patience_s = ANSWER_S
        try:
            while not (await asyncio.wait({task}, timeout=patience_s))[0]:
                if problems := self._edge.engine.problems():
                    raise BusError(NO_ANSWER + plain(problems[0]).removeprefix(NO_ANSWER))
                patience_s = LOOK_AGAIN_S
            return task.result()
        finally:
            if not task.done():
                await cancelled(task)


def _check(caller: Caller, topic: str) -> None:
    if not is_topic(topic):
        raise Invalid("topic", "is not a name of a topic: use letters, digits, '.', '_' and '-' only")
    if not caller.admin and topic not in owned(caller.tenant):
        names = ", ".join(sorted(owned(caller.tenant)))
        detail = (
            f"{topic} on Kafka may hold what is not {caller.tenant}'s: this key may read {names}; an admin key any"
            " topic; bus=log is the tenant's own"
        )
        raise Refusal("forbidden", detail)


async def _events(follower: "Follower", bytes_max: int) -> AsyncIterator[bytes]:
    """Records as events, the id of each the position behind it. When Kafka is away for long, the client asks again."""
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
                del records  # a slow client is not to keep them here
                yield body.pop()
    except BusError as error:
        logger.warning("a reader of Kafka is let go: %s", error)


def _document(record: "Seen") -> dict[str, object]:
    return kafka_document(record.topic, record.partition, record.offset, record.timestamp_us, record.message)
