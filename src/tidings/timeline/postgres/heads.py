"""When each of our lanes has work to do, as far as we know: kept in memory, put right by looking."""

from collections.abc import Callable

from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.pool import Pool

FOREVER = (1 << 63) - 1


class Head:
    """One lane. `low` is a mark below which nothing was left when we looked; what comes below it moves it back."""

    def __init__(self) -> None:
        self.due: int | None = None
        self.low = 0
        self.news = 0
        self.arrived = 0
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
    """The lanes that we own."""

    def __init__(self) -> None:
        self.lanes: dict[int, Head] = {}

    def own(self, lane: int) -> Head:
        """We own a lane."""
        return self.lanes.setdefault(lane, Head())

    def disown(self, lane: int) -> None:
        self.lanes.pop(lane, None)

    def offer(self, lane: int, due: int) -> None:
        """Something is due then; who waits for later is woken."""
        head = self.lanes.get(lane)
        if head is not None and head.offer(due):
            head.wake()

    def may_be_first(self, lane: int, due: int) -> bool:
        """Whether what was due then may have been the first of a lane."""
        head = self.lanes.get(lane)
        return head is not None and head.due is not None and due <= head.due

    def arrived(self, lane: int) -> int:
        """Everything before this offset is on Kafka, as far as this process knows."""
        head = self.lanes.get(lane)
        return 0 if head is None else head.arrived

    async def look(self, pool: Pool, statement: str, lanes: list[int], *, whole: bool = False) -> None:
        """Ask the store. What is offered meanwhile may be missing in its answer and counts beside it."""
        asked = {lane: self.lanes[lane] for lane in lanes if lane in self.lanes}
        if not asked:
            return
        news = {lane: head.news for lane, head in asked.items()}
        lows = [0 if whole else head.low for head in asked.values()]
        answer = await pool.read(statement, (arrays.int2s(list(asked)), arrays.int8s(lows)))
        found: dict[int, int | None] = dict(answer)
        for lane, head in asked.items():
            due = found.get(lane)
            if head.news != news[lane]:
                if due is not None:
                    self.offer(lane, due)
                continue
            earlier = due is not None and (head.due is None or due < head.due)
            head.due = due
            if whole and due is not None:
                head.low = min(head.low, due)
            if earlier:
                head.wake()


def _nobody() -> None:
    """Nobody waits."""
