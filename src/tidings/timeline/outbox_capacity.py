"""The room of an outbox: how much more may go into it before Kafka has taken some.

What lies in an outbox leaves in one order, cannot be taken back and does not expire. So it holds little: the rest waits
on the timeline, where shares are fair and changes are possible.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from threading import Lock

OUTBOX_ROWS_MAX = 16_000
OUTBOX_BYTES_MAX = 32 * 1024 * 1024
RECORD_BYTES = 64  # what a record takes beside its message and id


class OutboxCapacity:
    """Counts what is in an outbox, not known to be on Kafka and not kept back. Any thread may ask and tell."""

    def __init__(self, rows_max: int = OUTBOX_ROWS_MAX, bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._is_shut = False
        self.arrived = 0

    @property
    def rows(self) -> int:
        """How many more records may go in; 0 while it is shut or full, in rows or in bytes."""
        with self._lock:
            return self._rows()

    @property
    def bytes(self) -> int:
        """How many more bytes; the last record may be larger."""
        with self._lock:
            return max(0, self._bytes_max - self._bytes)

    def begin(self, records: Iterable[tuple[int, int]]) -> None:
        """Count anew: these records, as (offset, size) in order, are in it."""
        with self._lock:
            self._sizes = {offset: size for offset, size in records if offset >= self.arrived}
            self._bytes = sum(self._sizes.values())

    def put(self, first: int, sizes: Sequence[int]) -> None:
        """Records of these sizes went in, from this offset on."""
        with self._lock:
            self._sizes.update(enumerate(sizes, first))
            self._bytes += sum(sizes)

    def arrive(self, offset: int) -> bool:
        """Everything before this offset is on Kafka; True if there is room again."""
        with self._lock:
            was_full = not self._rows()
            self.arrived = max(self.arrived, offset)
            gone = list(takewhile(lambda first: first < self.arrived, self._sizes))
            self._bytes -= sum(map(self._sizes.pop, gone))
            return was_full and self._rows() > 0

    def shut(self, is_shut: bool) -> bool:
        """Take nothing more for now, or again; True if there is room again."""
        with self._lock:
            was_full, self._is_shut = not self._rows(), is_shut
            return was_full and self._rows() > 0

    def leave(self, offsets: Iterable[int]) -> None:
        """These are kept back, or over: they count no longer."""
        with self._lock:
            self._bytes -= sum(self._sizes.pop(offset, 0) for offset in offsets)

    def _rows(self) -> int:
        if self._is_shut or self._bytes >= self._bytes_max:
            return 0
        return max(0, self._rows_max - len(self._sizes))
