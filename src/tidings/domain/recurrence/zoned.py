"""From wall times to instants: each stretch of constant offset is counted on its own.

Between two transitions wall time is an instant plus a constant, so counting there is counting wall times. What the
policies change lies at the transitions: `overlap` says which of two equal stretches of wall time counts, `gap` whether
what falls into a jump is left out or moved by the jump's length. Rules below DAILY step in exact time: both stretches
count, nothing falls into a jump, and their unit and interval are counted on the clock of the anchor.
"""

from bisect import bisect_right
from collections.abc import Callable

from tidings.domain.recurrence.calendar import END_SECOND
from tidings.domain.recurrence.parts import Gap, Overlap
from tidings.domain.recurrence.steps import METER
from tidings.domain.recurrence.walls import Walls
from tidings.domain.recurrence.zones import Zone


class Zoned:
    """The instants, in seconds, of a set of wall times in a zone, from `lower` on."""

    def __init__(self, walls: Callable[[int], Walls], zone: Zone, gap: Gap, overlap: Overlap, lower: int) -> None:
        self._walls = walls  # by the offset of a stretch
        self._zone = zone
        self._gap = gap
        self._overlap = overlap
        self._first = zone.segment(lower)
        self._stretches: list[Stretch] = []
        self._counts = [0]
        self._counts[0] = -self._stretch(0).through(lower - 1)

    def through(self, instant: int) -> int:
        """How many lie at or before the instant, from `lower` on."""
        place = self._zone.segment(instant) - self._first
        if place < 0:
            return 0
        return max(0, self._before(place) + self._stretch(place).through(instant))

    def at(self, number: int) -> int | None:
        """The element with this number, from 0."""
        counts = self._counts
        while counts[-1] <= number:
            stretch = self._stretch(len(counts) - 1)
            if stretch.stop > END_SECOND:
                at = stretch.at(number - counts[-1])
                return at if at is None or at <= END_SECOND else None
            at = stretch.at(number - counts[-1])
            if at is not None:
                return at
            if stretch.exhausted():
                return None
            self._before(len(counts))
        place = bisect_right(counts, number) - 1
        return self._stretch(place).at(number - counts[place])

    def _before(self, place: int) -> int:
        while len(self._counts) <= place:
            stretch = self._stretch(len(self._counts) - 1)
            self._counts.append(self._counts[-1] + stretch.through(stretch.stop - 1))
        return self._counts[place]

    def _stretch(self, place: int) -> "Stretch":
        while len(self._stretches) <= place:
            METER.taken += 1
            self._stretches.append(self._made(self._first + len(self._stretches)))
        return self._stretches[place]

    def _made(self, segment: int) -> "Stretch":
        zone = self._zone
        start, offset = zone.starts[segment], zone.offsets[segment]
        stop = zone.starts[segment + 1] if zone.has(segment + 1) else END_SECOND + 2
        walls = self._walls(offset)
        begin, end = start + offset, stop + offset
        head: list[int] = []
        before = zone.offsets[segment - 1] if segment else offset
        if before > offset and self._overlap == "first":
            begin = start + before
        elif before < offset and self._gap == "forward":
            begin, head = self._forwarded(walls, start, before, offset)
        if self._overlap == "second" and zone.has(segment + 1):
            end = min(end, stop + zone.offsets[segment + 1])
        return Stretch(walls, begin, end, offset, head, start, stop)

    def _forwarded(self, walls: Walls, start: int, before: int, offset: int) -> tuple[int, list[int]]:
        """What fell into the jump at `start`, merged with what was there anyway; and where plain counting begins."""
        begin = start + offset
        jumped = elements(walls, start + before, begin)
        if not jumped:
            return begin, []
        plain = elements(walls, begin, begin + offset - before)
        merged = {wall - before for wall in jumped} | {wall - offset for wall in plain}
        return begin + offset - before, sorted(merged)


class Stretch:
    """The instants while one offset holds: a `head` moved there by a jump, then wall times `begin` to `end`."""

    __slots__ = ("_base", "_begin", "_end", "_head", "_offset", "_start", "_walls", "stop")

    def __init__(self, walls: Walls, begin: int, end: int, offset: int, head: list[int], start: int, stop: int) -> None:
        self._walls = walls
        self._begin = begin
        self._end = end
        self._offset = offset
        self._head = head
        self._start = start
        self.stop = stop
        self._base = walls.before(begin)

    def through(self, instant: int) -> int:
        """How many of the stretch lie at or before the instant."""
        wall = min(instant + self._offset + 1, self._end)
        head = bisect_right(self._head, instant) if self._head else 0
        return head if wall <= self._begin else head + self._walls.before(wall) - self._base

    def at(self, number: int) -> int | None:
        """The element with this number, from 0, None behind the last one."""
        if number < len(self._head):
            return self._head[number]
        wall = self._walls.at(self._base + number - len(self._head))
        return None if wall is None or wall >= self._end else wall - self._offset

    def exhausted(self) -> bool:
        """Whether no wall time follows this stretch."""
        return self._walls.at(self._walls.before(self._end)) is None


def elements(walls: Walls, begin: int, end: int) -> list[int]:
    """The wall times from `begin` up to, not including, `end`."""
    found = [walls.at(number) for number in range(walls.before(begin), walls.before(end))]
    return [wall for wall in found if wall is not None]
