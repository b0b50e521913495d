"""What nodes say of themselves can be read by other versions; numbers of lanes for people."""

import msgspec
import pytest

from tidings.domain.fleet import Report, ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 1, 4, 6, 7, 15), "0-1, 4, 6-7, 15")],
)
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_a_report_of_another_version() -> None:
    newer = b'{"name": "north", "roles": ["api", "cook"], "mood": "good"}'
    assert msgspec.json.decode(newer, type=Report) == Report("north", ("api", "cook"))
