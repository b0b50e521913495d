"""The free capacity of an outbox.

Records in an outbox are sent in one order, cannot be cancelled and do not expire. So an outbox is kept short: the rest
waits on the timeline, where shares are fair and changes are possible.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from threading import Lock

OUTBOX_ROWS_MAX = 16_000
OUTBOX_BYTES_MAX = 32 * 1024 * 1024
RECORD_BYTES = 64  # size of a record besides its message and id


class OutboxCapacity:
    """Counts the records in an outbox that are not known to be on Kafka and not held back. Thread-safe."""

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
        """How many more records fit; 0 while it is shut, or full in rows or bytes."""
        with self._lock:
            return self._rows()

    @property
    def bytes(self) -> int:
        """How many more bytes fit; the last record may exceed it."""
        with self._lock:
            return max(0, self._bytes_max - self._bytes)

    def begin(self, records: Iterable[tuple[int, int]]) -> None:
        """Start counting again with these records, given as (offset, size) in order."""
        with self._lock:
            self._sizes = {offset: size for offset, size in records if offset >= self.arrived}
            self._bytes = sum(self._sizes.values())

    def put(self, first: int, sizes: Sequence[int]) -> None:
        """Records of these sizes were added, starting at this offset."""
        with self._lock:
            self._sizes.update(enumerate(sizes, first))
            self._bytes += sum(sizes)

    def arrive(self, offset: int) -> bool:
        """Everything before this offset is on Kafka; True if the outbox was full and has room again."""
        with self._lock:
            was_full = not self._rows()
            self.arrived = max(self.arrived, offset)
            gone = list(takewhile(lambda first: first < self.arrived, self._sizes))
            self._bytes -= sum(map(self._sizes.pop, gone))
            return was_full and self._rows() > 0

    def shut(self, is_shut: bool) -> bool:
        """Stop or resume accepting records; True if there is room again."""
        with self._lock:
            was_full, self._is_shut = not self._rows(), is_shut
            return was_full and self._rows() > 0

    def leave(self, offsets: Iterable[int]) -> None:
        """These records are held back or deleted, and do not count any more."""
        with self._lock:
            self._bytes -= sum(self._sizes.pop(offset, 0) for offset in offsets)

    def _rows(self) -> int:
        if self._is_shut or self._bytes >= self._bytes_max:
            return 0
        return max(0, self._rows_max - len(self._sizes))
