"""What the parts of a store share: pools, options, names, arrival numbers, and when our lanes have work to do."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

import msgspec

from tidings.domain.errors import StoreError
from tidings.domain.fleet import Predecessor
from tidings.timeline.postgres.apply.unit_of_work import ScheduleRow
from tidings.timeline.postgres.database import inside, queries
from tidings.timeline.postgres.group_release import NextDue, Releases
from tidings.timeline.postgres.names import Names
from tidings.timeline.postgres.pool import Pools
from tidings.timeline.store_rules import OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX

BLOCK = 100_000
NEWS_BYTES_MAX = 7_000  # NOTIFY takes less than 8,000
EVERYWHERE = "all"
NEWS_US = 3_000_000  # the owner of a lane is notified of rows due this soon; its polls find the rest

_CALLS = {
    "schedule": "SELECT tidings.schedule(" + ", ".join(["%s"] * 18) + ")",
    "release": "SELECT * FROM tidings.release(" + ", ".join(["%s"] * 9) + ")",
    "release_several": "SELECT r.* FROM unnest("
    + ", ".join(["%s"] * 9)
    + ") AS a(lane, token, given, capped, rows_max, low, kafka_low, room, room_bytes) CROSS JOIN LATERAL"
    " tidings.release(lane, token, given, capped <> 0, rows_max, low, kafka_low, room, room_bytes) AS r",
    "heads": "SELECT * FROM tidings.heads(%s, %s)",
    "acquire": "SELECT * FROM tidings.acquire(%s, %s, %s, %s)",
    "resign": "SELECT tidings.resign(%s)",
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a store. `lanes` and `partitions` are fixed once it exists.

    `processes` share the connections that one process would have.
    """

    lanes: int = 16
    partitions: int = 4
    id_retention_us: int = 7 * 86_400 * 1_000_000
    retention_us: int | None = 7 * 86_400 * 1_000_000
    retention_bytes: int | None = None
    idempotency_retention_us: int = 86_400 * 1_000_000
    created: int = 0
    outbox_rows_max: int = OUTBOX_ROWS_MAX
    outbox_bytes_max: int = OUTBOX_BYTES_MAX
    schema: str = "tidings"
    processes: int = 1


class Arrivals:
    """A range of arrival numbers."""

    def __init__(self, first: int, end: int, losses: int = 0) -> None:
        self._first = first
        self.next = first
        self.end = end
        self.losses = losses

    def undo(self) -> None:
        """Undo all `take` calls."""
        self.next = self._first

    def take(self) -> int:
        """The next number."""
        assert self.next < self.end, "enough numbers are reserved"
        self.next += 1
        return self.next - 1


class StoreContext:
    """The shared state of a store, created once the database is prepared."""

    def __init__(
        self,
        pools: Pools,
        options: Options,
        *,
        lanes: int,
        partitions: int,
        created: int,
        identity: str,
        predecessors: Sequence[Predecessor],
    ) -> None:
        self.pools = pools
        self.pool = pools.work
        self.options = options
        self.lanes = lanes
        self.partitions = partitions
        self.parts = partitions // lanes
        self.created = created
        self.identity = identity
        self.predecessors = predecessors
        self.names = Names(pools.first, options.schema, lanes, partitions)
        self.next_due = NextDue(options.outbox_rows_max, options.outbox_bytes_max)
        self.sql = {name: inside(options.schema, call) for name, call in _CALLS.items()}
        for name in ("working", "lane", "pages", "fleet", "following", "groups"):
            self.sql |= queries(name, options.schema)
        self.releases = Releases(pools.work, self.sql["release"], self.sql["release_several"])
        self._next = self._end = self._losses = 0
        self._reserving = asyncio.Lock()

    def inside(self, statement: str) -> str:
        """A statement rewritten for our schema."""
        return inside(self.options.schema, statement)

    async def positions(self) -> dict[tuple[str, int], int]:
        """The next position to read in each partition of the Kafka request topics."""
        found = await self.pool.read(self.inside("SELECT topic, partition, next FROM tidings.source"))
        return {(topic, partition): following for topic, partition, following in found}

    # Arrival numbers

    async def arrivals(self, count: int) -> "Arrivals":
        """Reserve this many arrival numbers.

        After a lost connection the block is abandoned: after a failover the new server may hand it out again.
        """
        async with self._reserving:
            if self._losses != self.pools.losses:
                self.abandon_block()
                self._losses = self.pools.losses
            while self._end - self._next < count:
                ((block,),) = await self.pools.first.call(self.inside("SELECT nextval('tidings.arrival_block')"))
                if block * BLOCK + 1 != self._end:  # another node has the block between: abandon the rest of ours
                    self._next = block * BLOCK + 1
                self._end = (block + 1) * BLOCK + 1
            first, self._next = self._next, self._next + count
            return Arrivals(first, self._next, self._losses)

    def abandon_block(self) -> None:
        """Abandon the current block; the next numbers come from a new one."""
        self._next = self._end = 0

    def are_ours(self, arrivals: "Arrivals") -> bool:
        """Whether no connection was lost since they were reserved."""
        return arrivals.losses == self.pools.losses

    def give_back(self, arrivals: "Arrivals") -> None:
        """Return unused numbers, unless others were reserved since."""
        if self._next == arrivals.end:
            self._next = arrivals.next

    # Due times

    def news(self, dues: dict[int, int], now: int) -> str | None:
        """The notification for the owners of other lanes: what is due soon on them; None if nothing is."""
        soon = {route: due for route, due in dues.items() if due <= now + NEWS_US and route not in self.next_due.routes}
        if not soon:
            return None
        text = "due " + " ".join(f"{route}:{due}" for route, due in soon.items())
        return text if len(text) <= NEWS_BYTES_MAX else f"due {EVERYWHERE}:{min(soon.values())}"

    def on_due(self, route: str, due: int) -> None:
        """Another node has put something onto a route, or onto one it does not name (`EVERYWHERE`)."""
        for each in list(self.next_due.routes) if route == EVERYWHERE else [int(route)]:
            self.next_due.offer(each, due)

    def rows_added(self, dues: dict[int, int]) -> None:
        """Rows were put onto lanes."""
        for route, due in dues.items():
            self.next_due.offer(route, due)

    async def rows_removed(self, gone: dict[int, int]) -> None:
        """Rows were taken off lanes: where one may have been the first, read the next due time again."""
        routes = [route for route, due in gone.items() if self.next_due.may_be_first(route, due)]
        if routes:
            await self.look_again(routes)

    async def look(self, routes: Iterable[int], *, whole: bool = False) -> None:
        """Read when routes have work to do, from their low-water marks on or, if `whole`, from the beginning."""
        await self.next_due.look(self.pools.first, self.sql["heads"], list(routes), whole=whole)

    async def look_again(self, routes: Iterable[int]) -> None:
        """The same after a commit, whose result must not depend on it.

        If it fails, a due time stays too early until the next poll, or a release that finds nothing, corrects it.
        """
        with contextlib.suppress(StoreError):
            await self.look(routes)

    def update_in_flight(self, entries: Iterable[ScheduleRow]) -> None:
        """Clear `flying` of rows that our own lanes know to be on Kafka, before the store knows it."""
        for entry in entries:
            found = entry.now
            if found is not None and found.flying and found.held is None and found.position is not None:
                found.flying = found.position >= self.next_due.arrived(found.lane)
