"""Bulk rows contain every number unchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.timeline.sqlite.pending.packed_rows import digits

WIDTHS = (8, 16, 16, 8, 20, 4)
ROWS = st.tuples(*(st.integers(0, min(10**width, 2**63) - 1) for width in WIDTHS))


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=20))
def test_fields_are_decimal_and_fixed(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    expected = ["".join(f"{number:0{width}d}" for number, width in zip(row, WIDTHS, strict=True)) for row in rows]
    assert digits(len(rows), WIDTHS, columns) == [text.encode() for text in expected]
