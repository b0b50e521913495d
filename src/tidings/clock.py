"""Clocks. This is the only module that reads the time."""

import time
from typing import Protocol

STEP_TOLERANCE_US = 250_000
STEP_HOLD_US = 10_000_000
MEASUREMENTS_MAX = 8
DRIFT_PPM_MAX = 500  # of one clock against another; NTP slews by no more than this


class Clock(Protocol):
    """The present time in integer microseconds since the epoch, UTC; and a monotonic count of time."""

    def now(self) -> int:
        """The wall-clock time, with forward steps delayed (see `Agreed`)."""
        ...

    def elapsed(self) -> int:
        """Monotonic microseconds since a fixed moment; includes the time that the machine sleeps."""
        ...


class Agreed:
    """The offset of a wall clock to monotonic time, with forward steps delayed.

    Nothing may be released early, so a forward step counts only after it has lasted for 10 s; until then time continues
    with the former offset. A step back counts at once: it can only make releases later.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._stepped_at: int | None = None
        self._held = offset

    def observe(self, offset: int, elapsed: int) -> None:
        """Take note of the present offset of the wall clock."""
        stepped_at = self._stepped_at  # read once: another thread may change it
        if offset - self.offset <= STEP_TOLERANCE_US:
            self.offset, self._stepped_at = offset, None
        elif stepped_at is None:
            self._stepped_at, self._held = elapsed, offset
        else:
            self._held = min(self._held, offset)  # of several steps, only the smallest offset lasted all the time
            if elapsed - stepped_at >= STEP_HOLD_US:
                self.offset, self._stepped_at = self._held, None


class SystemClock:
    """The clock of this machine."""

    def __init__(self) -> None:
        self._agreed = Agreed(_wall() - _boot_time())

    def now(self) -> int:
        elapsed = _boot_time()
        self._agreed.observe(_wall() - elapsed, elapsed)
        return elapsed + self._agreed.offset

    def elapsed(self) -> int:
        return _boot_time()


class StoreClock:
    """The clock of a store that several machines share, as measured by this one.

    Between measurements it advances with monotonic time, so setting the wall clock of this machine has no effect. The
    most precise of the recent measurements is used; forward steps of the store's clock are delayed as in `Agreed`.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._measured: list[_Measured] = []
        self._agreed: Agreed | None = None

    def measure(self, sent: int, store_now: int, answered: int) -> None:
        """Add a measurement: the store's clock showed `store_now` between `sent` and `answered`."""
        new = _Measured(answered, store_now - answered, store_now - sent)
        recent = [*self._measured[1 - MEASUREMENTS_MAX :], new]
        self._measured = [each for each in recent if each.agrees_with(new)]
        best = min(self._measured, key=lambda each: each.uncertainty_us(answered))
        offset = (best.least + best.most) // 2
        if self._agreed is None:
            self._agreed = Agreed(offset)
        else:
            self._agreed.observe(offset, answered)

    def now(self) -> int:
        if self._agreed is None:
            return self._own.now()
        return self._own.elapsed() + self._agreed.offset

    def elapsed(self) -> int:
        return self._own.elapsed()

    def ahead_us(self) -> int:
        """How far this machine's own wall clock is ahead of the store's; negative: behind."""
        return self._own.now() - self.now()


class _Measured:
    """A measurement: at `at`, the offset of the store's clock to monotonic time was between two bounds."""

    def __init__(self, at: int, least: int, most: int) -> None:
        self.at = at
        self.least = least
        self.most = most

    def uncertainty_us(self, elapsed: int) -> int:
        """The width of the bounds by now; it grows, because clocks drift apart."""
        return self.most - self.least + (elapsed - self.at) * DRIFT_PPM_MAX // 1_000_000

    def agrees_with(self, other: "_Measured") -> bool:
        """Whether both measurements fit a clock that was not set in between."""
        drift = abs(other.at - self.at) * DRIFT_PPM_MAX // 1_000_000
        return self.least - drift <= other.most and other.least - drift <= self.most


def _wall() -> int:
    return time.time_ns() // 1000


if hasattr(time, "CLOCK_BOOTTIME"):

    def _boot_time() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

else:  # pragma: no cover - not Linux

    def _boot_time() -> int:
        return time.monotonic_ns() // 1000
