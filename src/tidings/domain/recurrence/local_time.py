"""From wall times to instants: each stretch of constant offset is counted on its own.

Between two transitions wall time is an instant plus a constant, so counting there is counting wall times. What the
policies change lies at the transitions: `overlap` says which of two equal stretches of wall time counts, `gap` whether
what falls into a jump is left out or moved by the jump's length. Rules below DAILY step in exact time: both stretches
count, nothing falls into a jump, and their unit and interval are counted on the clock of the anchor.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count

from tidings.domain.recurrence.cache import GROWING, METER, Kept
from tidings.domain.recurrence.days import DAY_S, END_SECOND
from tidings.domain.recurrence.rule import Gap, Local, Moment, Overlap
from tidings.domain.recurrence.timezone import Zone, zone_named
from tidings.domain.recurrence.wall_times import Product, Walls

PATIENCE = 64  # stretches to look at before asking whether anything follows at all
SAFE_S = 3 * DAY_S  # further than any offset or jump moves anything
SHORT_S = 1_200 * DAY_S  # so much may be counted for nothing
SKIPPED_MAX = 4_000
STRETCHES_KEPT = 65_536  # of all rules together, some 400 bytes each
ANSWERS_KEPT = 16

Head = Sequence[int]
_NOTHING: Head = ()
_IDS = count()


class Zoned:
    """The instants, in seconds, of a set of wall times in a zone, from `lower` on."""

    def __init__(
        self, walls: Callable[[int], Walls], zone: Zone, gap: Gap, overlap: Overlap, lower: int, *, exact: bool = False
    ) -> None:
        self._walls = walls  # by the offset of a stretch; only where exact does it matter
        self._exact = exact
        self._zone = zone
        self._gap = gap
        self._overlap = overlap
        self._first = zone.segment(lower)
        self._id = next(_IDS)
        self._latest: tuple[int, Stretch] | None = None  # most questions are about the same stretch as the last one
        self._answers: dict[int, int] = {}  # at one time all schedules that share this ask for the same few
        self._heads: dict[tuple[int, int, tuple[bool, ...]], Head] = {}
        self._counts = array("q", [0])
        self._counts[0] = -self._stretch(0).through(lower - 1)

    def through(self, instant: int) -> int:
        """How many lie at or before the instant, from `lower` on."""
        place = self._zone.segment(instant) - self._first
        if place < 0:
            return 0
        return max(0, self._before(place) + self._stretch(place).through(instant))

    def at(self, number: int) -> int | None:
        """The element with this number, from 0."""
        answer = self._answers.get(number)
        if answer is None:
            answer = self._found(number)
            if answer is not None:
                self._keep(number, answer)
        return answer

    def _keep(self, number: int, answer: int) -> None:
        """Remember an answer; a few at a time, because what is asked for moves on."""
        if len(self._answers) >= ANSWERS_KEPT:
            self._answers = {}
        self._answers[number] = answer

    def _found(self, number: int) -> int | None:
        counts = self._counts
        if counts[-1] <= number:
            with GROWING:
                return self._beyond(number)
        place = bisect_right(counts, number) - 1
        return self._stretch(place).at(number - counts[place])

    def _beyond(self, number: int) -> int | None:
        """The element with this number, which lies behind all that was counted before."""
        counts = self._counts
        while counts[-1] <= number:
            place = len(counts) - 1
            stretch = self._stretch(place)
            at = stretch.at(number - counts[-1])
            if at is not None:
                return at if at <= END_SECOND else None
            if stretch.stop > END_SECOND or self._exhausted(place, stretch):
                return None
            self._before(place + 1)
        place = bisect_right(counts, number) - 1
        return self._stretch(place).at(number - counts[place])

    def _exhausted(self, place: int, stretch: "Stretch") -> bool:
        """Whether no wall time follows a stretch. If one does, far away, the stretches before it are known empty."""
        if self._exact and place % PATIENCE:
            return False
        following_at = self._following(place, stretch)
        if following_at is None:
            return True
        last = min(self._zone.segment(min(following_at, END_SECOND) - SAFE_S) - self._first, place + SKIPPED_MAX)
        count = self._before(place + 1)
        self._counts.extend([count] * (last - place - 1))
        return False

    def _following(self, place: int, stretch: "Stretch") -> int | None:
        """About when the first wall time behind a stretch comes, never too late."""
        if not self._exact:
            return following(self._walls(0), stretch.end)
        found = []  # each offset has wall times of its own
        for offset in set(self._zone.offsets[self._first + place :]):
            wall = following(self._walls(offset), stretch.stop + offset)
            found += [] if wall is None else [wall - offset]
        return min(found, default=None)

    def _before(self, place: int) -> int:
        if len(self._counts) <= place:
            with GROWING:
                while len(self._counts) <= place:
                    stretch = self._stretch(len(self._counts) - 1)
                    self._counts.append(self._counts[-1] + stretch.through(stretch.stop - 1))
        return self._counts[place]

    def _stretch(self, place: int) -> "Stretch":
        latest = self._latest
        if latest is not None and latest[0] == place:
            return latest[1]
        stretch = STRETCHES.get((self._id, place))
        if stretch is None:
            METER.taken += 1
            stretch = self._made(self._first + place)
            STRETCHES.put((self._id, place), stretch, 1)
        self._latest = (place, stretch)
        return stretch

    def _made(self, segment: int) -> "Stretch":
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
            begin, head = self._forwarded(walls, start, before, offset)
        if self._overlap == "second" and zone.has(segment + 1):
            end = min(end, stop + zone.offsets[segment + 1])
        return Stretch(walls, begin, end, offset, head, start, stop)

    def _forwarded(self, walls: Walls, start: int, before: int, offset: int) -> tuple[int, Head]:
        """Where plain counting begins behind the jump at `start`, and what lies before that, in seconds from it."""
        begin, end = start + offset, start + offset + offset - before
        if walls.before(start + before) == walls.before(begin):
            return begin, _NOTHING
        if not isinstance(walls, Product):
            return end, _merged(
                elements(walls, start + before, begin), elements(walls, begin, end), before, offset, start
            )
        # On such days the same times fall into the same jump, year after year: worked out once.
        days = tuple(walls.has_day(day) for day in range((start + before) // DAY_S, (end - 1) // DAY_S + 1))
        key = ((start + before) % DAY_S, offset - before, days)
        if key not in self._heads:
            listed = walls.listed(start + before, begin), walls.listed(begin, end)
            self._heads[key] = _merged(*listed, before, offset, start)
        return end, self._heads[key]


class Stretch:
    """The instants while one offset holds: a `head` (seconds from `start`) behind a jump, then wall times to `end`."""

    __slots__ = ("_base", "_begin", "_head", "_offset", "_short", "_start", "_walls", "end", "stop")

    def __init__(self, walls: Walls, begin: int, end: int, offset: int, head: Head, start: int, stop: int) -> None:
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
        """How many of the stretch lie at or before the instant."""
        wall = min(instant + self._offset + 1, self.end)
        head = bisect_right(self._head, instant - self._start) if self._head else 0
        return head if wall <= self._begin else head + self._walls.before(wall) - self._base

    def at(self, number: int) -> int | None:
        """The element with this number, from 0, None behind the last one."""
        if number < len(self._head):
            return self._start + self._head[number]
        place = self._base + number - len(self._head)
        if self._short and place >= self._walls.before(self.end):
            return None  # without a look at what follows, which may be far away
        wall = self._walls.at(place)
        return None if wall is None or wall >= self.end else wall - self._offset


STRETCHES: Kept[tuple[int, int], Stretch] = Kept(STRETCHES_KEPT)


def following(walls: Walls, wall: int) -> int | None:
    """The first element at or behind a wall time."""
    return walls.at(walls.before(wall))


def _merged(jumped: list[int], plain: list[int], before: int, offset: int, start: int) -> Head:
    """What fell into a jump and what was there anyway, each once, in seconds behind the jump."""
    return array("i", sorted({wall - before - start for wall in jumped} | {wall - offset - start for wall in plain}))


def elements(walls: Walls, begin: int, end: int) -> list[int]:
    """The wall times from `begin` up to, not including, `end`."""
    found = [walls.at(number) for number in range(walls.before(begin), walls.before(end))]
    return [wall for wall in found if wall is not None]


def resolved(zone: Zone, wall: int, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants, in seconds, at which a wall time counts: one, or two of `both`, or none of `skip`."""
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
    """Whether it is one wall time that clocks jump over, as far as is known, and it is to be skipped then.

    That is certain only when the day has come: until then a government can change its mind. So it waits like any other,
    for the instant to which `forward` would move it, and is missed there.
    """
    return isinstance(when, Local) and when.gap == "skip" and not zone_named(when.zone).instants(when.wall)


