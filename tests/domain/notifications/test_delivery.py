"""States only go forward."""

import itertools

import msgspec

from tidings.domain.notifications.delivery import (
    Attempt,
    Delivery,
    ReceiptState,
    State,
    Step,
    remembered,
    representative,
    state_after,
)

NEWS: tuple[ReceiptState, ...] = ("delivered", "bounced", "complained", "failed", "unsubscribed")


def test_receipts_only_advance_the_state() -> None:
    assert state_after("sent", "delivered") == "delivered"
    assert state_after("delivered", "complained") == "complained"
    assert state_after("delivered", "bounced") == "bounced"
    assert state_after("bounced", "delivered") is None
    assert state_after("complained", "delivered") is None
    assert state_after("pending", "delivered") == "delivered"  # its answer was lost, and it is about to be sent again
    closed: tuple[State, ...] = ("cancelled", "expired", "skipped")
    for state, news in itertools.product(closed, NEWS):
        assert state_after(state, news) is None
    assert state_after("sent", "unsubscribed") is None


def test_receipts_in_any_order_give_the_same_state() -> None:
    ends = set()
    for order in itertools.permutations(("delivered", "bounced", "complained")):
        state: State = "sent"
        for news in order:
            state = state_after(state, news) or state  # type: ignore[arg-type]
        ends.add(state)
    assert ends == {"complained"}


def test_one_state_represents_several_deliveries() -> None:
    states: list[State] = ["failed", "pending", "sent"]
    assert representative(states) == 1
    assert representative(["failed", "sent", "skipped"]) == 1
    assert representative(["skipped", "failed"]) == 1


def test_waits_after_different_attempts_are_not_merged() -> None:
    delivery = Delivery("n/1", "n", 0)
    for at in (10, 20):
        attempt = Attempt(at // 10, "email", "smtp", at, at + 1, "provider_error")
        delivery = msgspec.structs.replace(delivery, attempts=(*delivery.attempts, attempt))
        delivery = remembered(delivery, Step(at + 1, "pending", "email", reason="provider_error", until=at + 9))
    assert [(step.at, step.until, step.times) for step in delivery.history] == [(11, 19, 1), (21, 29, 1)]
    again = remembered(delivery, Step(29, "pending", "email", reason="provider_error", until=35))
    assert [(step.at, step.until, step.times) for step in again.history] == [(11, 19, 1), (21, 35, 2)]
