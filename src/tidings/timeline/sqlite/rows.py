"""Rows in bulk: how a batch becomes one value that SQLite unpacks by itself.

Binding row by row would hand the interpreter lock back and forth for each one, which under load costs milliseconds
a row; an array of blobs costs one hand-over for a batch.
"""

from collections.abc import Sequence

import apsw
import numpy as np
import numpy.typing as npt

from tidings.timeline.sqlite.database import queries

ARRIVAL_BITS = 41
ARRIVAL_MASK = (1 << ARRIVAL_BITS) - 1
NO_DEADLINE = 9_999_999_999_999_999
REASONS = ("", "expired", "late_skipped", "late_max")
NO_CONTENT = bytes(16)

# bucket, arrival, due, stream, partition, deadline, hash, reason * 1000 + bytes of id, bytes of labels
_WIDTHS = (8, 16, 16, 8, 8, 16, 20, 4, 4)
HEAD_BYTES = sum(_WIDTHS)
_GROUP = 10_000  # numbers are written four digits at a time
_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(_GROUP)), dtype=np.uint32)

Column = npt.NDArray[np.int64] | int

_SQL = queries("rows")


def heads(count: int, columns: Sequence[Column]) -> list[bytes]:
    """The fixed decimal fields of each row; a column may be one number for all."""
    return digits(count, _WIDTHS, columns)


def digits(count: int, widths: Sequence[int], columns: Sequence[Column]) -> list[bytes]:
    """Numbers as decimal text of fixed widths (multiples of four), column after column."""
    text = np.empty((count, sum(widths) // 4), dtype=np.uint32)
    end = 0
    for width, column in zip(widths, columns, strict=True):
        start, end = end, end + width // 4
        if isinstance(column, int):
            text[:, start:end] = np.frombuffer(b"%0*d" % (width, column), dtype=np.uint32)
            continue
        rest = column
        for group in range(end - 1, start, -1):
            rest, last = np.divmod(rest, _GROUP)
            text[:, group] = _DIGITS[last]
        text[:, start] = _DIGITS[rest]
    joined, size = text.tobytes(), sum(widths)
    return [joined[start : start + size] for start in range(0, len(joined), size)]


def insert(connection: apsw.Connection, table: str, rows: Sequence[bytes], *more: int) -> None:
    """Insert encoded rows into `near` or `recent`, in one step."""
    if rows:
        connection.execute(_SQL[f"insert_{table}"], (apsw.carray(tuple(rows)), *more))
