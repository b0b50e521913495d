"""Files that `-m` leaves out are not imported; no test may be lost by that."""

from pathlib import Path

import pytest

from tests.selection import WRITTEN_MARKERS, leaves_out

TESTS = Path(__file__).parent

SLOW_FILE = "pytestmark = pytest.mark.slow\n"
SLOW_LIST = "pytestmark = [pytest.mark.slow, pytest.mark.kill]\n"
LONG_LIST = 'pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.skipif(AWAY, reason="it is away"),\n]\n'
ONE_KILL = "@pytest.mark.kill\ndef test_kill() -> None: ...\n\n\ndef test_other() -> None: ...\n"


@pytest.mark.parametrize("source", [SLOW_FILE, SLOW_LIST, LONG_LIST])
def test_a_file_of_slow_tests_is_no_part_of_the_quick_ones(source: str) -> None:
    assert leaves_out("not slow and not kill and not bench", f"import pytest\n\n{source}\n\ndef test() -> None: ...\n")


@pytest.mark.parametrize("expression", ["", "slow", "not kill", "not (slow)", "slow or kill", "not timed and slow"])
def test_a_file_of_slow_tests_may_be_selected(expression: str) -> None:
    assert not leaves_out(expression, SLOW_FILE)


@pytest.mark.parametrize("expression", ["not slow and not kill", "kill", "slow", "docs", ""])
def test_a_file_of_different_tests_may_be_selected(expression: str) -> None:
    assert not leaves_out(expression, ONE_KILL)


@pytest.mark.parametrize("marker", sorted(WRITTEN_MARKERS - {"kill"}))
def test_a_file_without_a_marker_is_left_out_where_it_is_wanted(marker: str) -> None:
    assert leaves_out(marker, ONE_KILL)


def test_markers_that_are_searched_for_are_written_in_the_files_of_tests() -> None:
    elsewhere = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_")]
    words = [f"pytest.mark.{marker}" for marker in WRITTEN_MARKERS]
    assert [path for path in elsewhere if any(word in path.read_text("utf-8") for word in words)] == []
