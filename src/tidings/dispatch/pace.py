"""Percentiles of lateness over the last minute, from a histogram with steps of 5 % and slices of time."""

import math
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy

SPAN_US = 60_000_000
SLICE_US = 5_000_000
STEP = 1.05
STEPS = 500  # up to 11 hours; later values count in the last step
FEW = 24  # below this many, numpy costs more than it saves


class Pace(msgspec.Struct, frozen=True, gc=False):
    """How many occurrences were released, and how late they were, in microseconds."""

    released: int = 0
    p50_us: int = 0
    p99_us: int = 0
    max_us: int = 0


class Pacing:
    """Counts the lateness of releases in the last minute, in constant memory."""

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()

    def add(self, late_us: Sequence[int], elapsed: int) -> None:
        """Count a batch that was released now."""
        if not self._slices or elapsed - self._slices[-1].started >= SLICE_US:
            self._slices.append(_Slice(elapsed))
        self._slices[-1].add(late_us)
        self._forget(elapsed)

    def pace(self, elapsed: int) -> Pace:
        """The lateness of the last minute."""
        self._forget(elapsed)
        counts = sum((part.counts for part in self._slices), numpy.zeros(STEPS, dtype=numpy.int64))
        total = int(counts.sum())
        if not total:
            return Pace()
        most = max(part.max_us for part in self._slices)
        below = numpy.cumsum(counts)
        p50, p99 = (int(numpy.searchsorted(below, math.ceil(total * share))) for share in (0.5, 0.99))
        return Pace(total, min(_late(p50), most), min(_late(p99), most), most)

    def _forget(self, elapsed: int) -> None:
        while self._slices and elapsed - self._slices[0].started >= SPAN_US:
            self._slices.popleft()


class _Slice:
    def __init__(self, started: int) -> None:
        self.started = started
        self.counts = numpy.zeros(STEPS, dtype=numpy.int64)
        self.max_us = 0

    def add(self, late_us: Sequence[int]) -> None:
        if len(late_us) < FEW:
            for late in late_us:
                self.counts[_step(late)] += 1
        else:
            values = numpy.maximum(numpy.asarray(late_us, dtype=numpy.int64), 0)
            steps = numpy.ceil(numpy.log1p(values) / math.log(STEP)).astype(numpy.int64)
            self.counts += numpy.bincount(numpy.minimum(steps, STEPS - 1), minlength=STEPS)
        self.max_us = max(self.max_us, int(max(late_us, default=0)))


def _step(late_us: int) -> int:
    return min(STEPS - 1, math.ceil(math.log1p(max(0, late_us)) / math.log(STEP)))


def _late(step: int) -> int:
    """The largest value that is counted in a step."""
    return int(STEP**step) - 1
