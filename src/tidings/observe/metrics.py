"""Metrics for Prometheus, counted from facts and rendered as text: of the engine, of deliveries and of Kafka."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import get_args

import numpy

from tidings.domain.errors import TidingsError
from tidings.domain.facts import Changed, Fact, Handed, Missed, Refused, Released, Revised, Standing
from tidings.domain.lateness import MissedReason
from tidings.ports import Count

BOUNDS_MS = (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500)
BOUNDS_S = (1, 2, 5, 10, 30, 60)
BOUNDS_US = (*(int(ms * 1_000) for ms in BOUNDS_MS), *(seconds * 1_000_000 for seconds in BOUNDS_S))
FEW = 24  # below this many, numpy costs more than it saves
COUNT_S_MAX = 1.0  # below the usual scrape timeout: a store that hangs must not make all metrics unavailable
LABELS_MAX = 100  # bounds the cardinality of a metric
OTHER = "other"

MetricLines = Callable[[Count | None], Iterator[str]]  # lines of another part, given the store's size if known

_SECOND_US = 1_000_000


class Histogram:
    """A histogram with upper bounds in microseconds."""

    def __init__(self, bounds_us: Sequence[int] = BOUNDS_US) -> None:
        self._bounds_us = bounds_us
        self._array = numpy.array(bounds_us, dtype=numpy.int64)
        self._counts = [0] * (len(bounds_us) + 1)
        self._sum_us = 0

    def add(self, values_us: Sequence[int]) -> None:
        """Count a batch of values."""
        if len(values_us) < FEW:
            for value in values_us:
                self._counts[bisect_left(self._bounds_us, value)] += 1
            self._sum_us += int(sum(values_us))
            return
        values = numpy.asarray(values_us, dtype=numpy.int64)
        buckets = numpy.searchsorted(self._array, values, side="left")
        added = numpy.bincount(buckets, minlength=len(self._counts)).tolist()
        self._counts = [before + more for before, more in zip(self._counts, added, strict=True)]
        self._sum_us += int(values.sum())

    @property
    def total(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def lines(self, name: str) -> Iterator[str]:
        """The cumulative buckets, the sum and the count."""
        below = 0
        for bound, count in zip(self._bounds_us, self._counts, strict=False):
            below += count
            yield f'{name}_bucket{{le="{seconds(bound)}"}} {below}'
        yield f'{name}_bucket{{le="+Inf"}} {self.total}'
        yield f"{name}_sum {seconds(self._sum_us)}"
        yield f"{name}_count {self.total}"


class Metrics:
    """A listener of facts. `render` is the response of `/metrics`; only then the store is asked for its size."""

    def __init__(
        self, version: str, count: Callable[[], Awaitable[Count]] | None = None, more: Sequence[MetricLines] = ()
    ) -> None:
        self._version = version
        self._count = count
        self._more = more
        self._lateness = Histogram()
        # All reasons are shown from the start: an alert on an increase needs the 0 before it.
        self._missed: Counter[str] = Counter(dict.fromkeys(get_args(MissedReason), 0))
        self._commands: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._moved = 0
        self._owner = False
        self._lanes = 0
        self._counting: asyncio.Task[Count | None] | None = None

    def __call__(self, fact: Fact) -> None:
        match fact:
            case Released():
                self._lateness.add(fact.lateness_us)
            case Changed():
                self._commands.update([outcome.outcome for outcome in fact.outcomes])
            case Missed():
                self._missed.update(fact.counts)
            case Refused():
                known = fact.field in self._refused or len(self._refused) < LABELS_MAX
                self._refused[fact.field if known else OTHER] += 1
            case Standing():
                self._owner, self._lanes = fact.owner, len(fact.lanes)
            case Revised():
                self._moved += fact.moved
            case Handed():
                pass  # counted as released once it is on Kafka

    async def render(self) -> bytes:
        """All metrics in the text format of Prometheus. The store's gauges are left out while it does not answer."""
        lines = list(self._counters())
        lines += family("tidings_owner", "gauge", "1 while this process takes changes.", int(self._owner))
        lines += family("tidings_lanes", "gauge", "Lanes that this process releases.", self._lanes)
        count = await self._size()
        if count is not None:
            lines += _gauges(count)
        for more in self._more:
            lines += more(count)
        up = 0 if count is None and self._count is not None else 1
        lines += family("tidings_up", "gauge", "1 while the store answers.", up)
        lines += _labelled("tidings_build_info", "gauge", "The version.", "version", {self._version: 1})
        return ("\n".join(lines) + "\n").encode()

    async def _size(self) -> Count | None:
        """The store's size, None if it does not answer in time. A store that hangs is asked only once."""
        if self._count is None:
            return None
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._counted(self._count))
        counting = self._counting
        done, _ = await asyncio.wait({counting}, timeout=COUNT_S_MAX)
        return counting.result() if done else None

    async def _counted(self, count: Callable[[], Awaitable[Count]]) -> Count | None:
        try:
            return await count()
        except TidingsError:
            return None

    def _counters(self) -> Iterator[str]:
        released = self._lateness.total
        yield from family("tidings_released_total", "counter", "Occurrences handed to the bus.", released)
        text = "Occurrences that will never be released, by reason."
        yield from _labelled("tidings_missed_total", "counter", text, "reason", self._missed)
        text = "Pending occurrences moved by a new calendar or new time zone rules."
        yield from family("tidings_moved_total", "counter", text, self._moved)
        text = "Commands committed, by outcome."
        yield from _labelled("tidings_commands_total", "counter", text, "outcome", self._commands)
        text = "Requests refused by validation, by field."
        yield from _labelled("tidings_refused_total", "counter", text, "field", self._refused)
        name = "tidings_lateness_seconds"
        yield from head(name, "histogram", "From an occurrence's due time to its release.")
        yield from self._lateness.lines(name)


def _gauges(count: Count) -> Iterator[str]:
    text = "Pending schedules."
    yield from family("tidings_pending", "gauge", text, count.pending)
    text = "Pending schedules that are overdue: the queue depth to scale by."
    yield from family("tidings_due_backlog", "gauge", text, count.overdue)
    yield from family("tidings_store_bytes", "gauge", "Size of the store on disk.", count.bytes)


def head(name: str, kind: str, text: str) -> Iterator[str]:
    """The HELP and TYPE lines of a metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def family(name: str, kind: str, text: str, value: int) -> Iterator[str]:
    """A metric with one value and no labels."""
    yield from head(name, kind, text)
    yield f"{name} {value}"


def _labelled(name: str, kind: str, text: str, label: str, values: Mapping[str, int]) -> Iterator[str]:
    yield from head(name, kind, text)
    for word, value in sorted(values.items()):
        yield f'{name}{{{label}="{escaped(word)}"}} {value}'


def escaped(text: str) -> str:
    """Escape the value of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def seconds(us: int) -> str:
    """Microseconds as seconds, exactly."""
    sign, us = ("-", -us) if us < 0 else ("", us)
    return f"{sign}{us // _SECOND_US}.{us % _SECOND_US:06}".rstrip("0").rstrip(".")
