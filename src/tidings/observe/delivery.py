"""Metrics and log lines of deliveries, made from facts; and the backlog of the worker of this process."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tidings.clock import Clock
from tidings.delivery.worker.consumer import Backlog
from tidings.domain.facts import (
    Called,
    Closed,
    Deferred,
    DeliveryFact,
    Ended,
    Failing,
    Opened,
    Poisoned,
    Recovered,
)
from tidings.domain.schedules.iso8601 import format_instant
from tidings.observe.metrics import LABELS_MAX, OTHER, Histogram, escaped, family, head, seconds
from tidings.ports import Count

SECOND_US = 1_000_000
BREAKERS_MAX = 10_000  # bounds the memory
ENDS_MAX = 10_000  # seconds that are remembered at least, though nobody asks for the metrics
UNCOUNTED_MAX = 256  # calls, which are counted faster together
REPEAT_US = 60_000_000  # that a provider begins to fail is logged once in this time

logger = logging.getLogger("tidings.delivery")

Labels = tuple[str, ...]  # the names of labels, or their values

_CALL: Labels = ("channel", "provider", "outcome")
_END: Labels = ("channel", "state", "reason")
_DEFERRAL: Labels = ("channel", "reason")
_STOP: Labels = ("provider", "fault")


class DeliveryMetrics:
    """A listener of delivery facts. `lines` is what it adds to `/metrics`."""

    def __init__(self) -> None:
        self._calls: Counter[Labels] = Counter()
        self._retries: Counter[Labels] = Counter()
        self._ended: Counter[Labels] = Counter()
        self._deferred: Counter[Labels] = Counter()
        self._until: dict[Labels, Counter[int]] = {}  # how many are deferred until the end of each second
        self._open: dict[str, bool] = {}  # open breakers by name: whether our settings are the cause
        self._poisoned = 0
        self._took: dict[Labels, Histogram] = {}
        self._lateness = Histogram()
        self._uncounted: list[Called] = []
        self._backlog: Callable[[], Iterable[tuple[Backlog, int]]] = lambda: ()
        self._now: Callable[[], int] = lambda: 0

    def watch(self, backlog: Callable[[], Sequence[Backlog]], clock: Clock) -> None:
        """Show the backlog of a worker too."""

        def with_age() -> Iterator[tuple[Backlog, int]]:
            now = clock.now()
            for each in backlog():
                yield each, 0 if each.oldest_due is None else max(0, now - each.oldest_due)

        self._backlog, self._now = with_age, clock.now

    def unsettled(self) -> int:
        """How many released notifications this process has still to deliver."""
        return sum(each.waiting + each.in_progress for each, _ in self._backlog())

    def called(self, fact: Called) -> None:
        """Take note of a call. There are more of these than of all other facts, so they are counted together."""
        self._uncounted.append(fact)
        if len(self._uncounted) >= UNCOUNTED_MAX:
            self._count_calls()

    def _count_calls(self) -> None:
        calls, self._uncounted = self._uncounted, []
        durations: dict[Labels, list[int]] = {}
        outcomes: Counter[Labels] = Counter((each.channel, each.provider, each.outcome) for each in calls)
        for labels, count in outcomes.items():
            _add(self._calls, labels, count)
        for each in calls:
            if each.is_retry:
                _add(self._retries, (each.channel, each.provider))
            if each.took_us is not None:
                durations.setdefault((each.channel, each.provider), []).append(each.took_us)
        for labels, took_us in durations.items():
            self._took.setdefault(_bounded(self._took, labels), Histogram()).add(took_us)
        self._lateness.add([each.late_us for each in calls])

    def __call__(self, fact: DeliveryFact) -> None:
        match fact:
            case Called():
                self.called(fact)
            case Ended():
                reason = fact.reason.partition(":")[0]
                _add(self._ended, (fact.channel, fact.state, reason), fact.count)
            case Deferred():
                _add(self._deferred, (fact.channel, fact.reason))
                labels = (fact.channel, fact.priority, fact.reason)
                ends = self._until.setdefault(_bounded(self._until, labels), Counter())
                ends[-(-fact.until // SECOND_US)] += 1
                if len(ends) > ENDS_MAX:
                    _forget(ends, fact.at)
            case Opened():
                if len(self._open) >= BREAKERS_MAX:
                    self._open.clear()
                self._open[fact.provider] = fact.is_ours
            case Closed():
                self._open.pop(fact.provider, None)
            case Poisoned():
                self._poisoned += 1
            case Failing() | Recovered():
                pass  # the calls are counted by their outcome

    def lines(self, _: Count | None) -> Iterator[str]:
        """The delivery metrics in the text format of Prometheus."""
        self._count_calls()
        yield from self._backlog_lines()
        text = "Calls to providers, by outcome."
        yield from _with_labels("tidings_provider_calls_total", "counter", text, _CALL, self._calls)
        text = "Calls to providers that repeat an earlier attempt of the same delivery."
        yield from _with_labels("tidings_delivery_retries_total", "counter", text, _CALL[:2], self._retries)
        text = "Finished deliveries."
        yield from _with_labels("tidings_deliveries_total", "counter", text, _END, self._ended)
        text = "Deliveries put back onto the timeline."
        yield from _with_labels("tidings_deliveries_deferred_total", "counter", text, _DEFERRAL, self._deferred)
        stopped: Counter[Labels] = Counter()
        for name, is_ours in self._open.items():
            _add(stopped, (name.partition(" ")[0], "ours" if is_ours else "theirs"))
        text = "Providers, and receivers of webhooks, that are not called now (open circuit breaker), by fault."
        yield from _with_labels("tidings_provider_stopped", "gauge", text, _STOP, stopped)
        text = "Poison messages on the topics of notifications."
        yield from family("tidings_deliveries_poisoned_total", "counter", text, self._poisoned)
        name = "tidings_provider_seconds"
        yield from head(name, "histogram", "Duration of calls to providers.")
        for labels, histogram in sorted(self._took.items()):
            yield from histogram.lines(name, _written(_CALL[:2], labels))
        name = "tidings_delivery_lateness_seconds"
        yield from head(name, "histogram", "From the due time to the call to the provider.")
        yield from self._lateness.lines(name)

    def _backlog_lines(self) -> Iterator[str]:
        found = [
            (_written(("channel", "priority"), (each.channel, each.priority)), each, age_us)
            for each, age_us in self._backlog()
        ]
        name = "tidings_deliveries_waiting"
        yield from head(name, "gauge", "Released notifications that this process will deliver and has not read yet.")
        yield from (f"{name}{{{labels}}} {each.waiting}" for labels, each, _ in found)
        name = "tidings_deliveries_in_progress"
        yield from head(name, "gauge", "Released notifications that this process has read and not settled.")
        yield from (f"{name}{{{labels}}} {each.in_progress}" for labels, each, _ in found)
        name = "tidings_deliveries_oldest_seconds"
        yield from head(name, "gauge", "How long the oldest of those waiting or in progress is overdue; 0 without any.")
        yield from (f"{name}{{{labels}}} {seconds(age_us)}" for labels, _, age_us in found)
        name = "tidings_deliveries_deferred"
        text = "Deliveries that this process put back onto the timeline until a later time."
        yield from _with_labels(name, "gauge", text, ("channel", "priority", "reason"), self._still_deferred())

    def _still_deferred(self) -> Counter[Labels]:
        """How many wait for a time to come; those whose time has come are forgotten, because they wait for a worker."""
        now = self._now()
        for ends in self._until.values():
            _forget(ends, now)
        return Counter({labels: ends.total() for labels, ends in self._until.items()})


def _forget(ends: Counter[int], now: int) -> None:
    """Remove the seconds that are over."""
    for end in [end for end in ends if end <= now // SECOND_US]:
        del ends[end]


class DeliveryLog:
    """A listener that logs delivery facts which may need action. Normal deliveries are only counted."""

    def __init__(self) -> None:
        self._logged_at: dict[str, int] = {}  # when it was last logged that a provider fails
        self._failing: set[str] = set()  # logged, and not answering since

    def __call__(self, fact: DeliveryFact) -> None:
        if isinstance(fact, Called | Ended | Deferred):
            return
        match fact:
            case Failing():
                self._log_failing(fact)
            case Recovered():
                if fact.provider in self._failing:
                    self._failing.discard(fact.provider)
                    extra = {"fact": "recovered", "provider": fact.provider, "failures": fact.failures}
                    calls = "call" if fact.failures == 1 else "calls"
                    logger.info("%s recovered after %d failed %s", fact.provider, fact.failures, calls, extra=extra)
            case Opened():
                self._failing.discard(fact.provider)
                _log_opened(fact)
            case Closed():
                extra = {"fact": "closed", "provider": fact.provider}
                logger.info("%s works again: its messages are sent at their next attempt", fact.provider, extra=extra)
            case Poisoned():
                where = f"{fact.topic}/{fact.partition}/{fact.offset}"
                extra = {"fact": "poisoned", "tenant": fact.tenant, "record": where, "reason": fact.reason}
                text = "the record %s of tenant %s is a poison message (%s): moved to notify.dead"
                logger.error(text, where, fact.tenant, fact.reason, extra=extra)

    def _log_failing(self, fact: Failing) -> None:
        """Log it at most once a minute for each provider: one call in a thousand may fail at any time."""
        last = self._logged_at.get(fact.provider)
        if last is not None and last <= fact.at < last + REPEAT_US:
            return
        if len(self._logged_at) >= BREAKERS_MAX:
            self._logged_at.clear()
            self._failing.clear()
        self._logged_at[fact.provider] = fact.at
        self._failing.add(fact.provider)
        extra = {"fact": "failing", "provider": fact.provider, "reason": fact.reason, "detail": fact.detail}
        text = "a call to %s failed (%s) and will be retried; after %d failures in a row it is stopped"
        logger.warning(text, fact.provider, _cause(fact), fact.failures_max, extra=extra)


def _log_opened(fact: Opened) -> None:
    name, _, receiver = fact.provider.partition(" ")
    extra = {"fact": "opened", "provider": fact.provider, "reason": fact.reason, "detail": fact.detail}
    close = f"tidings channels close {name}" + (f" --receiver {receiver}" if receiver else "")
    values = (fact.provider, _cause(fact), format_instant(fact.until), close)
    if fact.is_ours:
        text = (
            "%s rejects our requests (%s): fix its settings and restart. Its messages wait, nothing is lost; "
            "next attempt at %s; after `%s` new messages are tried at once"
        )
        logger.error(text, *values, extra=extra)
    else:
        text = (
            "%s failed repeatedly (%s) and is stopped. Its messages wait, nothing is lost; "
            "next attempt at %s; after `%s` new messages are tried at once"
        )
        logger.warning(text, *values, extra=extra)


def _cause(fact: Opened | Failing) -> str:
    return f"{fact.reason}: {fact.detail}" if fact.detail else fact.reason


def _bounded(known: Mapping[Labels, object], labels: Labels) -> Labels:
    """The values of labels, or those of all others once there are many."""
    if labels not in known and len(known) >= LABELS_MAX:
        return (OTHER,) * len(labels)
    return labels


def _add(counter: Counter[Labels], labels: Labels, count: int = 1) -> None:
    if labels in counter:
        counter[labels] += count
    else:
        counter[_bounded(counter, labels)] += count


def _written(names: Labels, labels: Labels) -> str:
    return ",".join(f'{name}="{escaped(word)}"' for name, word in zip(names, labels, strict=True))


def _with_labels(name: str, kind: str, text: str, names: Labels, counter: Counter[Labels]) -> Iterator[str]:
    yield from head(name, kind, text)
    for labels, value in sorted(counter.items()):
        yield f"{name}{{{_written(names, labels)}}} {value}"
