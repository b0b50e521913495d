"""A call that is not made leaves its rate limit token, and its trial of a circuit breaker, to other messages."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import msgspec
import pytest

from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, words
from tests.providers.messages import FCM_TOKEN
from tidings.delivery.limits.circuit_breaker import CircuitBreakers
from tidings.delivery.limits.rate_limit import RateLimiter, RateLimits
from tidings.delivery.worker import sender
from tidings.delivery.worker.context import DeliveryContext
from tidings.delivery.worker.pipeline import Pipeline
from tidings.delivery.worker.reservation import PendingSend
from tidings.delivery.worker.writer import DeliveryWriter
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Delivery, Temporary
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports.tables import GroupResult, RowKey
from tidings.providers.in_app import InAppProvider, Settings
from tidings.testing import eventually

# No claim and no call ends by a time-out on a busy machine.
PATIENT = changed(QUICK, send_s=300.0, policy=msgspec.structs.replace(QUICK.policy, claim_us=600 * SECOND))
ONE_TOKEN = changed(PATIENT, rates=RateLimits({"mail": Rate(0.001, burst=1)}))


def fail_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first claim back without a call."""
    answers: Iterator[bool] = chain([True], repeat(False))
    monkeypatch.setattr(sender, "is_expired", lambda *_: next(answers))


async def test_a_claim_that_is_given_back_returns_its_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_first(monkeypatch)
    await world.put_user(ada())
    mail = Recorder("email")
    world.start(world.worker({"mail": mail}, ONE_TOKEN))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.history, len(mail.calls)) == ("sent", (), 1), "it did not wait for another token"


async def test_a_claim_that_is_not_written_returns_its_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, refused = DeliveryWriter.claim, [True]

    async def refuse_first(self: DeliveryWriter, claims: Sequence[tuple[DeliveryContext, Delivery]]) -> list[int]:
        return [0] * len(claims) if refused and refused.pop() else await claim(self, claims)

    monkeypatch.setattr(DeliveryWriter, "claim", refuse_first)
    await world.put_user(ada())
    world.start(world.worker({"mail": Recorder("email")}, ONE_TOKEN))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.history) == ("sent", ())


@pytest.mark.slow
async def test_a_claim_that_is_given_back_returns_its_trial(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.put_user(ada())
    mail, failing = Recorder("email"), [True]

    def answer(_: object) -> Temporary | None:
        if not failing:
            return None
        failing.pop()
        fail_first(monkeypatch)  # the next call, which is the trial, is not made
        return Temporary("provider_error")

    mail.answer = answer
    slow = msgspec.structs.replace(QUICK.breaker, failures_max=1, trial_us=600 * SECOND)
    world.start(world.worker({"mail": mail}, changed(PATIENT, breaker=slow)))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, len(mail.calls)) == ("sent", 2)


async def test_an_inbox_entry_that_is_not_written_returns_its_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, changes = DeliveryWriter.settle, [ada(locale="de")]

    async def change_first(self: DeliveryWriter, settlements: Sequence[Any], now: int) -> list[GroupResult]:
        if changes:
            await world.put_user(changes.pop())
        return await settle(self, settlements, now)

    monkeypatch.setattr(DeliveryWriter, "settle", change_first)
    await world.put_user(ada())
    one_token = changed(PATIENT, rates=RateLimits({"in_app": Rate(0.001, burst=1)}))
    world.start(world.worker({"in_app": InAppProvider(Settings())}, one_token))
    await world.notify(words("n-1", "in_app"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.history, changes) == ("sent", (), []), "it did not wait for another token"


def fail_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    try_one, failures = CircuitBreakers.try_one, [RuntimeError("a bug")]

    async def fail_once(self: CircuitBreakers, key: RowKey) -> bool:
        if failures:
            raise failures.pop()
        return await try_one(self, key)

    monkeypatch.setattr(CircuitBreakers, "try_one", fail_once)


@pytest.mark.slow
async def test_a_trial_that_fails_returns_its_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_first_trial(monkeypatch)
    await world.put_user(ada())
    mail, faults = Recorder("email"), [Temporary("provider_error")]
    mail.answer = lambda _: faults.pop() if faults else None
    breaker = msgspec.structs.replace(QUICK.breaker, failures_max=1)
    two_normal_tokens = changed(PATIENT, rates=RateLimits({"mail": Rate(0.001, burst=3)}), breaker=breaker)
    world.start(world.worker({"mail": mail}, two_normal_tokens))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, len(mail.calls)) == ("sent", 2)
    assert "rate_limited" not in {step.reason for step in delivery.history}


@pytest.mark.slow
async def test_a_trial_that_fails_for_one_device_ends_those_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial that the second device gets is given back: the record is loaded again, with both devices."""
    fail_first_trial(monkeypatch)
    await world.put_user(ada(devices=tuple(Device("fcm", f"{FCM_TOKEN}{number}") for number in range(2))))
    push, faults = Recorder("push"), [Temporary("provider_error")] * 2
    push.answer = lambda _: faults.pop() if faults else None
    breaker = msgspec.structs.replace(QUICK.breaker, failures_max=1, trial_us=600 * SECOND)
    world.start(world.worker({"push": push}, changed(PATIENT, breaker=breaker)))
    await world.notify(words("n-1", "push"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, len(push.took)) == ("sent", 2)


async def test_a_message_that_is_ready_while_the_worker_stops_returns_its_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, returned, mail = Pipeline._ready, list[str](), Recorder("email")

    def stop_first(self: Pipeline, send: PendingSend) -> None:
        self._is_stopping = True
        ready(self, send)

    monkeypatch.setattr(Pipeline, "_ready", stop_first)
    monkeypatch.setattr(RateLimiter, "give_back", lambda _, provider, __, ___: returned.append(provider))
    await world.put_user(ada())
    world.start(world.worker({"mail": mail}, ONE_TOKEN))
    await world.notify(words("n-1"))
    await eventually(lambda: returned)
    assert (returned, mail.calls) == (["mail"], [])
