"""Readers of all releases: of the log by cursor, or committed records of Kafka, with the time each was seen."""

import asyncio
import uuid
from collections import Counter
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, TopicPartition

from tests.faults.node_process import wall_us
from tests.fleet.clients import Clients, Document, Name
from tests.fleet.load import TENANTS, TOPICS
from tests.kafka.site import headers_of
from tests.servers.kafka import Broker
from tidings.domain.schedules.iso8601 import parse_instant

PAGE = 1_000
LOOK_S = 0.15
QUIET_S = 0.5
READ_S = 0.2


class Seen(NamedTuple):
    """A record: its id, occurrence, token, due time, release time, and when it was seen.

    `since` is the earliest time at which it can have been released. Kafka has the time when it was produced, which may
    be much later.
    """

    name: Name
    generation: int
    n: int
    token: str
    due: int
    released: int
    since: int
    seen: int
    place: tuple[str, int, int]


class Reader(Protocol):
    """Reads records as they appear."""

    records: list[Seen]

    async def run(self) -> None:
        """Read forever."""
        ...

    async def finish(self) -> None:
        """Wait until every existing record is read."""
        ...


class LogReader:
    """Follows the topics of all tenants over HTTP, on whichever node answers. There may be no gap in a partition."""

    def __init__(self, clients: Clients) -> None:
        self.records: list[Seen] = []
        self._clients = clients
        self._cursors: dict[tuple[str, str], str] = {}
        self._next: Counter[tuple[str, str, int]] = Counter()
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self._read_all()
            await asyncio.sleep(LOOK_S)

    async def finish(self) -> None:
        while await self._read_all():
            pass

    async def _read_all(self) -> int:
        async with self._turn:  # `finish` reads too while `run` does
            return sum([await self._read(tenant, topic) for tenant in TENANTS for topic in TOPICS])

    async def _read(self, tenant: str, topic: str) -> int:
        cursor = self._cursors.get((tenant, topic))
        query = f"limit={PAGE}" + ("" if cursor is None else f"&cursor={cursor}")
        answer = await self._clients.get(f"/v1/topics/{topic}/records?{query}", tenant)
        if answer.status == 404:
            return 0
        assert answer.status == 200, answer
        seen = wall_us()
        for document in answer.document["records"]:
            self._take(tenant, document, seen)
        self._cursors[tenant, topic] = answer.document["cursor"]
        return len(answer.document["records"])

    def _take(self, tenant: str, document: Document, seen: int) -> None:
        schedule_id, generation, n = document["occurrence"].rsplit("/", 2)
        place = (document["topic"], document["partition"], document["offset"])
        part = (tenant, *place[:2])
        assert place[2] == self._next[part], f"a gap before {tenant} {place}: expected {self._next[part]}"
        self._next[part] += 1
        due, released = parse_instant(document["due_at"]), parse_instant(document["released_at"])
        number, name = int(n), Name(tenant, schedule_id)
        self.records.append(
            Seen(name, int(generation), number, document["value"], due, released, released, seen, place)
        )


class KafkaReader:
    """Reads the topics of a broker, committed records only, on a thread of its own."""

    def __init__(self, broker: Broker) -> None:
        self.records: list[Seen] = []
        settings = broker.client(group_id=f"tests-{uuid.uuid4()}", isolation_level="read_committed")
        self._consumer = Consumer(settings | {"enable.auto.commit": False, "fetch.wait.max.ms": 10})

    async def run(self) -> None:
        found = self._consumer.list_topics(timeout=10).topics
        places = [(topic, part) for topic in TOPICS for part in found[topic].partitions]
        self._consumer.assign([TopicPartition(topic, part, 0) for topic, part in places])
        try:
            while True:
                await asyncio.to_thread(self._read)
        finally:
            await asyncio.to_thread(self._consumer.close)

    def _read(self) -> None:
        for message in self._consumer.consume(PAGE, READ_S):
            assert message.error() is None, message.error()
            headers = dict(headers_of(message))
            schedule_id, generation, n = _text(headers["tidings-occurrence"]).rsplit("/", 2)
            due, produced = parse_instant(_text(headers["tidings-due-at"])), message.timestamp()[1] * 1_000 + 999
            name = Name.of(schedule_id)
            place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
            token = (message.value() or b"").decode()
            self.records.append(Seen(name, int(generation), int(n), token, due, produced, due, wall_us(), place))

    async def finish(self) -> None:
        """Wait until no more records arrive."""
        count = -1
        while count != len(self.records):
            count = len(self.records)
            await asyncio.sleep(QUIET_S)


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
