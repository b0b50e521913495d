"""Settings for all tests."""

import gc
import signal

import pytest
from hypothesis import settings

settings.register_profile("patient", settings(), deadline=None)  # a busy machine is no fault
settings.load_profile("patient")

# A shell lets what it runs in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Collection creates millions of objects that live as long as the process. Walking them again and again takes half of
# its time, and later the time of every test that lets garbage be collected.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt what is collected from garbage collection, which begins here."""
    gc.freeze()
    gc.enable()
