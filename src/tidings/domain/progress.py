"""How far a delivery has come: states only go forward, and several of them make one."""

from collections.abc import Sequence

from tidings.domain.delivered import ReceiptState
from tidings.domain.delivery import State

# News of a provider moves a delivery to a state of a higher rank only: whatever comes late or twice changes nothing.
_RANKS: dict[State, int] = {
    "pending": 0,
    "processing": 0,
    "sent": 1,
    "delivered": 2,
    "failed": 3,
    "bounced": 3,
    "complained": 4,
}
_AFTER: dict[ReceiptState, State] = {
    "delivered": "delivered",
    "bounced": "bounced",
    "complained": "complained",
    "failed": "failed",
}

# Of the channels of one occurrence: what is still under way first, then the best that was reached.
_TOLD_FIRST: tuple[State, ...] = (
    "processing",
    "pending",
    "complained",
    "delivered",
    "sent",
    "bounced",
    "failed",
    "expired",
    "cancelled",
    "skipped",
)


def moved(state: State, news: ReceiptState) -> State | None:
    """The state that news lead to; None if they change nothing."""
    after = _AFTER.get(news)
    if after is None or state not in _RANKS or _RANKS[after] <= _RANKS[state]:
        return None
    return after


def together(states: Sequence[State]) -> int:
    """Which of several deliveries of one occurrence speaks for all of them."""
    return min(range(len(states)), key=lambda place: _TOLD_FIRST.index(states[place]))
