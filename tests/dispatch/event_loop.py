"""Turns of the event loop, for tests in which other tasks must run."""

from collections.abc import Generator


class Turn:
    """Lets all other tasks that are ready run first."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def turns(count: int) -> None:
    """Yield this many times."""
    for _ in range(count):
        await Turn()
