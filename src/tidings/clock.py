"""The only file that reads a clock."""

import time
from typing import Protocol

STEP_TOLERANCE_US = 250_000
STEP_HOLD_US = 10_000_000


class Clock(Protocol):
    """Now, as integer microseconds since the epoch, UTC; and a count of time that never steps."""

    def now(self) -> int:
        """The agreed wall time."""
        ...

    def elapsed(self) -> int:
        """Microseconds since some fixed moment; goes on while the machine sleeps and knows no steps."""
        ...


class SystemClock:
    """The machine's clock, distrustful of forward steps.

    Nothing may leave early, so a wall clock that jumps ahead counts only once the jump has held for 10 s; until
    then time goes on from where it was agreed. A step back is believed at once: it can only make things later.
    """

    def __init__(self) -> None:
        self._offset = _wall() - self.elapsed()
        self._stepped_at: int | None = None
        self._held = self._offset

    def now(self) -> int:
        elapsed = self.elapsed()
        offset, stepped_at = _wall() - elapsed, self._stepped_at  # which another thread may take back meanwhile
        if offset - self._offset <= STEP_TOLERANCE_US:
            self._offset, self._stepped_at = offset, None
        elif stepped_at is None:
            self._stepped_at, self._held = elapsed, offset
        else:
            self._held = min(self._held, offset)  # of several steps only what held all the time counts
            if elapsed - stepped_at >= STEP_HOLD_US:
                self._offset, self._stepped_at = self._held, None
        return elapsed + self._offset

    def elapsed(self) -> int:
        return _boot_time()


def _wall() -> int:
    return time.time_ns() // 1000


if hasattr(time, "CLOCK_BOOTTIME"):

    def _boot_time() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

else:  # pragma: no cover - not Linux

    def _boot_time() -> int:
        return time.monotonic_ns() // 1000
