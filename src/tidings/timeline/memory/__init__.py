"""The store in memory: the executable specification of every other store. Clear before fast."""

from tidings.timeline.memory.store import MemoryStore

__all__ = ["MemoryStore"]
