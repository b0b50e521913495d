"""Metrics with the names and labels that dashboards of the Kaspr Scheduler query. An app is a tenant here."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set

import msgspec

from tidings.clock import Clock
from tidings.domain.command import Add, Cancel, Command, Replace, address
from tidings.domain.facts import Changed, Fact, Released
from tidings.observe.metrics import LABELS_MAX, escaped, head, seconds
from tidings.ports import Count

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
                for command, outcome in zip(fact.commands, fact.outcomes, strict=True):
                    word = WORDS.get((type(command), outcome.outcome))
                    if word is None:
                        continue
                    tenant = address(command)[0]
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
