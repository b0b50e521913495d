"""The occurrences of one schedule, numbered from 1, with its end, its count, RDATE, EXDATE and its calendar applied.

Instants are in seconds here. The expensive part, `ZonedTimes`, is shared by all schedules with the same rule in the
same time zone. A calendar excludes days; an occurrence on such a day is skipped, or moved to the next allowed day. What
moves is computed one run of excluded days at a time, as calls reach it, so that a calendar of many years costs only the
part that has passed since the schedule's first occurrence.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import GROWTH_LOCK, STEPS
from tidings.domain.recurrence.days import DAY_S, END_SECOND
from tidings.domain.recurrence.local_time import ZonedTimes, day_of, day_range, instants_of, resolve_wall
from tidings.domain.recurrence.rule import Cron, Gap, Overlap, Rule
from tidings.domain.recurrence.timezone import Zone


class Occurrences(Protocol):
    """Numbered instants, in increasing order."""

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        ...

    def at(self, number: int) -> int | None:
        """The occurrence with this number, from 1; None after the last one."""
        ...


class Listed:
    """Occurrences from a list."""

    def __init__(self, instants: Sequence[int]) -> None:
        self._instants = instants

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        return bisect_right(self._instants, instant)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        return self._instants[number - 1] if number <= len(self._instants) else None


class Bounded:
    """The occurrences of a rule from `lower` to `end`, at most `count`."""

    __slots__ = ("_base", "_count", "_end", "_zoned")

    def __init__(self, zoned: ZonedTimes, lower: int, end: int | None, count: int | None) -> None:
        self._zoned = zoned
        self._base = zoned.through(lower - 1) - 1
        self._end = END_SECOND if end is None else min(end, END_SECOND)
        self._count = count

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        found = max(0, self._zoned.through(min(instant, self._end)) - self._base - 1)
        return found if self._count is None else min(found, self._count)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        if self._count is not None and number > self._count:
            return None
        instant = self._zoned.at(self._base + number)
        return instant if instant is None or instant <= self._end else None


class WithListedDates:
    """Occurrences with RDATE and EXDATE applied: without those in `ranges`, and with those of `added`.

    Ranges are pairs of the first and the last second; they are sorted and do not touch.
    """

    def __init__(self, base: Occurrences, ranges: Sequence[tuple[int, int]], added: Sequence[int]) -> None:
        self._base = base
        self._ranges = ranges
        self._stops = [last for _, last in ranges]
        self._removed = [0]
        STEPS.taken += len(added)
        self._added = [at for at in added if not self._is_excepted(at) and not occurs_at(base, at)]

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        return self._base.through(instant) - self._removed_through(instant) + bisect_right(self._added, instant)

    def at(self, number: int) -> int | None:
        """The occurrence with this number: the first, of the base or added, through which the count reaches it.

        Among those added it is found by binary search. In the base it cannot lie before number - len(added); upward it
        is first bounded by steps that double, then found by binary search. Example: the base is 10, 20, 30, 40, without
        20, and 35 is added: 10, 30, 35, 40. For number 2 the base's 2nd (20, count 1) is too early, its 3rd (30, count
        2) fits; of the added, 35 (count 3) is the first with at least 2; the earlier of 30 and 35 is the answer.
        """
        index = bisect_left(self._added, number, key=self.through)
        added = self._added[index] if index < len(self._added) else None
        low, high, step = max(1, number - len(self._added)), number, 1
        while (at := self._base.at(high)) is not None and self.through(at) < number:
            STEPS.taken += 1
            low, high, step = high + 1, high + max(step, number - self.through(at)), step * 2
        while low < high:
            middle = (low + high) // 2
            at = self._base.at(middle)
            low, high = (low, middle) if at is None or self.through(at) >= number else (middle + 1, high)
        at = self._base.at(low)
        return min((moment for moment in (at, added) if moment is not None), default=None)

    def _removed_through(self, instant: int) -> int:
        """How many were removed up to the instant: those of whole ranges, counted once, and of a part of one."""
        whole = bisect_right(self._stops, instant)
        if len(self._removed) <= whole:
            with GROWTH_LOCK:
                for index in range(len(self._removed), whole + 1):
                    STEPS.taken += 1
                    self._removed.append(self._removed[-1] + self._between(*self._ranges[index - 1]))
        if whole < len(self._ranges) and self._ranges[whole][0] <= instant:
            return self._removed[whole] + self._between(self._ranges[whole][0], instant)
        return self._removed[whole]

    def _between(self, first: int, last: int) -> int:
        return self._base.through(last) - self._base.through(first - 1)

    def _is_excepted(self, instant: int) -> bool:
        index = bisect_left(self._stops, instant)
        return index < len(self._ranges) and self._ranges[index][0] <= instant


class Preceded:
    """Occurrences of a list, all of which lie before those of the rule that follow them."""

    __slots__ = ("_base", "_listed")

    def __init__(self, listed: Sequence[int], base: Occurrences) -> None:
        self._listed = listed
        self._base = base

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        return bisect_right(self._listed, instant) + self._base.through(instant)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        count = len(self._listed)
        return self._listed[number - 1] if number <= count else self._base.at(number - count)


class Renumbered:
    """Occurrences with `shift` added to their numbers, after a change of the rule; numbers below 1 are left out."""

    __slots__ = ("_base", "_shift")

    def __init__(self, base: Occurrences, shift: int) -> None:
        self._base = base
        self._shift = shift

    def through(self, instant: int) -> int:
        """The number of the last occurrence at or before the instant."""
        return max(0, self._base.through(instant) + self._shift)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        assert number > self._shift, "numbers up to the shift belong to an earlier version of the rule"
        return self._base.at(number - self._shift)


def occurs_at(moments: Occurrences, instant: int) -> bool:
    """Whether there is an occurrence at the instant."""
    return moments.through(instant) > moments.through(instant - 1)


EXCLUDED_MAX = 5_000
MOVED_A_DAY_MAX = 100
MOVED_MAX = 10_000
RUNS_KEPT = 8  # for how many runs the moved occurrences are cached

_NOTHING: Sequence[int] = ()


class ExcludedRuns:
    """Excluded days as runs of consecutive days, shared by all schedules with the same days."""

    __slots__ = ("days", "firsts", "lasts")

    def __init__(self, days: Iterable[int]) -> None:
        self.days = array("q", sorted(set(days)))
        self.firsts = array("q")
        self.lasts = array("q")
        for day in self.days:
            STEPS.taken += 1
            if self.lasts and self.lasts[-1] == day - 1:
                self.lasts[-1] = day
            else:
                self.firsts.append(day)
                self.lasts.append(day)


def with_listed_dates(moments: Occurrences, zone: Zone, asked: Rule | Cron, added: Sequence[int]) -> Occurrences:
    """The occurrences without the EXDATEs of a rule, and with `added` (its RDATEs)."""
    exceptions = []
    for moment in asked.excepted:
        STEPS.taken += 1
        if moment.form == "date":
            exceptions.append(day_range(zone, moment.seconds // DAY_S))
        else:
            exceptions += [(at, at) for at in instants_of(zone, moment, "forward", "both")]
    return WithListedDates(moments, merge_ranges(exceptions), added)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges that do not touch; empty ones (a day that a zone skipped) are dropped."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def check_movable(per_day_max: int) -> None:
    """Raise `Invalid` for a rule that occurs too often to be moved, whatever is in its calendar."""
    if per_day_max > MOVED_A_DAY_MAX:
        detail = (
            f"next_day can move at most {MOVED_A_DAY_MAX} occurrences a day, and the rule has up to {per_day_max:,}"
        )
        raise Invalid("on_excluded", f"{detail}: use skip, or a rule that occurs less often")


class WithoutExcludedDays:
    """Occurrences without those on excluded days.

    For each run of excluded days, from the first that matters, it keeps how many occurrences lie before the run, and by
    how much that differs from the base. Example: daily at 9:00 from the 1st on, without the 3rd and 4th. Before the run
    lie 2, with a difference of 0; after it the difference is -2. So number 3 is the base's 5th, on the 5th.
    """

    def __init__(self, base: Occurrences, zone: Zone, runs: ExcludedRuns) -> None:
        self._base = base
        self._zone = zone
        self._runs = runs
        first = base.at(1)
        self._first = len(runs.lasts) if first is None else bisect_left(runs.lasts, day_of(zone, first))
        self._more = array(
            "q"
        )  # by run: how many more occurrences than in the base lie before it (or fewer, if negative)
        self._counts = array("q")  # by run: how many occurrences lie before it

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        run = bisect_right(self._runs.firsts, day_of(self._zone, instant)) - 1
        if run < self._first:
            return self._base.through(instant)
        begin, end = self._span(run)
        self._settle(run)
        if instant <= end:
            return self._counts[run - self._first]
        out = self._base.through(end) - self._base.through(begin - 1)
        more = self._more[run - self._first] - out + bisect_right(self._moved(run), instant)
        return self._base.through(instant) + more

    def at(self, number: int) -> int | None:
        """The occurrence with this number: searched after each run, until it lies before the next one."""
        run = self._first + bisect_left(self._counts, number) - 1
        while True:
            STEPS.taken += 1
            at = self._behind(run, number)
            if at is None or run + 1 >= len(self._runs.firsts) or at < self._span(run + 1)[0]:
                return at
            run += 1
            self._settle(run)

    def _behind(self, run: int, number: int) -> int | None:
        """The occurrence with this number if no further run followed this one."""
        if run < self._first:
            return self._base.at(number)
        moved, base = self._moved(run), self._base
        passed = base.through(self._span(run)[1])
        wanted = number - self._counts[run - self._first]

        def position(index: int) -> int:
            return index + 1 + base.through(moved[index]) - passed

        index = bisect_left(range(len(moved)), wanted, key=position)
        if index < len(moved) and position(index) == wanted:
            return moved[index]
        return base.at(passed + wanted - index)

    def _settle(self, run: int) -> None:
        """Compute how many occurrences lie before each run up to this one."""
        if run - self._first < len(self._counts):
            return
        with GROWTH_LOCK:
            for settled in range(self._first + len(self._counts), run + 1):
                STEPS.taken += 1
                more = self._more_behind(settled - 1) if settled > self._first else 0
                self._more.append(more)
                self._counts.append(self._base.through(self._span(settled)[0] - 1) + more)

    def _more_behind(self, run: int) -> int:
        begin, end = self._span(run)
        out = self._base.through(end) - self._base.through(begin - 1)
        return self._more[run - self._first] - out + (len(self._moved(run)) if out else 0)

    def _span(self, run: int) -> tuple[int, int]:
        """The first and the last second of a run."""
        first = day_range(self._zone, self._runs.firsts[run])[0]
        return first, day_range(self._zone, self._runs.lasts[run])[1]

    def _moved(self, _run: int) -> Sequence[int]:
        """The instants to which the occurrences of a run are moved, sorted: none here."""
        return _NOTHING


class MovedFromExcludedDays(WithoutExcludedDays):
    """Occurrences with those on excluded days moved to the same wall time on the next allowed day; no duplicates."""

    def __init__(
        self, base: Occurrences, zone: Zone, runs: ExcludedRuns, policy: tuple[Gap, Overlap], per_day_max: int
    ) -> None:
        super().__init__(base, zone, runs)
        self._policy = policy
        self._kept: dict[int, Sequence[int]] = {}
        first = runs.firsts[self._first] if self._first < len(runs.firsts) else 0
        days = len(runs.days) - bisect_left(runs.days, first)
        if self._first < len(runs.firsts) and days * per_day_max > MOVED_MAX:
            detail = (
                f"{days:,} excluded days of up to {per_day_max:,} occurrences: next_day can move at most {MOVED_MAX:,}"
            )
            raise Invalid("on_excluded", f"{detail}; use skip, a shorter calendar, or a rule that occurs less often")

    def _moved(self, run: int) -> Sequence[int]:
        kept = self._kept.get(run)
        if kept is None:
            kept = self._compute_moved(run)
            with GROWTH_LOCK:
                if len(self._kept) >= RUNS_KEPT:
                    self._kept.clear()
                self._kept[run] = kept
        return kept

    def _compute_moved(self, run: int) -> Sequence[int]:
        begin, end = self._span(run)
        last = self._span(run + 1)[0] if run + 1 < len(self._runs.firsts) else None
        target = (self._runs.lasts[run] + 1) * DAY_S
        found: set[int] = set()
        for number in range(self._base.through(begin - 1) + 1, self._base.through(end) + 1):
            STEPS.taken += 1
            at = self._base.at(number)
            assert at is not None, "counted occurrences exist"
            second = (at + self._zone.offset_at(at)) % DAY_S
            found.update(resolve_wall(self._zone, target + second, *self._policy))
        allowed = (at for at in sorted(found) if at > end and (last is None or at < last))
        return array("q", (at for at in allowed if not occurs_at(self._base, at)))
