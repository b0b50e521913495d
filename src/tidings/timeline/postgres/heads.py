"""When each of our lanes has work to do, as far as we know: kept in memory, put right by looking.

A lane has two ways, which are looked at apart because the one to Kafka may be full: the lane's number stands for the
way to the log, the complement of its number for the way to Kafka.
"""

from collections.abc import Callable

from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.pool import Pool
from tidings.timeline.room import Room

FOREVER = (1 << 63) - 1


class Head:
    """One way. `low` is a mark below which nothing was left when we looked; what comes below it moves it back."""

    def __init__(self) -> None:
        self.due: int | None = None
        self.low = 0
        self.news = 0
        self.wake: Callable[[], None] = _nobody

    def offer(self, due: int) -> bool:
        """Something is due then; True if nothing was known to be due before it."""
        self.news += 1
        self.low = min(self.low, due)
        if self.due is not None and self.due <= due:
            return False
        self.due = due
        return True


class Heads:
    """The ways of the lanes that we own, and the room of their outboxes."""

    def __init__(self, outbox_rows_max: int, outbox_bytes_max: int) -> None:
        self._bounds = (outbox_rows_max, outbox_bytes_max)
        self.ways: dict[int, Head] = {}
        self._rooms: dict[int, Room] = {}

    def own(self, lane: int) -> tuple[Head, Head, Room]:
        """We own a lane: its ways to the log and to Kafka, and the room for what goes there."""
        log, kafka = self.ways.setdefault(lane, Head()), self.ways.setdefault(~lane, Head())
        return log, kafka, self._rooms.setdefault(lane, Room(*self._bounds))

    def disown(self, lane: int) -> None:
        self._rooms.pop(lane, None)
        for way in (lane, ~lane):
            self.ways.pop(way, None)

    def offer(self, way: int, due: int) -> None:
        """Something is due then; who waits for later is woken."""
        head = self.ways.get(way)
        if head is not None and head.offer(due):
            head.wake()

    def may_be_first(self, way: int, due: int) -> bool:
        """Whether what was due then may have been the first of its way."""
        head = self.ways.get(way)
        return head is not None and head.due is not None and due <= head.due

    def arrived(self, lane: int) -> int:
        """Everything before this offset is on Kafka, as far as this process knows."""
        room = self._rooms.get(lane)
        return 0 if room is None else room.arrived

    async def look(self, pool: Pool, statement: str, ways: list[int], *, whole: bool = False) -> None:
        """Ask the store. What is offered meanwhile may be missing in its answer and counts beside it."""
        asked = {way: self.ways[way] for way in ways if way in self.ways}
        if not asked:
            return
        news = {way: head.news for way, head in asked.items()}
        lows = [0 if whole else head.low for head in asked.values()]
        answer = await pool.read(statement, (arrays.int2s(list(asked)), arrays.int8s(lows)))
        found: dict[int, int | None] = dict(answer)
        for way, head in asked.items():
            due = found.get(way)
            is_news = whole and due is not None and due < head.low  # a release under way does not know of it
            if is_news or head.news != news[way]:
                if due is not None:
                    self.offer(way, due)
                continue
            earlier = due is not None and (head.due is None or due < head.due)
            head.due = due
            if earlier:
                head.wake()


def _nobody() -> None:
    """Nobody waits."""
