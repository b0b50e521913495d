"""At which times of a day a rule can fall: coarse steps, and the same fine ones in each."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from tidings.domain.recurrence.calendar import DAY_S


class Times:
    """Sorted seconds of a day: every `coarse` one (a multiple of `unit`) plus every `fine` one (below `unit`)."""

    __slots__ = ("_coarse", "_fine", "_fines", "_unit", "size")

    def __init__(self, coarse: Sequence[int], fine: Sequence[int], unit: int) -> None:
        self._coarse = coarse
        self._fine = fine
        self._fines = len(fine)
        self._unit = unit
        self.size = len(coarse) * len(fine)

    def before(self, second: int) -> int:
        """How many come before this second of the day."""
        rest = second % self._unit
        begin = second - rest
        place = bisect_left(self._coarse, begin)
        if place < len(self._coarse) and self._coarse[place] == begin:
            return place * self._fines + bisect_left(self._fine, rest)
        return place * self._fines

    def at(self, number: int) -> int:
        """The second of the day with this number, from 0."""
        place, rest = divmod(number, self._fines)
        return self._coarse[place] + self._fine[rest]

    def listed(self, first: int, stop: int) -> list[int]:
        """Those from one second of the day up to, not including, another."""
        begin = bisect_left(self._coarse, first - self._unit + 1)
        coarse = self._coarse[begin : bisect_left(self._coarse, stop)]
        seconds = [start + fine for start in coarse for fine in self._fine]
        return seconds[bisect_left(seconds, first) : bisect_left(seconds, stop)]

    def least_distance(self) -> int:
        """The shortest way from one to the next, over midnight too."""
        near = [later - earlier for earlier, later in pairwise(self._fine)]
        wide = [later - earlier for earlier, later in pairwise(self._coarse)]
        inner = self._fine[-1] - self._fine[0]
        over = DAY_S - (self._coarse[-1] + self._fine[-1]) + self._coarse[0] + self._fine[0]
        return min([over, *near, *([min(wide) - inner] if wide else [])])


def picked(positions: Sequence[int], size: int) -> list[int]:
    """Which of `size` things BYSETPOS chooses, as sorted places from 0; negative positions count from the end."""
    places = {position - 1 if position > 0 else size + position for position in positions}
    return sorted(place for place in places if 0 <= place < size)
