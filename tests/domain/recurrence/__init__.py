"""Tests of recurrence: examples of RFC 5545 and other suites, comparison with other implementations, zones, fuzzing."""
