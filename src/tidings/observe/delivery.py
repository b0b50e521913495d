"""Metrics and log lines of deliveries, by channel, provider and state, without addresses."""

import logging
from collections import Counter
from collections.abc import Iterator

from tidings.domain.iso8601 import format_instant
from tidings.domain.telling import Called, Closed, Deferred, DeliveryFact, Ended, Opened, Poisoned
from tidings.observe.metrics import LABELS_MAX, OTHER, Histogram, family, head
from tidings.ports import Count

logger = logging.getLogger("tidings.delivery")

Labels = tuple[tuple[str, str], ...]


class DeliveryMetrics:
    """A listener of delivery facts. `lines` is what it adds to `/metrics`."""

    def __init__(self) -> None:
        self._calls: Counter[Labels] = Counter()
        self._ended: Counter[Labels] = Counter()
        self._deferred: Counter[Labels] = Counter()
        self._open: dict[str, bool] = {}  # open breakers by provider: whether our settings are the cause
        self._poisoned = 0
        self._took = Histogram()
        self._lateness = Histogram()

    def __call__(self, fact: DeliveryFact) -> None:
        match fact:
            case Called():
                _add(self._calls, channel=fact.channel, provider=fact.provider, outcome=fact.outcome)
                self._took.add([fact.took_us])
                self._lateness.add([fact.late_us])
            case Ended():
                reason = fact.reason.partition(":")[0]
                _add(self._ended, channel=fact.channel, state=fact.state, reason=reason)
            case Deferred():
                _add(self._deferred, channel=fact.channel, reason=fact.reason)
            case Opened():
                self._open[fact.provider.partition(" ")[0]] = fact.is_ours
            case Closed():
                self._open.pop(fact.provider.partition(" ")[0], None)
            case Poisoned():
                self._poisoned += 1

    def lines(self, _: Count | None) -> Iterator[str]:
        """The delivery metrics in the text format of Prometheus."""
        text = "Calls to providers, by outcome."
        yield from _labelled("tidings_provider_calls_total", "counter", text, self._calls)
        yield from _labelled("tidings_deliveries_total", "counter", "Finished deliveries.", self._ended)
        text = "Deliveries put back onto the timeline."
        yield from _labelled("tidings_deliveries_deferred_total", "counter", text, self._deferred)
        stopped: Counter[Labels] = Counter(
            {(("provider", name), ("fault", _fault(ours))): 1 for name, ours in self._open.items()}
        )
        text = "Providers that are not called now (open circuit breaker), by fault."
        yield from _labelled("tidings_provider_stopped", "gauge", text, stopped)
        text = "Poison messages on the topics of notifications."
        yield from family("tidings_deliveries_poisoned_total", "counter", text, self._poisoned)
        name = "tidings_provider_seconds"
        yield from head(name, "histogram", "Duration of calls to providers.")
        yield from self._took.lines(name)
        name = "tidings_delivery_lateness_seconds"
        yield from head(name, "histogram", "From the due time to the call to the provider.")
        yield from self._lateness.lines(name)


class DeliveryLog:
    """A listener that logs delivery facts which may need action. Normal deliveries are only counted."""

    def __call__(self, fact: DeliveryFact) -> None:
        match fact:
            case Opened():
                extra = {"fact": "opened", "provider": fact.provider, "reason": fact.reason, "detail": fact.detail}
                until = format_instant(fact.until)
                if fact.is_ours:
                    text = "%s rejects our requests (%s: %s): fix its settings; nothing is lost, next attempt at %s"
                    logger.error(text, fact.provider, fact.reason, fact.detail, until, extra=extra)
                else:
                    text = "%s fails (%s: %s): it is not called until %s, its messages wait"
                    logger.warning(text, fact.provider, fact.reason, fact.detail, until, extra=extra)
            case Closed():
                extra = {"fact": "closed", "provider": fact.provider}
                logger.info("%s works again", fact.provider, extra=extra)
            case Poisoned():
                where = f"{fact.topic}/{fact.partition}/{fact.offset}"
                extra = {"fact": "poisoned", "tenant": fact.tenant, "record": where, "reason": fact.reason}
                text = "the record %s of tenant %s is a poison message (%s): moved to notify.dead"
                logger.error(text, where, fact.tenant, fact.reason, extra=extra)
            case Called() | Ended() | Deferred():
                pass


def _fault(ours: bool) -> str:
    return "ours" if ours else "theirs"


def _add(counter: Counter[Labels], **labels: str) -> None:
    key = tuple(labels.items())
    if key not in counter and len(counter) >= LABELS_MAX:
        key = tuple((name, OTHER) for name in labels)
    counter[key] += 1


def _labelled(name: str, kind: str, text: str, counter: Counter[Labels]) -> Iterator[str]:
    yield from head(name, kind, text)
    for labels, value in sorted(counter.items()):
        written = ",".join(f'{label}="{word}"' for label, word in labels)
        yield f"{name}{{{written}}} {value}"
