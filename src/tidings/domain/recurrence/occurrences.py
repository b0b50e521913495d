"""The moments of one schedule: numbered from 1, bounded by an end and a count, with single ones added or left out.

Instants are seconds here. The heavy part, `Zoned`, is shared by all schedules with the same rule in the same zone.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import GROWING, METER
from tidings.domain.recurrence.days import DAY_S, END_SECOND
from tidings.domain.recurrence.local_time import Zoned, day_of, day_range, instants_of, resolved
from tidings.domain.recurrence.rule import Cron, Gap, Overlap, Rule
from tidings.domain.recurrence.timezone import Zone


class Moments(Protocol):
    """Numbered instants."""

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        ...

    def at(self, number: int) -> int | None:
        """The moment with this number, from 1; None behind the last one."""
        ...


class Few:
    """Instants that are simply listed."""

    def __init__(self, instants: Sequence[int]) -> None:
        self._instants = instants

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        return bisect_right(self._instants, instant)

    def at(self, number: int) -> int | None:
        """The moment with this number."""
        return self._instants[number - 1] if number <= len(self._instants) else None


class Bounded:
    """What a rule gives from `lower` to `end`, at most `count` of it."""

    __slots__ = ("_base", "_count", "_end", "_zoned")

    def __init__(self, zoned: Zoned, lower: int, end: int | None, count: int | None) -> None:
        self._zoned = zoned
        self._base = zoned.through(lower - 1) - 1
        self._end = END_SECOND if end is None else min(end, END_SECOND)
        self._count = count

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        found = max(0, self._zoned.through(min(instant, self._end)) - self._base - 1)
        return found if self._count is None else min(found, self._count)

    def at(self, number: int) -> int | None:
        """The moment with this number."""
        if self._count is not None and number > self._count:
            return None
        instant = self._zoned.at(self._base + number)
        return instant if instant is None or instant <= self._end else None


class Amended:
    """Moments without what lies in some ranges (first and last second, sorted, apart), and with some more."""

    def __init__(self, base: Moments, ranges: Sequence[tuple[int, int]], added: Sequence[int]) -> None:
        self._base = base
        self._ranges = ranges
        self._stops = [last for _, last in ranges]
        self._removed = [0]
        METER.taken += len(added)
        self._added = [at for at in added if not self._falls_out(at) and not has(base, at)]

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        return self._base.through(instant) - self._removed_through(instant) + bisect_right(self._added, instant)

    def at(self, number: int) -> int | None:
        """The moment with this number: of what was there and of what was added, the first at which the count fits."""
        place = bisect_left(self._added, number, key=self.through)
        added = self._added[place] if place < len(self._added) else None
        low, high, step = max(1, number - len(self._added)), number, 1
        while (at := self._base.at(high)) is not None and self.through(at) < number:
            METER.taken += 1
            low, high, step = high + 1, high + max(step, number - self.through(at)), step * 2
        while low < high:
            middle = (low + high) // 2
            at = self._base.at(middle)
            low, high = (low, middle) if at is None or self.through(at) >= number else (middle + 1, high)
        at = self._base.at(low)
        return min((moment for moment in (at, added) if moment is not None), default=None)

    def _removed_through(self, instant: int) -> int:
        """How many were taken out up to the instant: whole ranges, counted once, and part of one."""
        whole = bisect_right(self._stops, instant)
        if len(self._removed) <= whole:
            with GROWING:
                for place in range(len(self._removed), whole + 1):
                    METER.taken += 1
                    self._removed.append(self._removed[-1] + self._between(*self._ranges[place - 1]))
        if whole < len(self._ranges) and self._ranges[whole][0] <= instant:
            return self._removed[whole] + self._between(self._ranges[whole][0], instant)
        return self._removed[whole]

    def _between(self, first: int, last: int) -> int:
        return self._base.through(last) - self._base.through(first - 1)

    def _falls_out(self, instant: int) -> bool:
        place = bisect_left(self._stops, instant)
        return place < len(self._ranges) and self._ranges[place][0] <= instant


class Shifted:
    """Moments whose numbers go on from what was numbered before, or leave out the first ones."""

    __slots__ = ("_base", "_shift")

    def __init__(self, base: Moments, shift: int) -> None:
        self._base = base
        self._shift = shift

    def through(self, instant: int) -> int:
        """The number of the last one at or before the instant."""
        return max(0, self._base.through(instant) + self._shift)

    def at(self, number: int) -> int | None:
        """The moment with this number."""
        assert number > self._shift, "what was numbered before has no moment here"
        return self._base.at(number - self._shift)


def has(moments: Moments, instant: int) -> bool:
    """Whether one lies at the instant."""
    return moments.through(instant) > moments.through(instant - 1)


EXCLUDED_MAX = 5_000
MOVED_A_DAY_MAX = 100
MOVED_MAX = 10_000
RUNS_KEPT = 8  # of what was moved, so many runs are kept

_NOTHING: Sequence[int] = ()


class Runs:
    """Excluded days as runs of neighbours, shared by all schedules that keep to the same days."""

    __slots__ = ("days", "firsts", "lasts")

    def __init__(self, days: Iterable[int]) -> None:
        self.days = array("q", sorted(set(days)))
        self.firsts = array("q")
        self.lasts = array("q")
        for day in self.days:
            METER.taken += 1
            if self.lasts and self.lasts[-1] == day - 1:
                self.lasts[-1] = day
            else:
                self.firsts.append(day)
                self.lasts.append(day)


def amended(moments: Moments, zone: Zone, asked: Rule | Cron, added: Sequence[int]) -> Moments:
    """The moments without what is excepted and with what is added."""
    exceptions = []
    for moment in asked.excepted:
        METER.taken += 1
        if moment.form == "date":
            exceptions.append(day_range(zone, moment.seconds // DAY_S))
        else:
            exceptions += [(at, at) for at in instants_of(zone, moment, "forward", "both")]
    return Amended(moments, merged(exceptions), added)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges sorted and apart; empty ones (a day that a zone skipped) are dropped."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def check_movable(most_a_day: int) -> None:
    """Raise `Invalid` for a rule that occurs too often to be moved, whatever its calendar will hold."""
    if most_a_day > MOVED_A_DAY_MAX:
        detail = f"up to {most_a_day:,} occurrences lie on one day, at most {MOVED_A_DAY_MAX} can move"
        raise Invalid("on_excluded", f"{detail}: use skip, or a rule that occurs less often")


class Excluding:
    """Moments without what lies on excluded days, or with it at the same wall time on the next allowed day."""

    def __init__(self, base: Moments, zone: Zone, runs: Runs) -> None:
        self._base = base
        self._zone = zone
        self._runs = runs
        first = base.at(1)
        self._first = len(runs.lasts) if first is None else bisect_left(runs.lasts, day_of(zone, first))
        self._more = array("q")  # by run: how many more than of the base, or fewer, lie before it
        self._counts = array("q")  # and how many that is

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
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
        """The moment with this number: looked for behind each run, until it lies before the next one."""
        run = self._first + bisect_left(self._counts, number) - 1
        while True:
            METER.taken += 1
            at = self._behind(run, number)
            if at is None or run + 1 >= len(self._runs.firsts) or at < self._span(run + 1)[0]:
                return at
            run += 1
            self._settle(run)

    def _behind(self, run: int, number: int) -> int | None:
        """The moment with this number if no further run followed."""
        if run < self._first:
            return self._base.at(number)
        moved, base = self._moved(run), self._base
        passed = base.through(self._span(run)[1])
        wanted = number - self._counts[run - self._first]

        def position(place: int) -> int:
            return place + 1 + base.through(moved[place]) - passed

        place = bisect_left(range(len(moved)), wanted, key=position)
        if place < len(moved) and position(place) == wanted:
            return moved[place]
        return base.at(passed + wanted - place)

    def _settle(self, run: int) -> None:
        """Work out how many lie before each run up to this one."""
        if run - self._first < len(self._counts):
            return
        with GROWING:
            for settled in range(self._first + len(self._counts), run + 1):
                METER.taken += 1
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
        """What the moments of a run became, sorted: here nothing."""
        return _NOTHING


class Moving(Excluding):
    """What lies on excluded days happens on the next allowed day instead; what is there already is not doubled."""

    def __init__(self, base: Moments, zone: Zone, runs: Runs, policy: tuple[Gap, Overlap], most_a_day: int) -> None:
        super().__init__(base, zone, runs)
        self._policy = policy
        self._kept: dict[int, Sequence[int]] = {}
        first = runs.firsts[self._first] if self._first < len(runs.firsts) else 0
        days = len(runs.days) - bisect_left(runs.days, first)
        if self._first < len(runs.firsts) and days * most_a_day > MOVED_MAX:
            detail = f"{days:,} excluded days of up to {most_a_day:,} occurrences, at most {MOVED_MAX:,} can move"
            raise Invalid("on_excluded", f"{detail}: use skip, a shorter calendar, or a rule that occurs less often")

    def _moved(self, run: int) -> Sequence[int]:
        kept = self._kept.get(run)
        if kept is None:
            kept = self._worked_out(run)
            with GROWING:
                if len(self._kept) >= RUNS_KEPT:
                    self._kept.clear()
                self._kept[run] = kept
        return kept

    def _worked_out(self, run: int) -> Sequence[int]:
        begin, end = self._span(run)
        last = self._span(run + 1)[0] if run + 1 < len(self._runs.firsts) else None
        target = (self._runs.lasts[run] + 1) * DAY_S
        found: set[int] = set()
        for number in range(self._base.through(begin - 1) + 1, self._base.through(end) + 1):
            METER.taken += 1
            at = self._base.at(number)
            assert at is not None, "what was counted is there"
            second = (at + self._zone.offset_at(at)) % DAY_S
            found.update(resolved(self._zone, target + second, *self._policy))
        allowed = (at for at in sorted(found) if at > end and (last is None or at < last))
        return array("q", (at for at in allowed if not has(self._base, at)))
