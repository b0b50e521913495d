"""Metrics and logs of deliveries."""

import logging

import pytest

from tidings.domain.facts import Called, Closed, Deferred, Ended, Opened, Poisoned
from tidings.observe.metrics import DeliveryLog, DeliveryMetrics

BROKEN = Opened(1, "smtp", "credentials_refused", "535 no", 15_000_000, True)


def test_delivery_metrics() -> None:
    metrics = DeliveryMetrics()
    for _ in range(3):
        metrics(Called(1, "email", "smtp", "accepted", 20_000, 4_000))
    metrics(Ended(1, "email", "failed", "content_refused: the template says nothing"))
    metrics(Deferred(1, "sms", "quiet_hours", 5))
    metrics(BROKEN)
    metrics(Opened(1, "hooks https://a.example", "timeout", "", 5, False))
    metrics(Poisoned(1, "acme", "notify.sms", 0, 7, "no errand"))
    text = "\n".join(metrics.lines(None))
    for line in (
        'tidings_provider_calls_total{channel="email",provider="smtp",outcome="accepted"} 3',
        'tidings_deliveries_total{channel="email",state="failed",reason="content_refused"} 1',
        'tidings_deliveries_deferred_total{channel="sms",reason="quiet_hours"} 1',
        'tidings_provider_stopped{provider="smtp",fault="ours"} 1',
        'tidings_provider_stopped{provider="hooks",fault="theirs"} 1',
        "tidings_deliveries_poisoned_total 1",
        "tidings_provider_seconds_count 3",
        "tidings_delivery_lateness_seconds_sum 0.012",
    ):
        assert line in text
    metrics(Closed(2, "smtp"))
    assert 'provider="smtp",fault' not in "\n".join(metrics.lines(None))


def test_labels_are_bounded() -> None:
    metrics = DeliveryMetrics()
    for number in range(1_000):
        metrics(Ended(1, "email", "failed", f"reason {number}"))
    assert sum("tidings_deliveries_total{" in line for line in metrics.lines(None)) <= 101


def test_facts_that_need_action_are_logged_as_errors(caplog: pytest.LogCaptureFixture) -> None:
    log = DeliveryLog()
    with caplog.at_level(logging.INFO, "tidings.delivery"):
        for fact in (BROKEN, Opened(1, "sms", "timeout", "", 5, False), Closed(2, "smtp")):
            log(fact)
        log(Poisoned(1, "acme", "notify.sms", 0, 7, "no errand"))
        log(Called(1, "email", "smtp", "accepted", 1, 1))
    levels = [(record.levelname, record.getMessage().split()[0]) for record in caplog.records]
    assert levels == [("ERROR", "smtp"), ("WARNING", "sms"), ("INFO", "smtp"), ("ERROR", "the")]
