"""States only go forward."""

import itertools

from tidings.domain.notifications.delivery import ReceiptState, State, representative, state_after

NEWS: tuple[ReceiptState, ...] = ("delivered", "bounced", "complained", "failed", "unsubscribed")


def test_news_move_forward_only() -> None:
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


def test_in_whatever_order_news_come_the_end_is_the_same() -> None:
    ends = set()
    for order in itertools.permutations(("delivered", "bounced", "complained")):
        state: State = "sent"
        for news in order:
            state = state_after(state, news) or state  # type: ignore[arg-type]
        ends.add(state)
    assert ends == {"complained"}


def test_one_of_several_speaks_for_all() -> None:
    states: list[State] = ["failed", "pending", "sent"]
    assert representative(states) == 1
    assert representative(["failed", "sent", "skipped"]) == 1
    assert representative(["skipped", "failed"]) == 1
