"""The only file that reads a clock."""

import time
from typing import Protocol

STEP_TOLERANCE_US = 250_000
STEP_HOLD_US = 10_000_000
MEASUREMENTS_MAX = 8
DRIFT_PPM_MAX = 500  # of one clock against another; what keeps clocks right slews them by no more


class Clock(Protocol):
    """Now, as integer microseconds since the epoch, UTC; and a count of time that never steps."""

    def now(self) -> int:
        """The agreed wall time."""
        ...

    def elapsed(self) -> int:
        """Microseconds since some fixed moment; goes on while the machine sleeps and knows no steps."""
        ...


class Agreed:
    """How far a wall clock is ahead of the time that has passed, distrustful of forward steps.

    Nothing may leave early, so a wall clock that jumps ahead counts only once the jump has held for 10 s; until
    then time goes on from where it was agreed. A step back is believed at once: it can only make things later.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._stepped_at: int | None = None
        self._held = offset

    def hear(self, offset: int, elapsed: int) -> None:
        """The wall clock is that far ahead now."""
        stepped_at = self._stepped_at  # which another thread may take back meanwhile
        if offset - self.offset <= STEP_TOLERANCE_US:
            self.offset, self._stepped_at = offset, None
        elif stepped_at is None:
            self._stepped_at, self._held = elapsed, offset
        else:
            self._held = min(self._held, offset)  # of several steps only what held all the time counts
            if elapsed - stepped_at >= STEP_HOLD_US:
                self.offset, self._stepped_at = self._held, None


class SystemClock:
    """The machine's clock, as far as its steps are agreed."""

    def __init__(self) -> None:
        self._agreed = Agreed(_wall() - self.elapsed())

    def now(self) -> int:
        elapsed = self.elapsed()
        self._agreed.hear(_wall() - elapsed, elapsed)
        return elapsed + self._agreed.offset

    def elapsed(self) -> int:
        return _boot_time()


class StoreClock:
    """The clock of a store that several machines share, as one of them measures it.

    Between two measurements time goes on with the count that never steps, so that nobody who sets the wall clock of
    this machine changes anything. Of the recent measurements the surest one counts; a step of the store's clock counts
    once it is agreed.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._measured: list[_Measured] = []
        self._agreed: Agreed | None = None

    def measure(self, sent: int, told: int, answered: int) -> None:
        """The store told its time between these two moments of ours, which are `elapsed`."""
        new = _Measured(answered, told - answered, told - sent)
        recent = [*self._measured[1 - MEASUREMENTS_MAX :], new]
        self._measured = [each for each in recent if each.may_be(new)]
        best = min(self._measured, key=lambda each: each.unsure_us(answered))
        offset = (best.least + best.most) // 2
        if self._agreed is None:
            self._agreed = Agreed(offset)
        else:
            self._agreed.hear(offset, answered)

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
    """At a moment the store's clock was ahead of the time that has passed by something between two bounds."""

    def __init__(self, at: int, least: int, most: int) -> None:
        self.at = at
        self.least = least
        self.most = most

    def unsure_us(self, elapsed: int) -> int:
        """How much is not known about it by now, for clocks drift apart."""
        return self.most - self.least + (elapsed - self.at) * DRIFT_PPM_MAX // 1_000_000

    def may_be(self, other: "_Measured") -> bool:
        """Whether both can be true of a clock that was not set in between."""
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
