"""Tests of metrics and logs."""
