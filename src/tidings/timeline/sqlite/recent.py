"""The newest part of the map of ids: in memory by hash, in the file as it came."""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Entries = npt.NDArray[np.int64]  # three rows: hashes, arrivals, due times


class Recent:
    """Grows only; readers on other threads may look at any time."""

    def __init__(self) -> None:
        self.arrivals: dict[int, int] = {}  # of the newest entry of each hash
        self._earlier: dict[int, list[int]] = {}
        self._firsts: list[int] = []
        self.pieces: list[Entries] = []
        self.count = 0

    def add(self, entries: Entries) -> None:
        """Entries that came together, in order of arrival and after all others."""
        hashes, arrivals, _ = entries.tolist()
        self.pieces.append(entries)
        self._firsts.append(arrivals[0])
        for id_hash in self.arrivals.keys() & set(hashes):
            self._earlier.setdefault(id_hash, []).append(self.arrivals[id_hash])
        self.arrivals.update(zip(hashes, arrivals, strict=True))
        self.count += len(hashes)

    def places(self, id_hash: int) -> Iterator[tuple[int, int]]:
        """Every (arrival, due) of a hash, the newest first."""
        newest = self.arrivals.get(id_hash)
        if newest is not None:
            yield self._place(newest)
            for arrival in reversed(self._earlier.get(id_hash, [])):
                yield self._place(arrival)

    def _place(self, arrival: int) -> tuple[int, int]:
        _, arrivals, dues = self.pieces[bisect_right(self._firsts, arrival) - 1]
        return arrival, int(dues[np.searchsorted(arrivals, arrival)])

    def all(self) -> Entries:
        """Everything, in order of arrival."""
        return np.concatenate(self.pieces, axis=1)
