"""What the parts of a store share: its options and names, arrival numbers, and the lanes that this process owns."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

import msgspec

from tidings.domain.errors import StoreError
from tidings.domain.fleet import Predecessor
from tidings.timeline.outbox_capacity import OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX
from tidings.timeline.postgres.apply.unit_of_work import ScheduleRow
from tidings.timeline.postgres.database import inside, queries
from tidings.timeline.postgres.group_release import NextDue, Releases
from tidings.timeline.postgres.names import Names
from tidings.timeline.postgres.pool import Pools

BLOCK = 100_000
NEWS_BYTES_MAX = 7_000  # NOTIFY takes less than 8,000
EVERYWHERE = "all"
NEWS_US = 3_000_000  # what is due within this is told to the owner of its lane at once; its polls find the rest

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


class Options(msgspec.Struct, frozen=True):
    """What can be chosen for a store. `lanes` and `partitions` are fixed once it exists."""

    lanes: int = 16
    partitions: int = 4
    id_retention_us: int = 7 * 86_400 * 1_000_000
    retention_us: int | None = 7 * 86_400 * 1_000_000
    retention_bytes: int | None = None
    receipt_retention_us: int = 86_400 * 1_000_000
    created: int = 0
    outbox_rows_max: int = OUTBOX_ROWS_MAX
    outbox_bytes_max: int = OUTBOX_BYTES_MAX
    schema: str = "tidings"


class Arrivals:
    """Some arrival numbers, in order."""

    def __init__(self, first: int, end: int, losses: int = 0) -> None:
        self._first = first
        self.next = first
        self.end = end
        self.losses = losses

    def undo(self) -> None:
        """None of them was used after all."""
        self.next = self._first

    def take(self) -> int:
        """The next one."""
        assert self.next < self.end, "as many are reserved as can be needed"
        self.next += 1
        return self.next - 1


class StoreContext:
    """Made once the database is prepared."""

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
        """A statement for our schema."""
        return inside(self.options.schema, statement)

    async def positions(self) -> dict[tuple[str, int], int]:
        """How far the partitions of Kafka's request topics have been taken in."""
        found = await self.pool.read(self.inside("SELECT topic, partition, next FROM tidings.source"))
        return {(topic, partition): following for topic, partition, following in found}

    # Arrival numbers

    async def arrivals(self, count: int) -> "Arrivals":
        """That many arrival numbers, which nobody else has.

        A block is given up once a connection was lost: a server that took over may not know that it was given out.
        """
        async with self._reserving:
            if self._losses != self.pools.losses:
                self.give_up()
                self._losses = self.pools.losses
            while self._end - self._next < count:
                ((block,),) = await self.pools.first.call(self.inside("SELECT nextval('tidings.arrival_block')"))
                if block * BLOCK + 1 != self._end:  # another node took the one between: the rest of ours is given up
                    self._next = block * BLOCK + 1
                self._end = (block + 1) * BLOCK + 1
            first, self._next = self._next, self._next + count
            return Arrivals(first, self._next, self._losses)

    def give_up(self) -> None:
        """Take the next numbers from a new block."""
        self._next = self._end = 0

    def are_ours(self, arrivals: "Arrivals") -> bool:
        """Whether no connection was lost since they were given out."""
        return arrivals.losses == self.pools.losses

    def give_back(self, arrivals: "Arrivals") -> None:
        """Numbers that were not needed, unless others were given out since."""
        if self._next == arrivals.end:
            self._next = arrivals.next

    # Due times

    def news(self, dues: dict[int, int], now: int) -> str | None:
        """What to tell the owners of other lanes: what is due soon on them."""
        soon = {route: due for route, due in dues.items() if due <= now + NEWS_US and route not in self.next_due.routes}
        if not soon:
            return None
        told = "due " + " ".join(f"{route}:{due}" for route, due in soon.items())
        return told if len(told) <= NEWS_BYTES_MAX else f"due {EVERYWHERE}:{min(soon.values())}"

    def told(self, route: str, due: int) -> None:
        """Another node says that something is due on a route, or it does not say on which."""
        for each in list(self.next_due.routes) if route == EVERYWHERE else [int(route)]:
            self.next_due.offer(each, due)

    def arrived(self, dues: dict[int, int]) -> None:
        """Something was put onto lanes."""
        for route, due in dues.items():
            self.next_due.offer(route, due)

    async def left(self, gone: dict[int, int]) -> None:
        """Something was taken off lanes: where it may have been the first, look what is first now."""
        routes = [route for route, due in gone.items() if self.next_due.may_be_first(route, due)]
        if routes:
            await self.look_again(routes)

    async def look(self, routes: Iterable[int], *, whole: bool = False) -> None:
        """Ask when routes have work to do; from their low-water marks on, or from the very beginning."""
        await self.next_due.look(self.pools.first, self.sql["heads"], list(routes), whole=whole)

    async def look_again(self, routes: Iterable[int]) -> None:
        """The same after a commit, whose answer it must not spoil: a look that fails leaves a head that is too early,
        and a poll or a release that finds nothing puts it right.
        """
        with contextlib.suppress(StoreError):
            await self.look(routes)

    def land(self, entries: Iterable[ScheduleRow]) -> None:
        """What our own lanes know to be on Kafka is in flight no longer, though the store does not know it yet."""
        for entry in entries:
            found = entry.now
            if found is not None and found.flying and found.held is None and found.position is not None:
                found.flying = found.position >= self.next_due.arrived(found.lane)
