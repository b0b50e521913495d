"""A counter of work in steps, independent of the clock, by which tests check that every call is bounded.

One step each: a year that is prepared, a segment of a zone, an added or excepted time, a run of excluded days, an
occurrence that moves from one, a date of a calendar's text. No single call takes more than `STEPS_MAX` steps: rules end
with the year 2999, a zone has a few transitions a year, and lists have a maximum length. Work that takes no step is
bounded by the length of a text, or is a search in a table that took steps.
"""

from threading import RLock

STEPS_MAX = 20_000


class StepCounter:
    """Counts the steps taken in this process."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


STEPS = StepCounter()

GROWTH_LOCK = RLock()
"""Held while a shared table grows: stores call from threads of their own."""
