"""Metrics for Prometheus, counted from facts and rendered as text: of the engine and of Kafka."""

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from typing import Protocol, get_args

import msgspec
import numpy

from tidings.clock import Clock
from tidings.domain.errors import TidingsError
from tidings.domain.facts import (
    Changed,
    Fact,
    Handed,
    Missed,
    OwnershipChanged,
    Refused,
    Released,
    Revised,
)
from tidings.domain.schedules.command import Add, Cancel, Command, Replace, kinds_of, tenants_of
from tidings.domain.schedules.iso8601 import format_duration
from tidings.domain.schedules.lateness import MissedReason
from tidings.domain.schedules.schedule import is_kafka
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

kafka_logger = logging.getLogger("tidings.kafka")

STATS_S = 30.0
TENANTS_MAX = 10_000  # bounds the memory
ROLES = ("D", "J")  # dispatchers and janitors in Kaspr; here one step does the work of both
PARTITION = "0"  # of the timetable in Kaspr; it is not partitioned here
OK, INITIALIZING = 0, -1

# The counter of Kaspr for each outcome of a command.
WORDS: dict[tuple[type[Command], str], str] = {
    (Add, "scheduled"): "scheduled",
    (Add, "released"): "scheduled",
    (Replace, "scheduled"): "scheduled",
    (Replace, "released"): "scheduled",
    (Replace, "replaced"): "replaced",
    (Replace, "unchanged"): "replace_noop",
    (Cancel, "cancelled"): "canceled",
}
COUNTERS = {
    "scheduled": "Schedules accepted.",
    "delivered": "Records released to Kafka.",
    "delivered_instant": "Schedules that were due when they were accepted.",
    "removed": "Records moved from the timeline to Kafka.",
    "replaced": "Schedules replaced.",
    "replace_noop": "Replacements that changed nothing.",
    "canceled": "Schedules cancelled.",
}


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

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """The cumulative buckets, the sum and the count; `labels` are written before `le`."""
        below = 0
        before, own = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
        for bound, count in zip(self._bounds_us, self._counts, strict=False):
            below += count
            yield f'{name}_bucket{{{before}le="{seconds(bound)}"}} {below}'
        yield f'{name}_bucket{{{before}le="+Inf"}} {self.total}'
        yield f"{name}_sum{own} {seconds(self._sum_us)}"
        yield f"{name}_count{own} {self.total}"


class Metrics:
    """A listener of facts. `render` is the response of `/metrics`; only then the store is asked for its size.

    `unsettled` counts the released notifications that this process has still to deliver.
    """

    def __init__(
        self,
        version: str,
        count: Callable[[], Awaitable[Count]] | None = None,
        more: Sequence[MetricLines] = (),
        unsettled: Callable[[], int] = lambda: 0,
    ) -> None:
        self._version = version
        self._count = count
        self._more = more
        self._unsettled = unsettled
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
            case OwnershipChanged():
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
            lines += _gauges(count, self._unsettled())
        for more in self._more:
            lines += more(count)
        up = 0 if count is None and self._count is not None else 1
        lines += up_lines(up)
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


def _gauges(count: Count, unsettled: int) -> Iterator[str]:
    text = "Pending schedules."
    yield from family("tidings_pending", "gauge", text, count.pending)
    text = "What is overdue: schedules that are not released, and released notifications that this process delivers."
    yield from family("tidings_due_backlog", "gauge", text, count.overdue + unsettled)
    yield from family("tidings_store_bytes", "gauge", "Size of the store on disk.", count.bytes)


def up_lines(up: int) -> Iterator[str]:
    """The metric that says whether a process works."""
    return family("tidings_up", "gauge", "1 while the store answers.", up)


