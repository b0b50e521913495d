"""A progress bar on standard error, where a person watches; silent or a line now and then elsewhere."""

import sys
from types import TracebackType

from tidings.clock import Clock

WIDTH = 28
REDRAW_US = 100_000
LINE_US = 5_000_000


class Progress:
    """How many bytes were sent, of how many if that is known, and how many lines were answered."""

    def __init__(self, total_bytes: int | None, clock: Clock) -> None:
        self._shown = sys.stderr.isatty()
        self._total = total_bytes
        self._clock = clock
        self._sent_bytes = self._sent_lines = self._answered = self._drawn_at = 0
        self._started = clock.elapsed()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn_at:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def sent(self, block: bytes) -> None:
        """These lines are on their way."""
        self._sent_bytes += len(block)
        self._sent_lines += block.count(b"\n")

    def answered(self, lines: int) -> None:
        """So many lines are answered by now."""
        self._answered = lines
        now = self._clock.elapsed() if self._shown else 0
        if self._shown and now - self._drawn_at >= REDRAW_US:
            self._drawn_at = now
            sys.stderr.write(f"\r{self.line(now)}\x1b[K")
            sys.stderr.flush()

    def line(self, now: int) -> str:
        """The bar as it stands."""
        rate = self._answered * 1_000_000 // max(now - self._started, 1)
        counts = f"{self._answered:,} lines  {rate:,}/s"
        if not self._total:
            return counts
        line_bytes = self._sent_bytes / max(self._sent_lines, 1)
        share = min(self._answered * line_bytes / self._total, 1.0)
        return f"[{'#' * int(share * WIDTH):<{WIDTH}}] {share:4.0%}  {counts}"


class Counted:
    """How many of how many are done: a bar where a person watches, a line now and then elsewhere."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._is_bar = sys.stderr.isatty()
        self._started = self._told_at = clock.elapsed()

    def tell(self, count: int, total: int) -> None:
        """So many are done by now."""
        now = self._clock.elapsed()
        if now - self._told_at >= (REDRAW_US if self._is_bar else LINE_US):
            self._told_at = now
            line = self.line(count, total, now)
            sys.stderr.write(f"\r{line}\x1b[K" if self._is_bar else f"{line}\n")
            sys.stderr.flush()

    def end(self) -> None:
        """Take the bar away."""
        if self._is_bar and self._told_at > self._started:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def line(self, count: int, total: int, now: int) -> str:
        """How it stands."""
        rate = count * 1_000_000 // max(now - self._started, 1)
        counts = f"{count:,} of {total:,} {self._what}  {rate:,}/s"
        share = min(count / max(total, 1), 1.0)
        return f"[{'#' * int(share * WIDTH):<{WIDTH}}] {int(share * 100):3}%  {counts}" if self._is_bar else counts
