"""Tests of the recurrence engine: golden examples, other people's cases, oracles, zones and fuzz."""
