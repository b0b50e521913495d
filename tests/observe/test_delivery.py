"""Metrics and logs of deliveries."""

import asyncio
import logging

import pytest

from tests.delivery.limits import tables
from tests.delivery.world import QUICK, Recorder, changed, started_world, words
from tidings.delivery.limits.circuit_breaker import CircuitBreakers, breaker_key
from tidings.delivery.worker.consumer import Backlog, Windows
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.domain.facts import Called, Closed, Deferred, Ended, Opened, Poisoned
from tidings.domain.notifications.circuit_breaker import Terms
from tidings.domain.notifications.delivery import Accepted, Temporary, Verdict
from tidings.observe.delivery import DeliveryLog, DeliveryMetrics
from tidings.observe.metrics import Metrics
from tidings.testing import SimulatedClock, eventually

BROKEN = Opened(1, "smtp", "credentials_refused", "535 no", 15_000_000, True)


def test_delivery_metrics() -> None:
    metrics = DeliveryMetrics()
    for _ in range(3):
        metrics(Called(1, "email", "smtp", "accepted", 20_000, 4_000))
    metrics(Called(1, "email", "smtp", "timeout", 30_000_000, 4_000, is_retry=True))
    metrics(Ended(1, "email", "failed", "content_refused: the template says nothing"))
    metrics(Deferred(1, "sms", "quiet_hours", 5))
    metrics(BROKEN)
    for receiver in ("a", "b", "c"):
        metrics(Opened(1, f"hooks https://{receiver}.example", "timeout", "", 5, False))
    metrics(Closed(2, "hooks https://a.example"))
    metrics(Poisoned(1, "acme", "notify.sms", 0, 7, "not a delivery job"))
    text = "\n".join(metrics.lines(None))
    for line in (
        'tidings_provider_calls_total{channel="email",provider="smtp",outcome="accepted"} 3',
        'tidings_deliveries_total{channel="email",state="failed",reason="content_refused"} 1',
        'tidings_deliveries_deferred_total{channel="sms",reason="quiet_hours"} 1',
        'tidings_provider_stopped{provider="smtp",fault="ours"} 1',
        'tidings_provider_stopped{provider="hooks",fault="theirs"} 2',
        "tidings_deliveries_poisoned_total 1",
        'tidings_delivery_retries_total{channel="email",provider="smtp"} 1',
        'tidings_provider_seconds_bucket{channel="email",provider="smtp",le="0.02"} 3',
        'tidings_provider_seconds_count{channel="email",provider="smtp"} 4',
        'tidings_provider_seconds_sum{channel="email",provider="smtp"} 30.06',
        "tidings_delivery_lateness_seconds_sum 0.016",
    ):
        assert line in text
    metrics(Closed(2, "smtp"))
    assert 'provider="smtp",fault' not in "\n".join(metrics.lines(None))


def test_deliveries_that_are_deferred_are_shown_until_their_time() -> None:
    metrics, clock = DeliveryMetrics(), SimulatedClock(10_000_000)
    metrics.watch(list, clock)
    now = clock.now()
    for until in (1_500_000, 1_500_000, 60_000_000):
        metrics(Deferred(now, "email", "breaker_open", now + until, "high"))
    shown = 'tidings_deliveries_deferred{channel="email",priority="high",reason="breaker_open"} '
    counts = []
    for _ in range(3):
        counts += [line.removeprefix(shown) for line in metrics.lines(None) if line.startswith(shown)]
        clock.advance(30_000_000)
    assert counts == ["3", "1", "0"]


def test_labels_are_bounded() -> None:
    metrics = DeliveryMetrics()
    for number in range(1_000):
        metrics(Ended(1, "email", "failed", f"reason {number}"))
    assert sum("tidings_deliveries_total{" in line for line in metrics.lines(None)) <= 101


def test_the_backlog_is_shown_with_the_age_of_the_oldest() -> None:
    metrics, clock = DeliveryMetrics(), SimulatedClock()
    due = clock.now()
    metrics.watch(lambda: [Backlog("email", "high", 1, 3, due), Backlog("sms", "low", 0, 0, None)], clock)
    clock.advance(2_500_000)
    lines = list(metrics.lines(None))
    for line in (
        'tidings_deliveries_waiting{channel="email",priority="high"} 1',
        'tidings_deliveries_in_progress{channel="email",priority="high"} 3',
        'tidings_deliveries_oldest_seconds{channel="email",priority="high"} 2.5',
        'tidings_deliveries_waiting{channel="sms",priority="low"} 0',
        'tidings_deliveries_oldest_seconds{channel="sms",priority="low"} 0',
    ):
        assert line in lines


