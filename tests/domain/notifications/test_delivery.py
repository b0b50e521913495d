"""States only go forward."""

import itertools

from tidings.domain.notifications.delivery import ReceiptState, State, moved, together

NEWS: tuple[ReceiptState, ...] = ("delivered", "bounced", "complained", "failed", "unsubscribed")


def test_news_move_forward_only() -> None:
    assert moved("sent", "delivered") == "delivered"
    assert moved("delivered", "complained") == "complained"
    assert moved("delivered", "bounced") == "bounced"
    assert moved("bounced", "delivered") is None
    assert moved("complained", "delivered") is None
    assert moved("pending", "delivered") == "delivered"  # its answer was lost, and it is about to be sent again
    closed: tuple[State, ...] = ("cancelled", "expired", "skipped")
    for state, news in itertools.product(closed, NEWS):
        assert moved(state, news) is None
    assert moved("sent", "unsubscribed") is None


def test_in_whatever_order_news_come_the_end_is_the_same() -> None:
    ends = set()
    for order in itertools.permutations(("delivered", "bounced", "complained")):
        state: State = "sent"
        for news in order:
            state = moved(state, news) or state  # type: ignore[arg-type]
        ends.add(state)
    assert ends == {"complained"}


def test_one_of_several_speaks_for_all() -> None:
    states: list[State] = ["failed", "pending", "sent"]
    assert together(states) == 1
    assert together(["failed", "sent", "skipped"]) == 1
    assert together(["skipped", "failed"]) == 1