def merged(texts: Mapping[str, str]) -> str:
    """The metrics of several processes as one text, in which each sample has the label `process`."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    name = ""
    for process, text in texts.items():
        for line in text.splitlines():
            if line.startswith("#"):
                _, word, name, _ = line.split(" ", 3)
                heads.setdefault(name, {}).setdefault(word, line)
            else:
                samples.setdefault(name, []).append(_with_process(line, process))
    found = (line for name, lines in heads.items() for line in (*lines.values(), *samples.get(name, ())))
    return "".join(f"{line}\n" for line in found)


def _with_process(sample: str, process: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{process="{process}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{process="{process}"}} {value}'


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


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """The labels of this process."""

    name: str
    group: str
    version: str


class KasprMetrics:
    """A listener of facts. All tenants are counted; those in `apps` are shown.

    `apps` returns None on a node that reads no requests and so does not know the apps; it shows the first 100 tenants.
    """

    def __init__(
        self,
        worker: Worker,
        apps: Callable[[], Set[str] | None],
        next_due: Callable[[], int | None],
        is_up: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._apps = apps
        self._next_due = next_due
        self._is_up = is_up
        self._clock = clock
        self._started = clock.now()
        self._counts: dict[str, Counter[str]] = {}

    def __call__(self, fact: Fact) -> None:
        match fact:
            case Released():
                for tenant, count in fact.tenants.items():
                    self._add(tenant, "delivered", count)
            case Changed():
                kinds, tenants = kinds_of(fact.commands), tenants_of(fact.commands)
                for kind, tenant, outcome in zip(kinds, tenants, fact.outcomes, strict=True):
                    word = WORDS.get((kind, outcome.outcome))
                    if word is None:
                        continue
                    self._add(tenant, word, 1)
                    if word == "scheduled" and outcome.due is not None and outcome.due <= fact.at:
                        self._add(tenant, "delivered_instant", 1)
            case _:
                pass

    def lines(self, count: Count | None) -> Iterator[str]:
        """The metrics in the text format of Prometheus; counters with and without the suffix `_total`."""
        apps = self._shown()
        now = self._clock.now()
        due = self._next_due()
        lag_us = 0 if due is None else max(0, now - due)
        about = {"group_id": self._worker.group, "kaspr_version": self._worker.version, "kms_enabled": "1"}
        yield from head("kaspr_app_info", "gauge", "When this process started, in seconds since 1970.")
        yield from self._each(apps, "kaspr_app_info", seconds(self._started), about)
        yield from head("kaspr_health", "gauge", "0 while Kafka is read and written, otherwise -1.")
        yield from self._each(apps, "kaspr_health", str(OK if self._is_up() else INITIALIZING))
        for word, text in COUNTERS.items():
            for name in (f"kaspr_kms_messages_{word}", f"kaspr_kms_messages_{word}_total"):
                yield from head(name, "counter", text)
                for app in apps:
                    yield from self._each([app], name, str(self._count(app, word)))
        yield from self._located(
            apps, "kaspr_kms_last_location_lag", "Seconds that the earliest pending schedule is overdue.", lag_us
        )
        yield from self._located(
            apps,
            "kaspr_kms_last_location_time",
            "Up to when everything is released, in seconds since 1970.",
            now - lag_us,
        )
        if count is not None:
            name = "kaspr_kms_timetable_size"
            yield from head(name, "gauge", "Pending schedules of all tenants.")
            yield from self._each(apps, name, str(count.pending))

    def _add(self, tenant: str, word: str, count: int) -> None:
        counts = self._counts.get(tenant)
        if counts is None:
            if len(self._counts) >= TENANTS_MAX and tenant not in (self._apps() or ()):
                return
            counts = self._counts[tenant] = Counter()
        counts[word] += count

    def _count(self, app: str, word: str) -> int:
        return self._counts.get(app, Counter())["delivered" if word == "removed" else word]

    def _shown(self) -> list[str]:
        apps = self._apps()
        return sorted(apps) if apps is not None else sorted(list(self._counts)[:LABELS_MAX])

    def _located(self, apps: list[str], name: str, text: str, value_us: int) -> Iterator[str]:
        yield from head(name, "gauge", text)
        for role in ROLES:
            yield from self._each(apps, name, seconds(value_us), {"type": role, "partition": PARTITION})

    def _each(self, apps: list[str], name: str, value: str, more: Mapping[str, str] | None = None) -> Iterator[str]:
        """The value once for each app, with the labels that all of Kaspr's metrics have."""
        for app in apps:
            labels = {"app_name": app, "worker_name": self._worker.name, **(more or {})}
            written = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
            yield f"{name}{{{written}}} {value}"


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
                kinds = kinds_of(fact.commands)
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
        kafka_logger.info(text, state, scheduled, rejected, released, late, metrics.lag, failures, extra=extra)

    def wake(self) -> None:
        """Nothing to do: it runs on a timer."""

    def stop(self) -> None:
        """Log the last line and end."""
        self._stopped.set()
