"""Tests of single stores beyond the contract."""
