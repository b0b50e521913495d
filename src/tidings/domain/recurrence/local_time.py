"""From wall times to instants, under the policies for DST gaps and overlaps.

Between two transitions of a zone (a *segment*) an instant is a wall time minus a constant offset, so counting instants
there is counting wall times. The policies matter only at the transitions: `overlap` says which of two equal ranges of
wall time counts, `gap` whether a wall time in a gap is skipped or moved forward by the length of the gap. Rules below
DAILY step in exact time: both ranges of an overlap count, nothing lies in a gap, and their unit and interval are
counted by the offset at their anchor.

Example: daily at 02:30 in Berlin, in 2027. Clocks go from 02:00 to 03:00 on March 28 and from 03:00 back to 02:00 on
October 31. With `forward` the segment of summer time begins with a *head*, the occurrences that the gap moved: 03:30 on
March 28. Then follow plain wall times, the first of them 02:30 on March 29. With `skip` the head is empty. On October
31 02:30 exists in both segments: with `overlap=first` the segment of winter time counts wall times only from 03:00 on,
with `second` the segment of summer time ends at wall time 02:00, with `both` neither is cut.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count

from tidings.domain.recurrence.cache import GROWTH_LOCK, STEPS, BoundedCache
from tidings.domain.recurrence.days import DAY_S, END_SECOND
from tidings.domain.recurrence.rule import Gap, Local, Moment, Overlap
from tidings.domain.recurrence.timezone import Zone, zone_named
from tidings.domain.recurrence.wall_times import Product, WallTimes

EXHAUSTED_CHECK_SEGMENTS = 64  # exact rules check this often whether anything follows
OFFSET_MARGIN_S = 3 * DAY_S  # more than any offset, and than the length of any gap
SHORT_S = 1_200 * DAY_S  # in segments up to this long, counting is cheaper than searching for the next element
SKIPPED_MAX = 4_000
SEGMENTS_KEPT = 65_536  # of all rules together; about 400 bytes each
ANSWERS_KEPT = 16

Head = Sequence[int]
_NOTHING: Head = ()
_IDS = count()


class ZonedTimes:
    """The instants, in seconds, of a set of wall times in a time zone, from `lower` on."""

    def __init__(
        self,
        walls: Callable[[int], WallTimes],
        zone: Zone,
        gap: Gap,
        overlap: Overlap,
        lower: int,
        *,
        exact: bool = False,
    ) -> None:
        self._walls = walls  # by the offset of a segment, which matters only for exact rules
        self._exact = exact
        self._zone = zone
        self._gap = gap
        self._overlap = overlap
        self._first = zone.segment(lower)
        self._id = next(_IDS)
        self._latest: tuple[int, Segment] | None = None  # most calls are about the same segment as the one before
        self._answers: dict[int, int] = {}  # schedules that share this ask for the same few numbers
        self._heads: dict[tuple[int, int, tuple[bool, ...]], Head] = {}
        self._counts = array("q", [0])
        self._counts[0] = -self._segment(0).through(lower - 1)

    def through(self, instant: int) -> int:
        """How many elements lie at or before the instant, from `lower` on."""
        index = self._zone.segment(instant) - self._first
        if index < 0:
            return 0
        return max(0, self._count_before(index) + self._segment(index).through(instant))

    def at(self, number: int) -> int | None:
        """The element with this number, from 0."""
        answer = self._answers.get(number)
        if answer is None:
            answer = self._find(number)
            if answer is not None:
                self._remember(number, answer)
        return answer

    def _remember(self, number: int, answer: int) -> None:
        """Cache an answer. A few are enough, because the numbers that are asked for grow."""
        if len(self._answers) >= ANSWERS_KEPT:
            self._answers = {}
        self._answers[number] = answer

    def _find(self, number: int) -> int | None:
        counts = self._counts
        if counts[-1] <= number:
            with GROWTH_LOCK:
                return self._find_beyond(number)
        index = bisect_right(counts, number) - 1
        return self._segment(index).at(number - counts[index])

    def _find_beyond(self, number: int) -> int | None:
        """The element with this number, which lies after all segments counted so far."""
        counts = self._counts
        while counts[-1] <= number:
            index = len(counts) - 1
            segment = self._segment(index)
            at = segment.at(number - counts[-1])
            if at is not None:
                return at if at <= END_SECOND else None
            if segment.stop > END_SECOND or self._exhausted(index, segment):
                return None
            self._count_before(index + 1)
        index = bisect_right(counts, number) - 1
        return self._segment(index).at(number - counts[index])

    def _exhausted(self, index: int, segment: "Segment") -> bool:
        """Whether no element follows a segment. If the next one is far away, the segments up to it are marked empty."""
        if self._exact and index % EXHAUSTED_CHECK_SEGMENTS:
            return False
        following_at = self._following(index, segment)
        if following_at is None:
            return True
        last = min(
            self._zone.segment(min(following_at, END_SECOND) - OFFSET_MARGIN_S) - self._first, index + SKIPPED_MAX
        )
        count = self._count_before(index + 1)
        self._counts.extend([count] * (last - index - 1))
        return False

    def _following(self, index: int, segment: "Segment") -> int | None:
        """A lower bound for the first element after a segment; None if there is none."""
        if not self._exact:
            return following(self._walls(0), segment.end)
        found = []  # exact rules have other wall times for each offset
        for offset in set(self._zone.offsets[self._first + index :]):
            wall = following(self._walls(offset), segment.stop + offset)
            found += [] if wall is None else [wall - offset]
        return min(found, default=None)

    def _count_before(self, index: int) -> int:
        if len(self._counts) <= index:
            with GROWTH_LOCK:
                while len(self._counts) <= index:
                    segment = self._segment(len(self._counts) - 1)
                    self._counts.append(self._counts[-1] + segment.through(segment.stop - 1))
        return self._counts[index]

    def _segment(self, index: int) -> "Segment":
        latest = self._latest
        if latest is not None and latest[0] == index:
            return latest[1]
        segment = SEGMENTS.get((self._id, index))
        if segment is None:
            STEPS.taken += 1
            segment = self._build_segment(self._first + index)
            SEGMENTS.put((self._id, index), segment, 1)
        self._latest = (index, segment)
        return segment

    def _build_segment(self, segment: int) -> "Segment":
        zone = self._zone
        start, offset = zone.starts[segment], zone.offsets[segment]
        stop = zone.starts[segment + 1] if zone.has(segment + 1) else END_SECOND + 2
        walls = self._walls(offset)
        begin, end = start + offset, stop + offset
        head: Head = _NOTHING
        before = zone.offsets[segment - 1] if segment else offset
        if before > offset and self._overlap == "first":
            begin = start + before
        elif before < offset and self._gap == "forward":
            begin, head = self._gap_head(walls, start, before, offset)
        if self._overlap == "second" and zone.has(segment + 1):
            end = min(end, stop + zone.offsets[segment + 1])
        return Segment(walls, begin, end, offset, head, start, stop)

    def _gap_head(self, walls: WallTimes, start: int, before: int, offset: int) -> tuple[int, Head]:
        """The wall time from which plain counting begins after the gap at `start`, and the head before that."""
        begin, end = start + offset, start + offset + offset - before
        if walls.before(start + before) == walls.before(begin):
            return begin, _NOTHING
        if not isinstance(walls, Product):
            return end, _merge_gap(
                elements(walls, start + before, begin), elements(walls, begin, end), before, offset, start
            )
        # The same gap on such days gives the same head, year after year: computed once.
        days = tuple(walls.has_day(day) for day in range((start + before) // DAY_S, (end - 1) // DAY_S + 1))
        key = ((start + before) % DAY_S, offset - before, days)
        if key not in self._heads:
            listed = walls.listed(start + before, begin), walls.listed(begin, end)
            self._heads[key] = _merge_gap(*listed, before, offset, start)
        return end, self._heads[key]


class Segment:
    """The instants of one segment: the `head` after a gap (in seconds from `start`), then wall times up to `end`."""

    __slots__ = ("_base", "_begin", "_head", "_offset", "_short", "_start", "_walls", "end", "stop")

    def __init__(self, walls: WallTimes, begin: int, end: int, offset: int, head: Head, start: int, stop: int) -> None:
        self._walls = walls
        self._begin = begin
        self.end = end
        self._offset = offset
        self._head = head
        self._start = start
        self.stop = stop
        self._base = walls.before(begin)
        self._short = stop - start < SHORT_S

    def through(self, instant: int) -> int:
        """How many elements of the segment lie at or before the instant."""
        wall = min(instant + self._offset + 1, self.end)
        head = bisect_right(self._head, instant - self._start) if self._head else 0
        return head if wall <= self._begin else head + self._walls.before(wall) - self._base

    def at(self, number: int) -> int | None:
        """The element with this number, from 0; None after the last one."""
        if number < len(self._head):
            return self._start + self._head[number]
        index = self._base + number - len(self._head)
        if self._short and index >= self._walls.before(self.end):
            return None  # without searching for the next element, which may be far away
        wall = self._walls.at(index)
        return None if wall is None or wall >= self.end else wall - self._offset


SEGMENTS: BoundedCache[tuple[int, int], Segment] = BoundedCache(SEGMENTS_KEPT)


def following(walls: WallTimes, wall: int) -> int | None:
    """The first element at or after a wall time."""
    return walls.at(walls.before(wall))


def _merge_gap(in_gap: list[int], plain: list[int], before: int, offset: int, start: int) -> Head:
    """The elements moved out of a gap and those that lie after it anyway, without duplicates, in seconds from it."""
    return array("i", sorted({wall - before - start for wall in in_gap} | {wall - offset - start for wall in plain}))


def elements(walls: WallTimes, begin: int, end: int) -> list[int]:
    """The wall times from `begin` up to, not including, `end`."""
    found = [walls.at(number) for number in range(walls.before(begin), walls.before(end))]
    return [wall for wall in found if wall is not None]


def resolve_wall(zone: Zone, wall: int, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants, in seconds, of a wall time: one, or two with `both`, or none with `skip`."""
    found = zone.instants(wall)
    if not found:
        return [zone.before_gap(wall)] if gap == "forward" else []
    match overlap:
        case "first":
            return found[:1]
        case "second":
            return found[-1:]
        case "both":
            return found


