"""The simulated computer: its time, and a wall clock that can be set."""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from tidings.clock import STEP_HOLD_US
from tidings.testing import START


class Machine:
    """Every `SystemClock` made while it is `installed` reads this one."""

    def __init__(self) -> None:
        self.elapsed = 0
        self._offsets = [(0, START)]  # from when on, and what the wall clock is ahead of the time that passed

    def wall(self) -> int:
        return self.elapsed + self._offsets[-1][1]

    def advance(self, us: int) -> None:
        """Let time pass."""
        assert us >= 0
        self.elapsed += us

    def step(self, us: int) -> None:
        """Set the wall clock ahead, or back if negative."""
        self._offsets.append((self.elapsed, self._offsets[-1][1] + us))

    def believable(self, since: int) -> int:
        """The latest time that a clock started at `since` may show: one that has held for 10 s, or an earlier one."""
        since = max(since, self.elapsed - STEP_HOLD_US)
        ends = [begun for begun, _ in self._offsets[1:]] + [self.elapsed + 1]
        held = [offset for (_, offset), end in zip(self._offsets, ends, strict=True) if end > since]
        return self.elapsed + min(held)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the machine that `tidings.clock` reads."""
        with patch.multiple("tidings.clock", _wall=self.wall, _boot_time=lambda: self.elapsed):
            yield
