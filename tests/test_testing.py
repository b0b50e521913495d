"""The public test helpers (`tidings.testing`)."""

from datetime import timedelta

import pytest

from tidings.clock import Clock
from tidings.testing import SimulatedClock, eventually


def test_time_passes_on_both_clocks() -> None:
    clock: Clock = SimulatedClock(now=1_000, elapsed=5)
    assert isinstance(clock, SimulatedClock)
    clock.advance(10)
    assert (clock.now(), clock.elapsed()) == (1_010, 15)


def test_a_length_may_be_a_timedelta() -> None:
    clock = SimulatedClock(now=1_000)
    clock.advance(timedelta(seconds=2))
    clock.step(timedelta(milliseconds=-1))
    assert (clock.now(), clock.elapsed()) == (2_000_000, 2_000_000)


@pytest.mark.parametrize("us", [500, -500])
def test_a_step_moves_the_wall_clock_alone(us: int) -> None:
    clock = SimulatedClock(now=1_000)
    clock.step(us)
    assert (clock.now(), clock.elapsed()) == (1_000 + us, 0)


def test_time_does_not_pass_backward() -> None:
    with pytest.raises(AssertionError):
        SimulatedClock().advance(-1)


async def test_eventually_polls_until_true() -> None:
    answers = iter([0, None, "", "yes", "never asked"])
    assert await eventually(lambda: next(answers), 5, poll_s=0) == "yes"
    assert next(answers) == "never asked"


async def test_eventually_awaits_coroutines() -> None:
    answers = iter([False, True])

    async def condition() -> bool:
        return next(answers)

    assert await eventually(condition, 5, poll_s=0)


async def test_eventually_fails_after_its_timeout_and_shows_the_last_value() -> None:
    with pytest.raises(AssertionError, match="still 0 after"):
        await eventually(lambda: 0, 0.01)


async def test_errors_of_the_condition_come_through() -> None:
    def condition() -> bool:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await eventually(condition, 5)
