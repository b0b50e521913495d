"""A wall clock that was set back: what was noted by it before lies ahead, and must not stop anything until then."""

SKEW_US_MAX = 1_000_000  # the clocks of two nodes differ by less


def is_set_back(noted: int, now: int) -> bool:
    """Whether the clock was set back since a moment that it showed once, here or at another node."""
    return now < noted - SKEW_US_MAX
