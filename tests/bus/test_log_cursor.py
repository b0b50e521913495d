"""Cursors round-trip, and other texts are refused."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tidings.bus.log_reader import CURSOR_CHARS_MAX, LATEST, decode, encode
from tidings.domain.errors import Invalid

offsets = some.integers(0, 2**63 - 1)


@given(some.lists(offsets, min_size=1, max_size=64).map(tuple))
@example((0, 0, 0, 0))
def test_a_cursor_round_trips_and_is_safe_in_a_url(positions: tuple[int, ...]) -> None:
    text = encode(positions)
    assert decode(text, len(positions)) == positions
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert text != LATEST
    assert len(text) <= CURSOR_CHARS_MAX


def test_a_cursor_is_short() -> None:
    assert len(encode((0, 1, 2, 3))) == 7


@given(some.text(max_size=40))
@example("")
@example(LATEST)
@example("lAAAAAA=")
@example("lAAAAAAA")
@example("lAAAAAB")  # trailing bits that base64 ignores
@example("lAAA AAA")
@example("lAAAAAé")
@example("x" * (CURSOR_CHARS_MAX + 1))
def test_invalid_text_is_refused(text: str) -> None:
    try:
        positions = decode(text, 4)
    except Invalid:
        return
    assert encode(positions) == text  # a valid cursor by chance


@pytest.mark.parametrize("positions", [(-1, 0, 0, 0), (2**63, 0, 0, 0), (True, 0, 0, 0), (0.0, 0, 0, 0)])
def test_invalid_offsets_in_a_cursor_are_refused(positions: tuple[int, ...]) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        decode(encode(positions), 4)


def test_a_cursor_for_another_number_of_partitions_is_refused() -> None:
    with pytest.raises(Invalid, match="is for 3 partitions, but this topic has 4"):
        decode(encode((1, 2, 3)), 4)