def folded(zone: Zone, wall: int, fold: int) -> int:
    """The instant of a wall time, the second of two if `fold` says so; what clocks jump over moves forward."""
    return resolved(zone, wall, "forward", "second" if fold else "first")[0]


def instants_of(zone: Zone, moment: Moment, gap: Gap, overlap: Overlap) -> list[int]:
    """The instants that a written moment names; a date is its midnight."""
    if moment.form == "utc":
        return [moment.seconds]
    if moment.fold:
        return [folded(zone, moment.seconds, moment.fold)]
    return resolved(zone, moment.seconds, gap, overlap)


def day_range(zone: Zone, day: int) -> tuple[int, int]:
    """The first and the last second of a day (since 1970) in a zone."""
    first = folded(zone, day * DAY_S, 0)
    return first, folded(zone, (day + 1) * DAY_S, 0) - 1


def day_of(zone: Zone, instant: int) -> int:
    """The day (since 1970) in whose range an instant lies, also where clocks went back over midnight."""
    day = (instant + zone.offset_at(instant)) // DAY_S
    return day + 1 if folded(zone, (day + 1) * DAY_S, 0) <= instant else day


def end_of(zone: Zone, moment: Moment) -> int:
    """The last second of a written end: a date counts as a whole, of two equal times the second."""
    if moment.form == "date":
        return day_range(zone, moment.seconds // DAY_S)[1]
    return max(instants_of(zone, moment, "forward", "second"))
