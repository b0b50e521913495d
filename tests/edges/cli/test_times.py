"""Times for people: exact, and how far away."""

import pytest

from tidings.edges.cli.screen import clock_text, instant, length, relative


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "now"),
        (999, "now"),
        (5_000, "in 5 ms"),
        (5_003_000, "in 5.0 s"),
        (-1_500_000, "1.5 s ago"),
        (65_000_000, "in 1 min 5 s"),
        (-3_600_000_000, "1 h ago"),
        (90_061_000_000, "in 1 d 1 h"),
        (86_405_000_000, "in 1 d"),
    ],
)
def test_relative(us: int, said: str) -> None:
    assert relative(us) == said


def test_nothing_but_zeros_is_left_out_of_a_time() -> None:
    assert clock_text("2026-11-20T09:00:00.000000Z") == "2026-11-20 09:00:00Z"
    assert clock_text("2026-11-20T09:00:00.250000Z") == "2026-11-20 09:00:00.250Z"
    assert clock_text("2026-11-20T09:00:00.159360Z") == "2026-11-20 09:00:00.159360Z"
    assert clock_text("2026-11-20T09:00:00.000001Z") == "2026-11-20 09:00:00.000001Z"


def test_instants() -> None:
    assert instant("1970-01-01T00:00:01.000002Z") == 1_000_002
    assert instant("1970-01-01T01:00:00+01:00") == 0
    assert [instant(text) for text in ("soon", None, "1970-01-01T00:00:00")] == [None, None, None]


def test_length_of_less_than_a_second() -> None:
    assert length(850_400) == "850 ms"
