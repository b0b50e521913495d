"""Metrics of Kafka: for Prometheus, and as a regular line in the log."""

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


class ReleaseStatus(Protocol):
    """The state of releases to Kafka."""

    @property
    def problem(self) -> str | None: ...

    @property
    def failures(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class IntakeStatus(Protocol):
    """The state of the intake from Kafka."""

    problem: str | None
    lag: int
    rejected: int


class KafkaMetrics:
    """A listener of facts. `lines` is what it adds to `/metrics`."""

    def __init__(
        self,
        release: ReleaseStatus,
        intake: IntakeStatus,
        dropped: Callable[[], int],
        kaspr: KasprMetrics | None = None,
    ) -> None:
        self._release = release
        self._intake = intake
        self._dropped = dropped
        self._kaspr = kaspr
        self._lateness = Histogram()
        self._changes: Counter[tuple[type[Command], str]] = Counter()
        self.late_us_max = 0

    def __call__(self, fact: Fact) -> None:
        if self._kaspr is not None:
            self._kaspr(fact)
        match fact:
            case Released() if any(is_kafka(topic) for _, topic in fact.topics):
                self._lateness.add(fact.lateness_us)
                self.late_us_max = max(self.late_us_max, *fact.lateness_us)
            case Changed():
                kinds = map(type, fact.commands)
                self._changes.update(zip(kinds, [outcome.outcome for outcome in fact.outcomes], strict=True))
            case _:
                pass

    @property
    def released(self) -> int:
        """How many records were released to Kafka."""
        return self._lateness.total

    @property
    def scheduled(self) -> int:
        """How many schedules were accepted."""
        return self._came(Add, "scheduled", "released") + self._came(Replace, "scheduled", "released")

    @property
    def rejected(self) -> int:
        """How many records of request topics were refused."""
        return self._intake.rejected

    @property
    def lag(self) -> int:
        """How many records of request topics are not read yet."""
        return self._intake.lag

    @property
    def failures(self) -> int:
        """How many transactions failed and led to a new take-over."""
        return self._release.failures

    @property
    def is_up(self) -> bool:
        """Whether requests are read and records released."""
        return self._release.problem is None and self._intake.problem is None

    def lines(self, count: Count | None) -> Iterator[str]:
        """The Kafka metrics in the text format of Prometheus."""
        yield from family(
            "tidings_kafka_up", "gauge", "1 while requests are read and records released.", int(self.is_up)
        )
        text = "Records of request topics that are not read yet."
        yield from family("tidings_kafka_consumer_lag", "gauge", text, self.lag)
        text = "Records of request topics that were refused."
        yield from family("tidings_kafka_rejected_total", "counter", text, self.rejected)
        text = "Records in the outbox that are not on Kafka yet."
        yield from family("tidings_kafka_waiting", "gauge", text, self._release.waiting)
        text = "Failed transactions; they are retried and nothing is lost."
        yield from family("tidings_kafka_transaction_failures_total", "counter", text, self.failures)
        text = "Facts that were not delivered to Kafka."
        yield from family("tidings_kafka_facts_dropped_total", "counter", text, self._dropped())
        name = "tidings_kafka_release_seconds"
        yield from head(name, "histogram", "From an occurrence's due time to its commit on Kafka.")
        yield from self._lateness.lines(name)
        if self._kaspr is not None:
            yield from self._kaspr.lines(count)

    def _came(self, kind: type[Command], *outcomes: str) -> int:
        return sum(self._changes[kind, outcome] for outcome in outcomes)


class KafkaStats:
    """A background service that logs a line of statistics every 30 s."""

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
        """Log one line: the changes since the last one."""
        metrics = self._metrics
        figures = (metrics.scheduled, metrics.rejected, metrics.released, metrics.failures)
        scheduled, rejected, released, failures = (new - old for new, old in zip(figures, self._before, strict=True))
        late_us, self._before, metrics.late_us_max = int(metrics.late_us_max), figures, 0
        text = "kafka %s: took %d, rejected %d, released %d, at most %s late, lag %d, failed transactions %d"
        state, late = "up" if metrics.is_up else "down", format_duration(late_us)
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
        """Nothing to do: it runs on a timer."""

    def stop(self) -> None:
        """Log the last line and end."""
        self._stopped.set()
