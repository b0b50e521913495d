"""Figures of Kafka: for Prometheus, and as a line in the log from time to time."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from tidings.domain.command import Add, Command, Replace
from tidings.domain.destination import is_kafka
from tidings.domain.facts import Changed, Fact, Released
from tidings.domain.iso8601 import format_duration
from tidings.observe.kaspr import KasprMetrics
from tidings.observe.metrics import Histogram, family, head
from tidings.ports import Count

STATS_S = 30.0

logger = logging.getLogger("tidings.kafka")


class Way(Protocol):
    """The way to Kafka, as far as it is watched."""

    @property
    def problem(self) -> str | None: ...

    @property
    def failures(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class Requests(Protocol):
    """What is read from Kafka, as far as it is watched."""

    problem: str | None
    lag: int
    rejected: int


class KafkaMetrics:
    """A listener of facts. `lines` is what it adds to `/metrics`."""

    def __init__(
        self, way: Way, requests: Requests, lost: Callable[[], int], kaspr: KasprMetrics | None = None
    ) -> None:
        self._way = way
        self._requests = requests
        self._lost = lost
        self._kaspr = kaspr
        self._release = Histogram()
        self._changes: Counter[tuple[type[Command], str]] = Counter()
        self.late_us_max = 0

    def __call__(self, fact: Fact) -> None:
        if self._kaspr is not None:
            self._kaspr(fact)
        match fact:
            case Released() if any(is_kafka(topic) for _, topic in fact.topics):
                self._release.add(fact.lateness_us)
                self.late_us_max = max(self.late_us_max, *fact.lateness_us)
            case Changed():
                kinds = map(type, fact.commands)
                self._changes.update(zip(kinds, [outcome.outcome for outcome in fact.outcomes], strict=True))
            case _:
                pass

    @property
    def released(self) -> int:
        """How many records are on Kafka."""
        return self._release.total

    @property
    def scheduled(self) -> int:
        """How many schedules were taken."""
        return self._came(Add, "scheduled", "released") + self._came(Replace, "scheduled", "released")

    @property
    def rejected(self) -> int:
        """How many records of request topics were told on rejection topics."""
        return self._requests.rejected

    @property
    def lag(self) -> int:
        """How many records of request topics wait to be read."""
        return self._requests.lag

    @property
    def failures(self) -> int:
        """How many transactions failed and led to a new take-over."""
        return self._way.failures

    @property
    def is_up(self) -> bool:
        """Whether requests are read and records released."""
        return self._way.problem is None and self._requests.problem is None

    def lines(self, count: Count | None) -> Iterator[str]:
        """Everything in Prometheus' text format."""
        yield from family("tidings_kafka_up", "gauge", "1 while Kafka is read and written.", int(self.is_up))
        text = "Records of request topics that wait to be read."
        yield from family("tidings_kafka_consumer_lag", "gauge", text, self.lag)
        text = "Records of request topics that were refused, and told on a rejection topic."
        yield from family("tidings_kafka_rejected_total", "counter", text, self.rejected)
        text = "Records that were released and are not on Kafka yet."
        yield from family("tidings_kafka_waiting", "gauge", text, self._way.waiting)
        text = "How often releasing to Kafka failed; each time it is taken up again, nothing is lost."
        yield from family("tidings_kafka_transaction_failures_total", "counter", text, self.failures)
        text = "Facts that did not reach Kafka."
        yield from family("tidings_kafka_facts_dropped_total", "counter", text, self._lost())
        name = "tidings_kafka_release_seconds"
        yield from head(name, "histogram", "From an occurrence's due time to its commit on Kafka.")
        yield from self._release.lines(name)
        if self._kaspr is not None:
            yield from self._kaspr.lines(count)

    def _came(self, kind: type[Command], *outcomes: str) -> int:
        return sum(self._changes[kind, outcome] for outcome in outcomes)


class KafkaStats:
    """A companion of the engine that logs a line of statistics from time to time."""

    problem: str | None = None

    def __init__(self, metrics: KafkaMetrics, every_s: float = STATS_S) -> None:
        self._metrics = metrics
        self._every_s = every_s
        self._stopped = asyncio.Event()
        self._before = (0, 0, 0, 0)

    async def run(self) -> None:
        """Log until stopped."""
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), self._every_s)
            self.tick()

    def tick(self) -> None:
        """One line: what happened since the one before."""
        metrics = self._metrics
        figures = (metrics.scheduled, metrics.rejected, metrics.released, metrics.failures)
        scheduled, rejected, released, failures = (new - old for new, old in zip(figures, self._before, strict=True))
        late_us, self._before, metrics.late_us_max = int(metrics.late_us_max), figures, 0
        text = "kafka %s: took %d, rejected %d, released %d, at most %s late, lag %d, failed transactions %d"
        state, late = "up" if metrics.is_up else "away", format_duration(late_us)
        extra = {
            "kafka": {
                "up": metrics.is_up,
                "scheduled": scheduled,
                "rejected": rejected,
                "released": released,
                "late_us_max": late_us,
                "lag": metrics.lag,
                "transaction_failures": failures,
            }
        }
        logger.info(text, state, scheduled, rejected, released, late, metrics.lag, failures, extra=extra)

    def wake(self) -> None:
        """There is nothing to be woken for."""

    def stop(self) -> None:
        """Log the last line, and end."""
        self._stopped.set()
