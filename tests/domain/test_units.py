"""Sizes and lengths of time with their unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.domain.units import DAY_US, format_size, format_span, parse_size, parse_span


@pytest.mark.parametrize(
    ("text", "us"),
    [("1.5s", 1_500_000), ("7d", 7 * DAY_US), ("10y", 3653 * DAY_US), ("1 h", 3_600_000_000), ("0s", 0)],
)
def test_spans(text: str, us: int) -> None:
    assert parse_span(text) == us


@given(st.integers(0, 10**14))
def test_formatted_spans_and_sizes_parse_to_the_same(amount: int) -> None:
    assert parse_span(format_span(amount)) == amount
    assert parse_size(format_size(amount)) == amount


@given(st.text(max_size=20))
def test_any_text_is_parsed_or_refused_with_an_example(text: str) -> None:
    for parse in (parse_size, parse_span):
        said = ""
        try:
            assert parse(text) >= 0
        except ValueError as error:
            said = str(error)
        assert not said or "for example" in said