def is_swallowed(when: object) -> bool:
    """Whether it is a single wall time in a DST gap whose policy is `skip`, by the time zone rules known now.

    Rules can change until that day. So it stays pending like any other, until the instant to which `forward` would move
    it, and counts as missed only then.
    """
    return isinstance(when, Local) and when.gap == "skip" and not zone_named(when.zone).instants(when.wall)


def instant_of_wall(zone: Zone, wall: int, fold: int) -> int:
    """The instant of a wall time: the second of two if `fold` is 1, moved forward if it lies in a gap."""
    return resolve_wall(zone, wall, "forward", "second" if fold else "first")[0]


def instants_of(zone: Zone, moment: Moment, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants of a time as written; a date means its midnight."""
    if moment.form == "utc":
        return [moment.seconds]
    if moment.fold:
        return [instant_of_wall(zone, moment.seconds, moment.fold)]
    return resolve_wall(zone, moment.seconds, gap, overlap)


def day_range(zone: Zone, day: int) -> tuple[int, int]:
    """The first and the last second of a day (since 1970) in a time zone."""
    first = instant_of_wall(zone, day * DAY_S, 0)
    return first, instant_of_wall(zone, (day + 1) * DAY_S, 0) - 1


def day_of(zone: Zone, instant: int) -> int:
    """The day (since 1970) in whose `day_range` an instant lies, even where clocks go back across midnight."""
    day = (instant + zone.offset_at(instant)) // DAY_S
    return day + 1 if instant_of_wall(zone, (day + 1) * DAY_S, 0) <= instant else day


def end_of(zone: Zone, moment: Moment) -> int:
    """The last second before an end: the last of the day for a date, the second of two equal wall times."""
    if moment.form == "date":
        return day_range(zone, moment.seconds // DAY_S)[1]
    return max(instants_of(zone, moment, "forward", "second"))
