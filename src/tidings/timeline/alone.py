"""A store of one process at a time: of what others do there is nothing to tell."""

from collections.abc import Callable

from tidings.domain.fleet import Role
from tidings.ports import Rosters


class Alone:
    """The verbs that concern other processes, where at most one works and any other stands by."""

    rosters: Rosters | None = None

    async def follow(self, tenant: str, topic: str) -> None:
        """What this process releases it knows by itself."""

    def unfollow(self, tenant: str, topic: str) -> None:
        """Nothing was begun."""

    def on_news(self, call: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """There is nobody to tell; who stands by looks again from time to time."""

    def reads(self, source: str, partition: int, role: Role = "intake") -> bool:
        """Who works reads all of it."""
        del source, partition, role
        return True
