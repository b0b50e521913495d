"""Sets of wall times with two operations: how many elements lie before a time, and which element is the k-th.

Everything else follows from these two: the next occurrence, the previous one, how many were missed. A set begins with a
year (`origin_year`, nothing lies before it) and keeps the number of elements before each year, so that later calls cost
a few microseconds, however old the anchor of the rule is.

Example: 9:00 and 17:00 on weekdays, from 2027 on. 2027 has 261 weekdays, so 522 elements, and 2028 begins with number
522. Before Tuesday 2027-01-05 12:00 lie the elements of two earlier weekdays (January 1 and 4), 4 in all, and one of
the day itself: 5. Number 5 is found the other way round: 5 = 2 * 2 + 1, the second time of the third weekday.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from tidings.domain.recurrence.calendar import DAY_S


class TimesOfDay:
    """A set of seconds of the day: each of `coarse` (multiples of `unit`) plus each of `fine` (less than `unit`).

    9:00, 9:30, 17:00 and 17:30 are coarse = (9 h, 17 h), fine = (0, 30 min) and unit = 1 h.
    """

    __slots__ = ("_coarse", "_fine", "_fines", "_unit", "size")

    def __init__(self, coarse: Sequence[int], fine: Sequence[int], unit: int) -> None:
        self._coarse = coarse
        self._fine = fine
        self._fines = len(fine)
        self._unit = unit
        self.size = len(coarse) * len(fine)

    def before(self, second: int) -> int:
        """How many elements lie before this second of the day."""
        rest = second % self._unit
        begin = second - rest
        place = bisect_left(self._coarse, begin)
        if place < len(self._coarse) and self._coarse[place] == begin:
            return place * self._fines + bisect_left(self._fine, rest)
        return place * self._fines

    def at(self, number: int) -> int:
        """The element with this number, from 0."""
        place, rest = divmod(number, self._fines)
        return self._coarse[place] + self._fine[rest]

    def listed(self, first: int, stop: int) -> list[int]:
        """The elements from `first` up to, not including, `stop`."""
        begin = bisect_left(self._coarse, first - self._unit + 1)
        coarse = self._coarse[begin : bisect_left(self._coarse, stop)]
        seconds = [start + fine for start in coarse for fine in self._fine]
        return seconds[bisect_left(seconds, first) : bisect_left(seconds, stop)]

    def least_distance(self) -> int:
        """The shortest time from one element to the next, including across midnight."""
        near = [later - earlier for earlier, later in pairwise(self._fine)]
        wide = [later - earlier for earlier, later in pairwise(self._coarse)]
        inner = self._fine[-1] - self._fine[0]
        over = DAY_S - (self._coarse[-1] + self._fine[-1]) + self._coarse[0] + self._fine[0]
        return min([over, *near, *([min(wide) - inner] if wide else [])])


def pick_positions(positions: Sequence[int], size: int) -> list[int]:
    """The elements that BYSETPOS selects of `size`, as sorted numbers from 0; negative positions count from the end."""
    places = {position - 1 if position > 0 else size + position for position in positions}
    return sorted(place for place in places if 0 <= place < size)
