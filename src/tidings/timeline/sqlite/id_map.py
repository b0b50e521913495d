"""The id map: where the schedules of caller-given ids are, as a log-structured merge tree of hashes.

New entries are kept in memory and in `recent` (`Recent`), flushed to sorted runs (`Run`), and runs are merged level by
level (`Merge`). Each run has a Bloom filter, so that a whole batch of new ids is checked without reading runs.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import apsw
import numpy as np
import numpy.typing as npt

from tidings import crash

Hashes = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

BITS_PER_ENTRY = 24  # runs written by version 0.1 have 12
WORDS_MIN = 64
_ONE = np.uint64(1)
_SIX_BITS = np.uint64(63)
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd: derives the hash for the second word

Entries = npt.NDArray[np.int64]  # three rows: hashes, arrivals, due times

RECENT_ENTRIES_MAX = 32_768
CHUNK_ENTRIES = 1_024
FILTER_PART_WORDS = 64 * 1024
SAME_HASH_MAX = 8  # far more than ids ever share a hash by chance

FAN_IN = 8
SLICE_CHUNKS = 16
FILTER_PARTS_PER_SLICE = 4
GARBAGE_CHUNKS_PER_SLICE = 128
HASH_END = (1 << 63) - 1
KEEP_MAX = 10_000


class Probes:
    """Hashes prepared for every filter: the bits that each sets, and the numbers that select its two words."""

    def __init__(self, hashes: Hashes) -> None:
        first = hashes.view(np.uint64)
        second = first * _SPREAD
        self.words = first >> np.uint64(18), second >> np.uint64(18)
        self.masks = _mask(first), _mask(second)


class Filter:
    """A Bloom filter: three bits in each of two words per entry, fewer than one false positive in ten thousand."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._last = np.uint64(len(words) - 1)

    @classmethod
    def sized(cls, entries: int) -> "Filter":
        """An empty filter for this many entries; its length is a power of two."""
        words = max(WORDS_MIN, entries * BITS_PER_ENTRY // 64)
        return cls(np.zeros(1 << (words - 1).bit_length(), dtype=np.uint64))

    def add(self, hashes: Hashes) -> None:
        """Add hashes."""
        probes = Probes(hashes)
        for word, mask in zip(probes.words, probes.masks, strict=True):
            np.bitwise_or.at(self.words, word & self._last, mask)

    def test(self, probes: Probes) -> npt.NDArray[np.int64]:
        """The indexes of the hashes that may have been added; no hash that was added is missing."""
        mask = probes.masks[0]
        found = np.flatnonzero((self.words[probes.words[0] & self._last] & mask) == mask)
        if len(found) == 0:
            return found
        mask = probes.masks[1][found]
        held: npt.NDArray[np.int64] = found[(self.words[probes.words[1][found] & self._last] & mask) == mask]
        return held


def _mask(keys: Words) -> Words:
    mask = _ONE << (keys & _SIX_BITS)
    mask |= _ONE << ((keys >> np.uint64(6)) & _SIX_BITS)
    mask |= _ONE << ((keys >> np.uint64(12)) & _SIX_BITS)
    return mask


class Recent:
    """The entries that are not flushed yet. It only grows, so other threads may read it at any time."""

    def __init__(self) -> None:
        self.arrivals: dict[int, int] = {}  # of the newest entry of each hash
        self._earlier: dict[int, list[int]] = {}
        self._firsts: list[int] = []
        self.pieces: list[Entries] = []
        self.count = 0

    def add(self, entries: Entries) -> None:
        """Add a batch of entries, in order of arrival and after all others."""
        hashes, arrivals, _ = entries.tolist()
        self.pieces.append(entries)
        self._firsts.append(arrivals[0])
        for id_hash in self.arrivals.keys() & set(hashes):
            self._earlier.setdefault(id_hash, []).append(self.arrivals[id_hash])
        self.arrivals.update(zip(hashes, arrivals, strict=True))
        self.count += len(hashes)

    def row_keys(self, id_hash: int) -> Iterator[tuple[int, int]]:
        """Every (arrival, due) of a hash, the newest first."""
        newest = self.arrivals.get(id_hash)
        if newest is not None:
            yield self._row_key(newest)
            for arrival in reversed(self._earlier.get(id_hash, [])):
                yield self._row_key(arrival)

    def _row_key(self, arrival: int) -> tuple[int, int]:
        _, arrivals, dues = self.pieces[bisect_right(self._firsts, arrival) - 1]
        return arrival, int(dues[np.searchsorted(arrivals, arrival)])

    def all(self) -> Entries:
        """All entries, in order of arrival."""
        return np.concatenate(self.pieces, axis=1)


class Run:
    """A sorted, immutable part of the map."""

    def __init__(self, number: int, level: int, entries: int, run_filter: Filter) -> None:
        self.number = number
        self.level = level
        self.entries = entries
        self.filter = run_filter


class IdMap:
    """Maps ids to the keys of their rows (arrival, due time).

    `recent` and `runs` are replaced together, so readers see both or none.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.state: tuple[Recent, tuple[Run, ...]] = (Recent(), ())

    @property
    def recent_count(self) -> int:
        """How many entries are not flushed yet."""
        return self.state[0].count

    def hash(self, tenant: str, schedule_id: str) -> int:
        """A salted hash of 63 bits; rows found by it are always checked against the id itself."""
        return self.hashes(tenant, (schedule_id,))[0]

    def hashes(self, tenant: str, schedule_ids: Iterable[str]) -> list[int]:
        """The same for many ids of one tenant."""
        person = blake2b(tenant.encode(), digest_size=16).digest()
        prepared = blake2b(digest_size=8, salt=self._secret, person=person)
        # Copying a prepared hash costs a third of creating one, and doing each step for all of them is faster again.
        digests = [(prepared.copy(), schedule_id.encode()) for schedule_id in schedule_ids]
        for digest, name in digests:
            digest.update(name)
        joined = b"".join([digest.digest() for digest, _ in digests])
        hashes: list[int] = (np.frombuffer(joined, dtype=">u8") >> np.uint64(1)).tolist()
        return hashes

    def load(self, connection: apsw.Connection) -> None:
        """Load the recent entries and the filters into memory."""
        rows = connection.execute("SELECT run, level, entries FROM run WHERE live ORDER BY run").fetchall()
        runs = tuple(Run(run, level, entries, read_filter(connection, run)) for run, level, entries in rows)
        self.state = (Recent(), runs)
        for (entries,) in connection.execute("SELECT entries FROM recent ORDER BY first").fetchall():
            self.state[0].add(decode(entries))

    def remember(self, connection: apsw.Connection, entries: Entries) -> None:
        """Add a batch of entries, in order of arrival, to the file and to memory."""
        connection.execute("INSERT INTO recent VALUES (?, ?)", (int(entries[1][0]), entries.tobytes()))
        self.state[0].add(entries)

    def suspects(self, hashes: Hashes) -> set[int]:
        """The indexes of the hashes that some run may contain."""
        runs = self.state[1]
        if not runs:
            return set()
        probes = Probes(hashes)
        found: set[int] = set()
        for run in runs:
            found.update(run.filter.test(probes).tolist())
        return found

    def row_keys(self, connection: apsw.Connection, id_hash: int) -> Iterator[tuple[int, int]]:
        """Every (arrival, due) of a hash, newest first: recent entries are newer than those of any run."""
        state = self.state
        yield from state[0].row_keys(id_hash)
        yield from self._row_keys_in_runs(connection, id_hash, state[1])

    def newest(
        self, connection: apsw.Connection, hashes: Sequence[int], indexes: Iterable[int]
    ) -> Iterator[tuple[int, tuple[int, int]]]:
        """The newest (arrival, due) of some of these hashes, by index; a hash that is nowhere in the map has none.

        For the writer only: no merge runs meanwhile.
        """
        recent, runs = self.state
        elsewhere: list[int] = []
        for index in indexes:
            if hashes[index] in recent.arrivals:
                yield index, next(recent.row_keys(hashes[index]))
            else:
                elsewhere.append(index)
        if not elsewhere:
            return
        elsewhere.sort(key=hashes.__getitem__)
        sought = np.array([hashes[index] for index in elsewhere], dtype=np.int64)
        found: dict[int, tuple[int, int]] = {}
        probes = Probes(sought)
        for run in runs:
            held = run.filter.test(probes)
            for at, key in _newest_in_run(connection, run, sought, held):
                found[at] = max(key, found.get(at, key))
        yield from ((elsewhere[at], key) for at, key in found.items())

    def _row_keys_in_runs(
        self, connection: apsw.Connection, id_hash: int, runs: tuple[Run, ...]
    ) -> list[tuple[int, int]]:
        while True:
            found: list[tuple[int, int]] = []
            probes = Probes(np.array([id_hash], dtype=np.int64))
            for run in runs:
                if len(run.filter.test(probes)):
                    found += _run_row_keys(connection, run, id_hash)
            if runs is self.state[1]:  # else a merge may have replaced a run meanwhile
                return sorted(set(found), reverse=True)
            runs = self.state[1]

    def flush(self, connection: apsw.Connection) -> None:
        """Write the recent entries as a run of the lowest level. Call `swap_flushed` after the commit."""
        entries = in_order(self.state[0].all())
        number, count = next_run(connection), entries.shape[1]
        connection.execute("INSERT INTO run VALUES (?, 0, ?, 1)", (number, count))
        write_chunks(connection, number, entries)
        run_filter = Filter.sized(count)
        run_filter.add(entries[0])
        for part in range(filter_parts(run_filter)):
            write_filter(connection, number, run_filter, part)
        connection.execute("DELETE FROM recent")
        crash.point("map.flushed")
        self._flushed = Run(number, 0, count, run_filter)

    def swap_flushed(self) -> None:
        """Replace the recent entries by the flushed run, once it is durable."""
        self.state = (Recent(), (*self.state[1], self._flushed))

    def swap_merged(self, gone: set[int], merged: Run) -> None:
        """Replace the sources of a merge by the merged run, once it is durable."""
        recent, runs = self.state
        self.state = recent, (*(run for run in runs if run.number not in gone), merged)


def in_order(entries: Entries) -> Entries:
    """Entries sorted by hash, then arrival. Of an id that was replaced many times, only the newest few are kept."""
    entries = entries[:, np.lexsort((entries[1], entries[0]))]
    hashes = entries[0]
    newest = np.ones(len(hashes), dtype=np.bool_)
    newest[:-SAME_HASH_MAX] = hashes[:-SAME_HASH_MAX] != hashes[SAME_HASH_MAX:]
    return np.ascontiguousarray(entries[:, newest])


def next_run(connection: apsw.Connection) -> int:
    """A run number that no chunk uses, not even one left over by a crash."""
    sql = "SELECT max(ifnull((SELECT max(run) FROM run), 0), ifnull((SELECT max(run) FROM chunk), 0)) + 1"
    return int(connection.execute(sql).get)


def write_chunks(connection: apsw.Connection, run: int, entries: Entries) -> None:
    """Cut sorted entries into chunks; entries of one hash stay together."""
    hashes, start, total = entries[0], 0, entries.shape[1]
    while start < total:
        end = min(start + CHUNK_ENTRIES, total)
        if end < total:
            end = int(np.searchsorted(hashes, hashes[end - 1], side="right"))
        blob = np.ascontiguousarray(entries[:, start:end]).tobytes()
        connection.execute("INSERT INTO chunk VALUES (?, ?, ?)", (run, int(hashes[start]), blob))
        start = end


def decode(blob: bytes) -> Entries:
    """Decode entries as stored in `chunk` and `recent`."""
    return np.frombuffer(blob, dtype=np.int64).reshape(3, -1)


def filter_parts(run_filter: Filter) -> int:
    """How many rows a filter needs."""
    return -(-len(run_filter.words) // FILTER_PART_WORDS)


def write_filter(connection: apsw.Connection, run: int, run_filter: Filter, part: int) -> None:
    """Store one part of a filter with its run, so that a start does not have to read every id."""
    words = run_filter.words[part * FILTER_PART_WORDS : (part + 1) * FILTER_PART_WORDS]
    connection.execute("INSERT INTO filter VALUES (?, ?, ?)", (run, part, words.tobytes()))


def read_filter(connection: apsw.Connection, run: int) -> Filter:
    """Read the filter of a run."""
    parts = connection.execute("SELECT words FROM filter WHERE run = ? ORDER BY part", (run,)).fetchall()
    return Filter(np.frombuffer(b"".join(words for (words,) in parts), dtype=np.uint64))


def _newest_in_run(
    connection: apsw.Connection, run: Run, sought: Hashes, held: npt.NDArray[np.int64]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """The newest row key of each of some sorted hashes (`held` are their indexes), a chunk at a time."""
    sql = "SELECT entries FROM chunk WHERE run = ? AND first <= ? ORDER BY first DESC LIMIT 1"
    end = len(held)
    while end:  # from the last to the first: a chunk begins with its first hash
        row = connection.execute(sql, (run.number, int(sought[held[end - 1]]))).fetchone()
        if row is None:
            return
        hashes, arrivals, dues = decode(row[0])
        start = int(np.searchsorted(sought[held[:end]], hashes[0]))
        wanted = sought[held[start:end]]
        last = np.searchsorted(hashes, wanted, side="right") - 1
        there = hashes[last] == wanted
        chosen = last[there]
        keys = zip(arrivals[chosen].tolist(), dues[chosen].tolist(), strict=True)
        yield from zip(held[start:end][there].tolist(), keys, strict=True)
        end = start


def _run_row_keys(connection: apsw.Connection, run: Run, id_hash: int) -> list[tuple[int, int]]:
    sql = "SELECT entries FROM chunk WHERE run = ? AND first <= ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(sql, (run.number, id_hash)).fetchone()
    if row is None:
        return []
    hashes, arrivals, dues = decode(row[0])
    low, high = np.searchsorted(hashes, [id_hash, id_hash + 1])
    return [(int(arrivals[index]), int(dues[index])) for index in range(low, high)]


def choose(idmap: IdMap) -> list[Run] | None:
    """The runs to merge: the oldest of the lowest level that is full; None if none is."""
    levels: dict[int, list[Run]] = {}
    for run in idmap.state[1]:
        levels.setdefault(run.level, []).append(run)
    for level in sorted(levels):
        if len(levels[level]) >= FAN_IN:
            return levels[level][:FAN_IN]
    return None


class Merge:
    """A merge in progress. The new run is not live before the last slice; after a crash it is only garbage."""

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
        """Do one slice inside the caller's transaction; returns the merged run after the last one."""
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
        """The hash at which a slice ends, so that it has a few chunks over all sources."""
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
    """Delete some chunks that belong to no run; True if there may be more."""
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
    """Drop entries of ids that are forgotten; recurring schedules and remembered ids stay, however old."""
    old = entries[2] < forget_before
    if not old.any():
        return entries
    remembered = connection.execute(
        "SELECT arrival FROM finished WHERE due < ? LIMIT ?", (forget_before, KEEP_MAX + 1)
    ).fetchall()
    if len(remembered) > KEEP_MAX:
        return entries
    arrivals = np.ascontiguousarray(entries[1][old])
    recurring = connection.execute(
        "SELECT standing.arrival FROM carray(?) AS old JOIN standing ON standing.arrival = old.value",
        (apsw.carray(arrivals),),
    ).fetchall()
    keep = np.array([arrival for (arrival,) in (*remembered, *recurring)], dtype=np.int64)
    return entries[:, ~old | np.isin(entries[1], keep)]
