"""Turns of the event loop, for tests in which others must get theirs."""

from collections.abc import Generator


class Turn:
    """Lets everyone else who is ready go first."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def turns(count: int) -> None:
    """That many turns."""
    for _ in range(count):
        await Turn()
