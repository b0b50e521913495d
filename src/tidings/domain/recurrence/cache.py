"""What is worked out and kept, bounded by what it weighs: whatever tenants write, memory has a most.

The oldest goes first. Rules hold no more than their totals; what is larger lies here, and is worked out again if a
question comes after it went.
"""

from threading import RLock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values by key, of at most so much weight together."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._values: dict[Key, Value] = {}
        self._weights: dict[Key, int] = {}  # in the order in which they came
        self.weight = 0

    def get(self, key: Key) -> Value | None:
        """The value, if it is still there."""
        return self._values.get(key)

    def put(self, key: Key, value: Value, weight: int) -> None:
        """Keep a value, and let the oldest ones go for it."""
        with GROWING:
            self.weight += weight - self._weights.pop(key, 0)
            self._values[key], self._weights[key] = value, weight
            while self.weight > self._weight_max and len(self._weights) > 1:
                oldest = next(iter(self._weights))
                self.weight -= self._weights.pop(oldest)
                del self._values[oldest]

    def clear(self) -> None:
        """Let all of them go."""
        with GROWING:
            self._values.clear()
            self._weights.clear()
            self.weight = 0


STEPS_MAX = 20_000


class Meter:
    """Counts."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


METER = Meter()

GROWING = RLock()
"""Held while a table that several schedules share grows: stores ask from threads of their own."""
