"""The closed sets of words that requests and answers use. It imports nothing, so that the command line starts fast."""

from enum import IntEnum
from typing import Literal


class Priority(IntEnum):
    """Who goes first when more is due than one batch holds. The number is the order."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


PriorityName = Literal["high", "normal", "low"]
Policy = Literal["fire_latest", "fire_all", "skip"]
Past = Literal["send", "refuse"]  # what happens to a schedule whose time has passed
State = Literal["pending", "paused", "in_flight", "released", "missed", "cancelled", "ended"]
OutcomeWord = Literal[
    "scheduled",
    "released",
    "replaced",
    "unchanged",
    "cancelled",
    "paused",
    "resumed",
    "fired",
    "in_flight",
    "already_released",
    "unknown",
    "rejected",
]
Mark = Literal["moved", "skipped", "first", "second"]  # what a change of clocks did to a moment
