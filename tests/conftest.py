"""Settings for all tests."""

import signal

from hypothesis import settings

settings.register_profile("patient", settings(), deadline=None)  # a busy machine is no fault
settings.load_profile("patient")

# A shell lets what it runs in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
