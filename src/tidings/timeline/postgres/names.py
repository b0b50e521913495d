"""The numbers of tenants and topics: created when they are new, and cached because they never change."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Set

from tidings.domain.schedules.schedule import is_kafka
from tidings.timeline import store_rules
from tidings.timeline.postgres.database import inside
from tidings.timeline.postgres.pool import Pool, rows

PRIORITIES = 3
STREAMS = 2 * PRIORITIES  # of a tenant: for the log, then for Kafka
SLOTS = 1_536
TO_KAFKA = -1

_TENANTS = "SELECT tenant, name FROM tidings.tenant WHERE tenant >= %s ORDER BY tenant"
_TOPICS = "SELECT topic, tenant, name FROM tidings.topic WHERE topic >= %s ORDER BY topic"
_LOCK = "LOCK TABLE tidings.tenant IN SHARE ROW EXCLUSIVE MODE"
_ADD_TENANT = """
INSERT INTO tidings.tenant SELECT coalesce(max(tenant) + 1, 0), %s::text FROM tidings.tenant ON CONFLICT DO NOTHING
"""
_ADD_TOPIC = """
WITH added AS (
    INSERT INTO tidings.topic SELECT coalesce(max(topic) + 1, 0), %s::int, %s::text FROM tidings.topic
    ON CONFLICT DO NOTHING RETURNING topic
)
INSERT INTO tidings.partition (topic, part, lane)
SELECT topic, part, part / %s::int FROM added, generate_series(0, %s::int - 1) AS part
"""
_NOTIFY = "SELECT pg_notify('tidings', 'made')"  # readers may be waiting for it


class Names:
    """Caches the names of one schema. Other nodes create names too, so unknown ones are loaded."""

    def __init__(self, pool: Pool, schema: str, lanes: int, partitions: int) -> None:
        self._pool = pool
        self._schema = schema
        self._partitions = partitions
        self._each = partitions // lanes
        self._making = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._started = self._loaded = 0
        self.tenants: dict[str, int] = {}
        self.tenant_names: list[str] = []
        self.topics: dict[tuple[int, str], int] = {}
        self.topic_names: list[tuple[int, str]] = []
        self._counts: Counter[int] = Counter()

    async def load(self) -> None:
        """Load new names. Concurrent calls share one load that started after they were made."""
        asked = self._started
        async with self._loading:
            if self._loaded <= asked:
                self._started += 1
                await self._load()
                self._loaded = self._started

    async def _load(self) -> None:
        """Read topics before tenants, so that every known topic has a known tenant."""
        topics = await self._pool.read(inside(self._schema, _TOPICS), (len(self.topic_names),))
        tenants = await self._pool.read(inside(self._schema, _TENANTS), (len(self.tenant_names),))
        for number, name in tenants:
            if number == len(self.tenant_names):
                self.tenant_names.append(name)
                self.tenants[name] = number
        for number, tenant, name in topics:
            if number == len(self.topic_names):
                self.topic_names.append((tenant, name))
                self.topics[tenant, name] = number
                self._counts[tenant] += 1

    def missing(self, tenant: str, topic: str) -> bool:
        """Whether a topic of a tenant is not known here."""
        number = self.tenants.get(tenant)
        return number is None or (number, topic) not in self.topics

    def may_open(self, tenant: str, topic: str) -> bool:
        """Whether a topic exists, or the tenant may have one more."""
        number = self.tenants.get(tenant)
        return (
            number is None or (number, topic) in self.topics or self._counts[number] < store_rules.TOPICS_PER_TENANT_MAX
        )

    async def make_all(self, destinations: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Create these topics, in order, unless they exist; returns those whose tenants have too many."""
        refused = []
        for tenant, topic in destinations:
            if not self.may_open(tenant, topic):
                refused.append((tenant, topic))
            elif self.missing(tenant, topic):
                await self.make(tenant, topic)
        return refused

    async def make(self, tenant: str, topic: str) -> None:
        """Create a tenant and a topic of it, in a transaction of their own."""
        async with self._making:
            await self.load()
            if not self.missing(tenant, topic):
                return
            async with self._pool.transaction() as connection:
                await rows(connection, inside(self._schema, _LOCK))
                await rows(connection, inside(self._schema, _ADD_TENANT), (tenant,))
                find = inside(self._schema, "SELECT tenant FROM tidings.tenant WHERE name = %s")
                ((number,),) = await rows(connection, find, (tenant,))
                parts = 0 if is_kafka(topic) else self._partitions
                await rows(connection, inside(self._schema, _ADD_TOPIC), (number, topic, self._each, parts))
                await rows(connection, inside(self._schema, _NOTIFY))
            await self.load()

    def stream(self, tenant: str, priority: int, topic: str) -> int:
        """The number of a tenant's stream for a topic."""
        return self.tenants[tenant] * STREAMS + is_kafka(topic) * PRIORITIES + priority

    def topic(self, tenant: str, name: str) -> int:
        """The number of a topic that is known."""
        return self.topics[self.tenants[tenant], name]

    async def know(self, topics: Set[int] = frozenset(), streams: Set[int] = frozenset()) -> None:
        """Make sure that the names of these numbers are loaded."""
        highest = max((stream // STREAMS for stream in streams), default=-1)
        if highest >= len(self.tenant_names) or max(topics, default=-1) >= len(self.topic_names):
            await self.load()

    def knows(self, topic: int) -> bool:
        """Whether the topic of a number is loaded."""
        return topic < len(self.topic_names)

    def tenant_of(self, stream: int) -> str:
        return self.tenant_names[stream // STREAMS]

    def destination(self, topic: int) -> tuple[str, str]:
        """The tenant and the destination of a topic."""
        tenant, name = self.topic_names[topic]
        return self.tenant_names[tenant], name
