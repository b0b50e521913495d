"""Rows in bulk: how a batch becomes one value that SQLite unpacks by itself.

Binding row by row would hand the interpreter lock back and forth for each one, which under load costs milliseconds
a row; an array of blobs costs one hand-over for a batch.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ARRIVAL_BITS = 41
ARRIVAL_MASK = (1 << ARRIVAL_BITS) - 1
NO_DEADLINE = 9_999_999_999_999_999
REASONS = ("", "expired", "late_skipped", "late_max")
FEW = 32  # rows for which columns are not worth their trouble

_GROUP = 10_000  # numbers are written four digits at a time
_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(_GROUP)), dtype=np.uint32)

Numbers = npt.NDArray[np.int64]


def digits(count: int, widths: Sequence[int], columns: Sequence[Numbers]) -> list[bytes]:
    """Numbers as decimal text of fixed widths (multiples of four), column after column."""
    if count < FEW:
        form = b"".join(b"%%0%dd" % width for width in widths)
        return [form % row for row in zip(*(column.tolist() for column in columns), strict=True)]
    text = np.empty((count, sum(widths) // 4), dtype=np.uint32)
    end = 0
    for width, column in zip(widths, columns, strict=True):
        start, end = end, end + width // 4
        rest = column
        for group in range(end - 1, start, -1):
            rest, last = np.divmod(rest, _GROUP)
            text[:, group] = _DIGITS[last]
        text[:, start] = _DIGITS[rest]
    joined, size = text.tobytes(), sum(widths)
    return [joined[start : start + size] for start in range(0, len(joined), size)]
