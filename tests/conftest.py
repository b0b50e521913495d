"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("patient", settings(), deadline=None)  # a busy machine is no fault
settings.load_profile("patient")
