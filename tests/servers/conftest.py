"""The fixtures of these tests."""

from tests.servers.fixtures import broker, topic

__all__ = ["broker", "topic"]
