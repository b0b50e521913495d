"""The suite runs over every store that there is."""

from pathlib import Path

import pytest

import tidings.timeline
from tests.contract import stores

FOLDER = Path(tidings.timeline.__path__[0])


def test_every_store_is_in_the_suite() -> None:
    written = {path.parent.name for path in FOLDER.glob("*/store.py")}
    assert "memory" in written
    assert written <= {stores.kind(name) for name in stores.NAMES}


@pytest.mark.parametrize("name", stores.NAMES)
def test_a_store_that_is_written_is_not_skipped(name: str) -> None:
    written = (FOLDER / stores.kind(name) / "store.py").exists()
    assert written or name in stores.MAY_BE_MISSING
    assert stores.is_missing(name) != written


def test_a_broken_store_is_not_a_missing_one() -> None:
    assert not any(stores.is_missing(name) for name in set(stores.NAMES) - stores.MAY_BE_MISSING)
