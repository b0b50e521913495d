"""Merging the map's runs, eight into one of the next level, a slice at a time."""

import apsw
import numpy as np

from tidings import crash
from tidings.timeline.sqlite.filter import Filter
from tidings.timeline.sqlite.idmap import (
    CHUNK_ENTRIES,
    IdMap,
    Run,
    decode,
    filter_parts,
    in_order,
    next_run,
    write_chunks,
    write_filter,
)
from tidings.timeline.sqlite.recent import Entries

FAN_IN = 8
SLICE_CHUNKS = 4
FILTER_PARTS_PER_SLICE = 4
GARBAGE_CHUNKS_PER_SLICE = 32
HASH_END = (1 << 63) - 1
KEEP_MAX = 10_000


def choose(idmap: IdMap) -> list[Run] | None:
    """The oldest runs of the lowest level that is full."""
    levels: dict[int, list[Run]] = {}
    for run in idmap.state[1]:
        levels.setdefault(run.level, []).append(run)
    for level in sorted(levels):
        if len(levels[level]) >= FAN_IN:
            return levels[level][:FAN_IN]
    return None


class Merge:
    """A merge under way. Until its last slice the new run is not live, and a crash merely leaves it as garbage."""

    def __init__(self, connection: apsw.Connection, sources: list[Run]) -> None:
        self.sources = sources
        total = sum(run.entries for run in sources)
        self._number = next_run(connection)
        self._level = sources[0].level + 1
        self._filter = Filter.sized(total)
        self._entries = 0
        self._low = 0
        self._parts_written = 0
        connection.execute("INSERT INTO run VALUES (?, ?, ?, 0)", (self._number, self._level, total))

    def step(self, connection: apsw.Connection, forget_before: int) -> Run | None:
        """One slice, inside the caller's transaction; the merged run when it was the last."""
        if self._low < HASH_END:
            self._merge_slice(connection, forget_before)
            crash.point("map.merging")
            return None
        parts = filter_parts(self._filter)
        if self._parts_written < parts:
            end = min(self._parts_written + FILTER_PARTS_PER_SLICE, parts)
            for part in range(self._parts_written, end):
                write_filter(connection, self._number, self._filter, part)
            self._parts_written = end
            return None
        return self._finish(connection)

    def _merge_slice(self, connection: apsw.Connection, forget_before: int) -> None:
        high = self._slice_end()
        parts = [_between(connection, run, self._low, high) for run in self.sources]
        entries = in_order(np.concatenate(parts, axis=1))
        entries = _without_forgotten(connection, entries, forget_before)
        if entries.shape[1]:
            write_chunks(connection, self._number, entries)
            self._filter.add(entries[0])
            self._entries += entries.shape[1]
        self._low = high

    def _slice_end(self) -> int:
        """Where a slice ends so that it holds a few chunks' worth over all sources."""
        total = sum(run.entries for run in self.sources)
        slices = max(1, total // (CHUNK_ENTRIES * SLICE_CHUNKS))
        return min(HASH_END, self._low + HASH_END // slices + 1)

    def _finish(self, connection: apsw.Connection) -> Run:
        connection.execute("UPDATE run SET live = 1, entries = ? WHERE run = ?", (self._entries, self._number))
        assert connection.changes() == 1, "the merged run is not in the file"
        for run in self.sources:
            connection.execute("DELETE FROM run WHERE run = ?", (run.number,))
            connection.execute("DELETE FROM filter WHERE run = ?", (run.number,))
        crash.point("map.merged")
        return Run(self._number, self._level, self._entries, self._filter)


def sweep(connection: apsw.Connection, busy: bool) -> bool:
    """Delete some chunks that no run owns any more; True if there may be others."""
    if not busy:
        connection.execute("DELETE FROM filter WHERE run IN (SELECT run FROM run WHERE NOT live)")
        connection.execute("DELETE FROM run WHERE NOT live")
    gone = connection.execute(
        "DELETE FROM chunk WHERE (run, first) IN"
        " (SELECT run, first FROM chunk WHERE run NOT IN (SELECT run FROM run) LIMIT ?) RETURNING 1",
        (GARBAGE_CHUNKS_PER_SLICE,),
    ).fetchall()
    return len(gone) == GARBAGE_CHUNKS_PER_SLICE


def _between(connection: apsw.Connection, run: Run, low: int, high: int) -> Entries:
    """A run's entries with low <= hash < high."""
    sql = (
        "SELECT entries FROM chunk WHERE run = ?1 AND first < ?3 AND first >="
        " ifnull((SELECT max(first) FROM chunk WHERE run = ?1 AND first <= ?2), 0) ORDER BY first"
    )
    parts = [decode(blob) for (blob,) in connection.execute(sql, (run.number, low, high))]
    if not parts:
        return np.empty((3, 0), dtype=np.int64)
    entries = np.concatenate(parts, axis=1)
    return entries[:, (entries[0] >= low) & (entries[0] < high)]


def _without_forgotten(connection: apsw.Connection, entries: Entries, forget_before: int) -> Entries:
    """Leave out what is long finished; what still stands or is still remembered stays whatever its age."""
    old = entries[2] < forget_before
    if not old.any():
        return entries
    remembered = connection.execute(
        "SELECT arrival FROM finished WHERE due < ? LIMIT ?", (forget_before, KEEP_MAX + 1)
    ).fetchall()
    if len(remembered) > KEEP_MAX:
        return entries
    arrivals = np.ascontiguousarray(entries[1][old])
    standing = connection.execute(
        "SELECT standing.arrival FROM carray(?) AS old JOIN standing ON standing.arrival = old.value",
        (apsw.carray(arrivals),),
    ).fetchall()
    keep = np.array([arrival for (arrival,) in (*remembered, *standing)], dtype=np.int64)
    return entries[:, ~old | np.isin(entries[1], keep)]
