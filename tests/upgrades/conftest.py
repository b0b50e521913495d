"""The fixtures of these tests: real servers."""

from tests.servers.fixtures import broker, postgres

__all__ = ["broker", "postgres"]
