"""A meter of work: how many years, stretches and exceptions were worked out, whatever the clock says.

Every loop whose length an input could choose takes a step here. No single call can take more than `STEPS_MAX`, by
construction: rules end with the year 2999, a zone has a few transitions a year, and lists have a most. The tests count.
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
