"""What the parts of a store share: its options and names, arrival numbers, and the lanes that this process owns."""

import asyncio
from collections.abc import Iterable

import msgspec

from tidings.timeline.postgres.database import inside, queries
from tidings.timeline.postgres.heads import Heads
from tidings.timeline.postgres.names import Names
from tidings.timeline.postgres.pool import Pool
from tidings.timeline.postgres.releases import Releases
from tidings.timeline.postgres.working import Entry
from tidings.timeline.room import OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX

BLOCK = 100_000
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

    def __init__(self, first: int, end: int) -> None:
        self._first = first
        self.next = first
        self.end = end

    def undo(self) -> None:
        """None of them was used after all."""
        self.next = self._first

    def take(self) -> int:
        """The next one."""
        assert self.next < self.end, "as many are reserved as can be needed"
        self.next += 1
        return self.next - 1


class Shared:
    """Made once the database is prepared."""

    def __init__(self, pool: Pool, options: Options, lanes: int, partitions: int, created: int, identity: str) -> None:
        self.pool = pool
        self.options = options
        self.lanes = lanes
        self.partitions = partitions
        self.parts = partitions // lanes
        self.created = created
        self.identity = identity
        self.names = Names(pool, options.schema, lanes, partitions)
        self.heads = Heads(options.outbox_rows_max, options.outbox_bytes_max)
        self.sql = {name: inside(options.schema, call) for name, call in _CALLS.items()}
        for name in ("working", "lane", "pages", "fleet", "following", "groups"):
            self.sql |= queries(name, options.schema)
        self.releases = Releases(pool, self.sql["release"], self.sql["release_several"])
        self._next = self._end = 0
        self._reserving = asyncio.Lock()

    def inside(self, statement: str) -> str:
        """A statement for our schema."""
        return inside(self.options.schema, statement)

    # Arrival numbers

    async def arrivals(self, count: int) -> "Arrivals":
        """That many arrival numbers, which nobody else has."""
        async with self._reserving:
            while self._end - self._next < count:
                ((block,),) = await self.pool.call(self.inside("SELECT nextval('tidings.arrival_block')"))
                if block * BLOCK + 1 != self._end:  # another node took the one between: the rest of ours is given up
                    self._next = block * BLOCK + 1
                self._end = (block + 1) * BLOCK + 1
            first, self._next = self._next, self._next + count
            return Arrivals(first, self._next)

    def give_back(self, arrivals: "Arrivals") -> None:
        """Numbers that were not needed, unless others were given out since."""
        if self._next == arrivals.end:
            self._next = arrivals.next

    # Due times

    def news(self, dues: dict[int, int], now: int) -> str | None:
        """What to tell the owners of other lanes: what is due soon on them."""
        soon = {way: due for way, due in dues.items() if due <= now + NEWS_US and way not in self.heads.ways}
        return "due " + " ".join(f"{way}:{due}" for way, due in soon.items()) if soon else None

    def arrived(self, dues: dict[int, int]) -> None:
        """Something was put onto lanes."""
        for way, due in dues.items():
            self.heads.offer(way, due)

    async def left(self, gone: dict[int, int]) -> None:
        """Something was taken off lanes: where it may have been the first, look what is first now."""
        ways = [way for way, due in gone.items() if self.heads.may_be_first(way, due)]
        if ways:
            await self.look(ways)

    async def look(self, ways: Iterable[int], *, whole: bool = False) -> None:
        """Ask when ways have work to do; from their low-water marks on, or from the very beginning."""
        await self.heads.look(self.pool, self.sql["heads"], list(ways), whole=whole)

    def land(self, entries: Iterable[Entry]) -> None:
        """What our own lanes know to be on Kafka is in flight no longer, though the store does not know it yet."""
        for entry in entries:
            found = entry.now
            if found is not None and found.flying and found.held is None and found.position is not None:
                found.flying = found.position >= self.heads.arrived(found.lane)
