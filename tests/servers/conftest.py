"""The fixtures of these tests."""

from tests.servers.fixtures import broker, postgres, topic

__all__ = ["broker", "postgres", "topic"]
