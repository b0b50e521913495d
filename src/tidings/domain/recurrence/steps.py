"""A meter of work: what was looked at one by one, whatever the clock says.

Years that are prepared, stretches of zones, added and excepted moments, runs of excluded days and every occurrence
that moves from them, dates of a calendar's text: each takes a step. No single call can take more than `STEPS_MAX`, by
construction: rules end with the year 2999, a zone has a few transitions a year, and lists have a most. What takes no
step is bounded by the length of a text, or is a search in something that did: the tests count, and draw all of it.
"""

from threading import RLock

STEPS_MAX = 20_000


class Meter:
    """Counts."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


METER = Meter()

GROWING = RLock()
"""Held while a table that several schedules share grows: stores ask from threads of their own."""
