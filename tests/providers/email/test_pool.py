"""Connections that are shared: never more than allowed, and none lost when somebody gives up."""

import asyncio

import pytest

from tidings.providers.email.session import Pool
from tidings.testing import SimulatedClock, eventually


class Line:
    """A connection that counts itself."""

    made = 0
    open = 0
    most = 0

    def __init__(self) -> None:
        Line.made += 1
        Line.open += 1
        Line.most = max(Line.most, Line.open)


async def connect() -> Line:
    return Line()


def disconnect(_: Line) -> None:
    Line.open -= 1


@pytest.fixture(autouse=True)
def fresh() -> None:
    Line.made = Line.open = Line.most = 0


def pool(clock: SimulatedClock, size: int = 2, uses_max: int = 100) -> Pool[Line]:
    return Pool(connect, disconnect, clock, size=size, uses_max=uses_max, idle_us=1_000_000)


async def test_never_more_than_allowed_are_open(clock: SimulatedClock) -> None:
    lines = pool(clock)

    async def use() -> None:
        lease = await lines.take()
        await asyncio.wait([asyncio.create_task(connect_nothing())])
        lines.give(lease, usable=True)

    await asyncio.gather(*(use() for _ in range(50)))
    assert (Line.made, Line.most) == (2, 2)
    lines.close()
    assert Line.open == 0


async def connect_nothing() -> None:
    """One turn of the loop."""


async def test_one_who_gives_up_waiting_takes_nothing_along(clock: SimulatedClock) -> None:
    lines = pool(clock, size=1)
    held = await lines.take()
    waiting = asyncio.create_task(lines.take())
    await connect_nothing()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    lines.give(held, usable=True)
    again = await asyncio.wait_for(lines.take(), 1)
    assert again.is_kept
    lines.give(again, usable=False)
    assert Line.open == 0


async def test_a_failure_to_connect_gives_the_place_back(clock: SimulatedClock) -> None:
    async def fail() -> Line:
        raise ConnectionRefusedError

    lines = Pool(fail, disconnect, clock, size=1, uses_max=1, idle_us=1)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.wait_for(lines.take(), 1)


async def test_what_lay_too_long_or_served_enough_is_closed(clock: SimulatedClock) -> None:
    lines = pool(clock, uses_max=2)
    for _ in range(2):
        lines.give(await lines.take(), usable=True)
    assert (Line.made, Line.open) == (1, 0)
    lines.give(await lines.take(), usable=True)
    clock.advance(1_000_001)
    lines.give(await lines.take(), usable=True)
    assert (Line.made, Line.open) == (3, 1)
    fresh = await lines.take(fresh=True)
    assert not fresh.is_kept
    lines.give(fresh, usable=False)
    lines.close()
    await eventually(lambda: Line.open == 0)
