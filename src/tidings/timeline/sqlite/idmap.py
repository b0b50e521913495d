"""The map from a caller's id to the place of its row.

Ids are random, and a table ordered by them would dirty another page for every row. So entries go to a short table in
order of arrival, and from there into sorted runs that are merged eight at a time, in small slices. A filter for
each run tells, for a whole batch at once, that nearly all new ids are new.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import apsw
import numpy as np
import numpy.typing as npt

from tidings import crash
from tidings.timeline.sqlite.filter import Filter, Hashes, Probes
from tidings.timeline.sqlite.recent import Entries, Recent

RECENT_ENTRIES_MAX = 32_768
CHUNK_ENTRIES = 4_096
FILTER_PART_WORDS = 64 * 1024
SAME_HASH_MAX = 8  # far more than ids ever share a hash by chance


class Run:
    """A sorted, immutable part of the map."""

    def __init__(self, number: int, level: int, entries: int, run_filter: Filter) -> None:
        self.number = number
        self.level = level
        self.entries = entries
        self.filter = run_filter


class IdMap:
    """Where the rows of callers' ids lie. `recent` and `runs` are swapped together, so a reader sees both or none."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.state: tuple[Recent, tuple[Run, ...]] = (Recent(), ())

    @property
    def recent_count(self) -> int:
        """How many entries wait to be written as a run."""
        return self.state[0].count

    def hash(self, tenant: str, schedule_id: str) -> int:
        """A salted hash of 63 bits; what it finds is always checked against the id itself."""
        return self.hashes(tenant, (schedule_id,))[0]

    def hashes(self, tenant: str, schedule_ids: Iterable[str]) -> list[int]:
        """The same for many ids of one tenant."""
        person = blake2b(tenant.encode(), digest_size=16).digest()
        begun = blake2b(digest_size=8, salt=self._secret, person=person)
        joined = b"".join([_digest(begun, name) for name in schedule_ids])
        hashes: list[int] = (np.frombuffer(joined, dtype=">u8") >> np.uint64(1)).tolist()
        return hashes

    def load(self, connection: apsw.Connection) -> None:
        """Read back what must be in memory: the recent entries and the filters."""
        rows = connection.execute("SELECT run, level, entries FROM run WHERE live ORDER BY run").fetchall()
        runs = tuple(Run(run, level, entries, read_filter(connection, run)) for run, level, entries in rows)
        self.state = (Recent(), runs)
        for (entries,) in connection.execute("SELECT entries FROM recent ORDER BY first").fetchall():
            self.state[0].add(decode(entries))

    def remember(self, connection: apsw.Connection, entries: Entries) -> None:
        """Enter ids that came together, in order of arrival, in the file and in memory."""
        connection.execute("INSERT INTO recent VALUES (?, ?)", (int(entries[1][0]), entries.tobytes()))
        self.state[0].add(entries)

    def suspects(self, hashes: Hashes) -> set[int]:
        """The indexes of the hashes that some run may hold."""
        runs = self.state[1]
        if not runs:
            return set()
        probes = Probes(hashes)
        found: set[int] = set()
        for run in runs:
            found.update(run.filter.test(probes).tolist())
        return found

    def places(self, connection: apsw.Connection, id_hash: int) -> Iterator[tuple[int, int]]:
        """Every (arrival, due) entered under a hash, the newest first: what is recent is newer than any run."""
        state = self.state
        yield from state[0].places(id_hash)
        yield from self._places_in_runs(connection, id_hash, state[1])

    def newest(
        self, connection: apsw.Connection, hashes: Sequence[int], indexes: Iterable[int]
    ) -> Iterator[tuple[int, tuple[int, int]]]:
        """The newest (arrival, due) of some of these hashes, by index; for the writer, which nobody merges beside."""
        recent, runs = self.state
        elsewhere: list[int] = []
        for index in indexes:
            if hashes[index] in recent.arrivals:
                yield index, next(recent.places(hashes[index]))
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
            for at, place in _newest_in_run(connection, run, sought, held):
                found[at] = max(place, found.get(at, place))
        yield from ((elsewhere[at], place) for at, place in found.items())

    def _places_in_runs(
        self, connection: apsw.Connection, id_hash: int, runs: tuple[Run, ...]
    ) -> list[tuple[int, int]]:
        while True:
            found: list[tuple[int, int]] = []
            probes = Probes(np.array([id_hash], dtype=np.int64))
            for run in runs:
                if len(run.filter.test(probes)):
                    found += _run_places(connection, run, id_hash)
            if runs is self.state[1]:  # else a merge may have taken a run away while we looked
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
        """Let the flushed run take the place of the recent entries, once it is durable."""
        self.state = (Recent(), (*self.state[1], self._flushed))

    def swap_merged(self, gone: set[int], merged: Run) -> None:
        """Let a merged run take the place of its sources, once it is durable."""
        recent, runs = self.state
        self.state = recent, (*(run for run in runs if run.number not in gone), merged)


def _digest(begun: blake2b, name: str) -> bytes:
    """Copying a hash that has begun costs a third of beginning one."""
    digest = begun.copy()
    digest.update(name.encode())
    return digest.digest()


def in_order(entries: Entries) -> Entries:
    """Entries sorted by hash, then arrival. An id that was replaced over and over keeps its newest few."""
    entries = entries[:, np.lexsort((entries[1], entries[0]))]
    hashes = entries[0]
    newest = np.ones(len(hashes), dtype=np.bool_)
    newest[:-SAME_HASH_MAX] = hashes[:-SAME_HASH_MAX] != hashes[SAME_HASH_MAX:]
    return np.ascontiguousarray(entries[:, newest])


def next_run(connection: apsw.Connection) -> int:
    """A run number that no chunk carries, not even one left over."""
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
    """Entries as they lie in `chunk` and `recent`."""
    return np.frombuffer(blob, dtype=np.int64).reshape(3, -1)


def filter_parts(run_filter: Filter) -> int:
    """How many rows a filter takes."""
    return -(-len(run_filter.words) // FILTER_PART_WORDS)


def write_filter(connection: apsw.Connection, run: int, run_filter: Filter, part: int) -> None:
    """Keep one part of a filter beside its run, so that a start need not read every id."""
    words = run_filter.words[part * FILTER_PART_WORDS : (part + 1) * FILTER_PART_WORDS]
    connection.execute("INSERT INTO filter VALUES (?, ?, ?)", (run, part, words.tobytes()))


def read_filter(connection: apsw.Connection, run: int) -> Filter:
    """A run's filter as it was written."""
    parts = connection.execute("SELECT words FROM filter WHERE run = ? ORDER BY part", (run,)).fetchall()
    return Filter(np.frombuffer(b"".join(words for (words,) in parts), dtype=np.uint64))


def _newest_in_run(
    connection: apsw.Connection, run: Run, sought: Hashes, held: npt.NDArray[np.int64]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """The newest place of each of some sorted hashes (`held` are their indexes), a chunk at a time."""
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
        places = zip(arrivals[chosen].tolist(), dues[chosen].tolist(), strict=True)
        yield from zip(held[start:end][there].tolist(), places, strict=True)
        end = start


def _run_places(connection: apsw.Connection, run: Run, id_hash: int) -> list[tuple[int, int]]:
    sql = "SELECT entries FROM chunk WHERE run = ? AND first <= ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(sql, (run.number, id_hash)).fetchone()
    if row is None:
        return []
    hashes, arrivals, dues = decode(row[0])
    low, high = np.searchsorted(hashes, [id_hash, id_hash + 1])
    return [(int(arrivals[index]), int(dues[index])) for index in range(low, high)]
