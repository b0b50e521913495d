"""Detection of a wall clock that was set back: times stored before lie in the future, and must not block anything."""

SKEW_US_MAX = 1_000_000  # the clocks of two nodes differ by less than this


def is_set_back(noted: int, now: int) -> bool:
    """Whether the clock was set back since a time that was read from it, on this node or on another."""
    return now < noted - SKEW_US_MAX
