"""Settings for all tests."""

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.selection import leaves_out

settings.register_profile("patient", settings(), deadline=None)  # a busy machine is no fault
settings.load_profile("patient")

# A shell lets what it runs in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Collection creates millions of objects that live as long as the process. Walking them again and again takes half of
# its time, and later the time of every test that lets garbage be collected.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which `-m` selects nothing: every process that runs tests would import all of them."""
    is_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return (is_tests and leaves_out(config.option.markexpr, collection_path.read_text("utf-8"))) or None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt what is collected from garbage collection, which begins here."""
    gc.freeze()
    gc.enable()
