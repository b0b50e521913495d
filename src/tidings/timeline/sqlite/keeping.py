"""Housekeeping: one small slice at a time, the most urgent kind first."""

from tidings import crash
from tidings.timeline.sqlite import merge
from tidings.timeline.sqlite.idmap import RECENT_ENTRIES_MAX
from tidings.timeline.sqlite.retention import Retention
from tidings.timeline.sqlite.wheel import Wheel
from tidings.timeline.sqlite.writer import Writer

MARGIN_US = 3_600 * 1_000_000


class Keeping:
    """Turns the wheel, keeps the map of ids in shape, forgets what is old."""

    def __init__(self, writer: Writer, wheel: Wheel) -> None:
        self._writer = writer
        self._wheel = wheel
        self._retention = Retention(writer)
        self._merge: merge.Merge | None = None
        self._garbage = True

    def begin(self) -> None:
        """This process has become the owner: what an earlier one left unfinished is looked for."""
        self._merge, self._garbage = None, True
        self._wheel.begin()

    def tend(self, now: int) -> bool:
        """One slice; True if more is waiting."""
        self._writer.refresh()
        if self.flush() or self._wheel.turn(now):
            return True
        try:
            if self._tend_map(now):
                return True
        except BaseException:  # what a merge knows in memory may be ahead of the file: begin it anew
            self._merge, self._garbage = None, True
            raise
        return self._retention.trim(now)

    def flush(self) -> bool:
        """Write the newest ids out when they are many; before anything else, so that they stay few."""
        idmap = self._writer.idmap
        if idmap.recent_count < RECENT_ENTRIES_MAX:
            return False
        with self._writer.transaction() as connection:
            idmap.flush(connection)
        idmap.swap_flushed()
        return True

    def _tend_map(self, now: int) -> bool:
        if self._garbage:
            with self._writer.transaction() as connection:
                garbage = merge.sweep(connection, self._merge is not None)
            self._garbage = garbage
            return True
        return self._tend_merge(now)

    def _tend_merge(self, now: int) -> bool:
        idmap = self._writer.idmap
        if self._merge is None:
            sources = merge.choose(idmap)
            if sources is None:
                return False
            with self._writer.transaction() as connection:
                begun = merge.Merge(connection, sources)
            self._merge = begun
            return True
        with self._writer.transaction() as connection:
            merged = self._merge.step(connection, self._forget_before(now))
        crash.point("map.merging")
        if merged is not None:
            idmap.swap_merged({run.number for run in self._merge.sources}, merged)
            self._merge, self._garbage = None, True
        return True

    def _forget_before(self, now: int) -> int:
        """Ids that were due before this are finished and forgotten, unless they are found to be otherwise."""
        horizon = now - self._writer.options.id_retention_us - MARGIN_US
        first = self._writer.first_due
        return horizon if first is None else min(horizon, first)
