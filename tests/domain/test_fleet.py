"""Reports of nodes of other versions, and ranges of lanes for people."""

import msgspec
import pytest

from tidings.domain.fleet import Report, ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 1, 4, 6, 7, 15), "0-1, 4, 6-7, 15")],
)
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_report_of_another_version_is_readable() -> None:
    newer = b'{"name": "north", "roles": ["api", "cook"], "mood": "good"}'
    assert msgspec.json.decode(newer, type=Report) == Report("north", ("api", "cook"))
