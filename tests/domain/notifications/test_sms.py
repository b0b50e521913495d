"""Segments of text messages, as the networks count them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.domain.notifications.message import Segments, segments


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("", Segments("GSM-7", 0, 1)),
        ("a" * 160, Segments("GSM-7", 160, 1)),
        ("a" * 161, Segments("GSM-7", 161, 2)),
        ("a" * 306, Segments("GSM-7", 306, 2)),
        ("a" * 307, Segments("GSM-7", 307, 3)),
        ("€" * 80, Segments("GSM-7", 160, 1)),
        ("€" * 81, Segments("GSM-7", 162, 2)),
        ("a" * 152 + "€" + "a" * 10, Segments("GSM-7", 164, 2)),
        # an escape stays with its character: 152 septets and an unused one, then the euro
        ("a" * 152 + "€" + "a" * 151, Segments("GSM-7", 305, 2)),
        ("a" * 152 + "€" + "a" * 152, Segments("GSM-7", 306, 3)),
        ("äöüßÄÖÜñÑèéùìòÇØøÅåÆæ¿¡", Segments("GSM-7", 23, 1)),
        ("ç", Segments("UCS-2", 1, 1)),  # only the capital letter is in the alphabet
        ("“" + "a" * 69, Segments("UCS-2", 70, 1)),
        ("“" + "a" * 70, Segments("UCS-2", 71, 2)),
        ("🍵" * 35, Segments("UCS-2", 70, 1)),
        ("🍵" * 36, Segments("UCS-2", 72, 2)),
        ("a" * 66 + "🍵" * 34, Segments("UCS-2", 134, 3)),
    ],
)
def test_segments(text: str, counted: Segments) -> None:
    assert segments(text) == counted


@given(st.text(max_size=400), st.text(max_size=20))
def test_more_text_never_takes_fewer_segments(text: str, more: str) -> None:
    assert segments(text + more).count >= segments(text).count