async def test_what_is_released_and_not_delivered_is_counted_until_it_is() -> None:
    async with started_world() as world:
        provider = Recorder("email")
        provider.gate = asyncio.Event()
        settings = changed(QUICK, windows=Windows(together_max=10, topic_max=10, read_max=5), send_s=20.0)
        settings = changed(settings, policy=RetryPolicy(claim_us=30_000_000))
        worker = world.worker({"mail": provider}, settings)
        metrics = DeliveryMetrics()
        metrics.watch(worker.backlog, world.clock)
        world.start(worker)

        def value(name: str) -> float:
            prefix = f'tidings_deliveries_{name}{{channel="email",priority="normal"}} '
            [line] = [line for line in metrics.lines(None) if line.startswith(prefix)]
            return float(line.removeprefix(prefix))

        names = [f"n-{number}" for number in range(30)]
        await world.notify(*(words(name, user=None, to="ada@example.com") for name in names))
        await eventually(lambda: value("waiting") + value("in_progress") == 30)
        shown = await Metrics("1", world.engine.count, (), metrics.unsettled).render()
        assert b"\ntidings_due_backlog 30\n" in shown, "nothing is overdue on the timeline, but all of them wait"
        assert 1 <= value("in_progress") <= 10
        await eventually(lambda: value("oldest_seconds") > 0.05)
        assert value("oldest_seconds") < 60
        provider.gate.set()
        await world.settled(*(f"{name}/1" for name in names))
        await eventually(lambda: not value("waiting") and not value("in_progress"))
        assert value("oldest_seconds") == 0


def test_facts_that_need_action_are_logged_as_errors(caplog: pytest.LogCaptureFixture) -> None:
    log = DeliveryLog()
    with caplog.at_level(logging.INFO, "tidings.delivery"):
        for fact in (BROKEN, Opened(1, "sms", "timeout", "", 5, False), Closed(2, "smtp")):
            log(fact)
        log(Poisoned(1, "acme", "notify.sms", 0, 7, "not a delivery job"))
        log(Called(1, "email", "smtp", "accepted", 1, 1))
    levels = [(record.levelname, record.getMessage().split()[0]) for record in caplog.records]
    assert levels == [("ERROR", "smtp"), ("WARNING", "sms"), ("INFO", "smtp"), ("ERROR", "the")]
    assert "tidings channels close smtp" in caplog.text


async def test_a_provider_that_fails_is_stopped_and_recovers_is_logged_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = Temporary("timeout", "no answer")
    verdicts: list[Verdict] = [Temporary("timeout"), Accepted("x"), failure, failure, failure]
    clock, terms, log = SimulatedClock(), Terms(failures_max=3, first_us=10_000_000), DeliveryLog()
    breakers = CircuitBreakers(tables(), clock, "one", terms, log)
    key = breaker_key("hooks", "acme", "webhook", "https://a.example/x")
    with caplog.at_level(logging.INFO, "tidings.delivery"):
        for verdict in verdicts:
            await breakers.record(key, verdict, trial=False)
        clock.advance(11_000_000)
        assert await breakers.try_one(key)
        await breakers.record(key, Accepted("x"), trial=True)
    name = "hooks https://a.example"
    wait = (
        "Its messages wait, nothing is lost; next attempt at 2026-11-20T09:00:10.000000Z; after "
        "`tidings channels close hooks --receiver https://a.example` new messages are tried at once"
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"a call to {name} failed (timeout) and will be retried; after 3 failures in a row it is stopped",
        f"{name} recovered after 1 failed call",
        f"{name} failed repeatedly (timeout: no answer) and is stopped. {wait}",
        f"{name} works again: its messages are sent at their next attempt",
    ], "that it fails is logged once a minute"


async def test_calls_that_fail_now_and_then_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock, log = SimulatedClock(), DeliveryLog()
    breakers = CircuitBreakers(tables(), clock, "one", Terms(), log)
    key = breaker_key("smtp", "acme", "email", "ada@example.com")
    with caplog.at_level(logging.INFO, "tidings.delivery"):
        for _ in range(120):
            await breakers.record(key, Temporary("timeout"), trial=False)
            await breakers.record(key, Accepted("x"), trial=False)
            clock.advance(1_000_000)
    assert len(caplog.records) == 4, "two minutes"
