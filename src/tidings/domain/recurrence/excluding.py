"""EXDATE and excluded days as a pure change of a schedule's moments: left out, or moved to the next allowed day.

What moves is worked out run by run of excluded days, as questions reach it, so that a calendar of many years costs
what of it has passed since the schedule's first moment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.moments import Amended, Moments, has
from tidings.domain.recurrence.parts import Cron, Gap, Overlap, Rule
from tidings.domain.recurrence.resolve import day_of, day_range, instants_of, resolved
from tidings.domain.recurrence.steps import GROWING, METER
from tidings.domain.recurrence.zones import Zone

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
