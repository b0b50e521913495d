"""Bounds on the memory and the work that rules cost, whatever tenants write: bounded caches, and a step counter.

Compiled rules keep only small totals. Larger tables are in caches that evict the oldest entries by weight; an evicted
table is computed again when it is needed.
"""

from threading import RLock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """A cache whose entries have a weight: it evicts the oldest entries when their sum exceeds `weight_max`."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._values: dict[Key, Value] = {}
        self._weights: dict[Key, int] = {}  # oldest first
        self.weight = 0

    def get(self, key: Key) -> Value | None:
        """The value; None if it is absent or was evicted."""
        return self._values.get(key)

    def put(self, key: Key, value: Value, weight: int) -> None:
        """Add a value, and evict the oldest ones if needed."""
        with GROWTH_LOCK:
            self.weight += weight - self._weights.pop(key, 0)
            self._values[key], self._weights[key] = value, weight
            while self.weight > self._weight_max and len(self._weights) > 1:
                oldest = next(iter(self._weights))
                self.weight -= self._weights.pop(oldest)
                del self._values[oldest]

    def clear(self) -> None:
        """Remove all entries."""
        with GROWTH_LOCK:
            self._values.clear()
            self._weights.clear()
            self.weight = 0


STEPS_MAX = 20_000


class StepCounter:
    """Counts the steps taken in this process."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


STEPS = StepCounter()

GROWTH_LOCK = RLock()
"""Held while a shared table grows: stores call from threads of their own."""
