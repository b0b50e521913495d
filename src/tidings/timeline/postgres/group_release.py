"""When our lanes have work to do, and releases of several lanes in one call.

A lane has two routes, because the one to Kafka may be full: the number of the lane is its route to the log, the
complement of the number is its route to Kafka. Due times are kept in memory and corrected by polls.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from tidings.batcher import Batcher
from tidings.domain.errors import NotOwner
from tidings.timeline.postgres import database
from tidings.timeline.postgres.pool import Pool, Row
from tidings.timeline.store_rules import OutboxCapacity

CALLS_MAX = 3
ROWS_MAX = 4_096  # of one transaction, unless one lane alone has more, so that no lane waits for all the others


class Route:
    """One route: its next due time, and a low-water mark below which it had no rows; an earlier row lowers it."""

    def __init__(self) -> None:
        self.due: int | None = None
        self.low = 0
        self.news = 0
        self.wake: Callable[[], None] = _no_listener

    def watch(self, wake: Callable[[], None]) -> None:
        """Call this when something is due earlier than was known, or there is room again."""
        self.wake = wake

    def offer(self, due: int) -> bool:
        """Note that a row is due at a time; True if it is the earliest one known."""
        self.news += 1
        self.low = min(self.low, due)
        if self.due is not None and self.due <= due:
            return False
        self.due = due
        return True


class NextDue:
    """The routes of the lanes that we own, and the capacity of their outboxes."""

    def __init__(self, outbox_rows_max: int, outbox_bytes_max: int) -> None:
        self._bounds = (outbox_rows_max, outbox_bytes_max)
        self.routes: dict[int, Route] = {}
        self._rooms: dict[int, OutboxCapacity] = {}

    def own(self, lane: int) -> tuple[Route, Route, OutboxCapacity]:
        """Add a lane that we own; returns its routes to the log and to Kafka, and the capacity of its outbox."""
        log, kafka = self.routes.setdefault(lane, Route()), self.routes.setdefault(~lane, Route())
        return log, kafka, self._rooms.setdefault(lane, OutboxCapacity(*self._bounds))

    def disown(self, lane: int) -> None:
        self._rooms.pop(lane, None)
        for route in (lane, ~lane):
            self.routes.pop(route, None)

    def offer(self, route: int, due: int) -> None:
        """A row is due then; wakes the dispatcher if it is the earliest one known."""
        head = self.routes.get(route)
        if head is not None and head.offer(due):
            head.wake()

    def may_be_first(self, route: int, due: int) -> bool:
        """Whether a row that was due then may have been the first of its route."""
        head = self.routes.get(route)
        return head is not None and head.due is not None and due <= head.due

    def arrived(self, lane: int) -> int:
        """Everything before this offset of the outbox is on Kafka, as far as this process knows."""
        room = self._rooms.get(lane)
        return 0 if room is None else room.arrived

    async def look(self, pool: Pool, statement: str, routes: list[int], *, whole: bool = False) -> None:
        """Read the due times from the store. Rows that are offered meanwhile may be missing there and count too."""
        asked = {route: self.routes[route] for route in routes if route in self.routes}
        if not asked:
            return
        news = {route: head.news for route, head in asked.items()}
        lows = [0 if whole else head.low for head in asked.values()]
        answer = await pool.read(statement, (database.int2s(list(asked)), database.int8s(lows)))
        found: dict[int, int | None] = dict(answer)
        for route, head in asked.items():
            due = found.get(route)
            is_news = whole and due is not None and due < head.low  # a release in progress does not know of it
            if is_news or head.news != news[route]:
                if due is not None:
                    self.offer(route, due)
                continue
            earlier = due is not None and (head.due is None or due < head.due)
            head.due = due
            if earlier:
                head.wake()


def _no_listener() -> None:
    """The listener until `watch` is called."""


class ReleaseRequest(NamedTuple):
    """The parameters of `tidings.release` for a lane."""

    lane: int
    token: UUID
    given: int
    capped: bool
    rows_max: int
    low: int
    kafka_low: int
    room: int
    room_bytes: int


class Releases:
    """The releases of one node; those that come together are one call."""

    def __init__(self, pool: Pool, one: str, several: str) -> None:
        self._pool = pool
        self._one = one
        self._several = several
        self._batcher: Batcher[ReleaseRequest, Row] = Batcher(
            self._release,
            weight=lambda requests: sum(request.rows_max for request in requests),
            weight_max=ROWS_MAX,
            calls_max=CALLS_MAX,
            # A lost lane fails alone: the call did nothing, and the other lanes are released without it.
            concerns_all=lambda error: not isinstance(error, NotOwner),
        )

    async def release(self, request: ReleaseRequest) -> Row:
        """Release one lane; returns the row of `tidings.release`."""
        [row] = await self._batcher.submit([request])
        return row

    async def _release(self, group: Sequence[ReleaseRequest]) -> list[Row]:
        """Release several lanes, locked in the order of their numbers; returns rows in the order of the requests."""
        order = sorted(range(len(group)), key=lambda index: group[index].lane)
        answered = dict(zip(order, await self._call([group[index] for index in order]), strict=True))
        return [answered[index] for index in range(len(group))]

    async def _call(self, group: list[ReleaseRequest]) -> list[Row]:
        if len(group) == 1:
            return await self._pool.call(self._one, group[0])
        lanes, tokens, givens, capped, rows_max, lows, kafka_lows, rooms, bytes_ = zip(*group, strict=True)
        values = (
            database.int2s(lanes),
            database.uuids([token.bytes for token in tokens]),
            database.int8s(givens),
            database.int2s(capped),
            database.int4s(rows_max),
            database.int8s(lows),
            database.int8s(kafka_lows),
            database.int4s(rooms),
            database.int8s(bytes_),
        )
        return await self._pool.call(self._several, values)
