"""The system clock: steps of the wall clock never cause an early release."""

import random
import threading

import pytest

from tests.contract.factories import DAY, HOUR, SECOND
from tests.sim.machine import Machine
from tidings.clock import STEP_HOLD_US, STEP_TOLERANCE_US, SystemClock
from tidings.testing import START


@pytest.fixture
def machine() -> Machine:
    return Machine()


def run(machine: Machine, clock: SystemClock, us: int) -> None:
    """Let time pass while the clock is read every quarter of a second."""
    clock.now()
    for _ in range(us // 250_000):
        machine.advance(250_000)
        clock.now()


def test_the_clock_follows_the_wall_clock(machine: Machine) -> None:
    with machine.installed():
        clock = SystemClock()
        assert (clock.now(), clock.elapsed()) == (START, 0)
        machine.advance(7)
        assert (clock.now(), clock.elapsed()) == (START + 7, 7)


def test_small_corrections_are_followed(machine: Machine) -> None:
    with machine.installed():
        clock = SystemClock()
        for step in (STEP_TOLERANCE_US, 1, -STEP_TOLERANCE_US, 100):
            machine.step(step)
            assert clock.now() == machine.wall()


@pytest.mark.parametrize("step", [STEP_TOLERANCE_US + 1, HOUR, 400 * DAY])
def test_a_step_forward_counts_once_it_has_held(machine: Machine, step: int) -> None:
    with machine.installed():
        clock = SystemClock()
        machine.step(step)
        assert clock.now() == START
        run(machine, clock, STEP_HOLD_US - 250_000)
        machine.advance(249_999)
        assert clock.now() == START + STEP_HOLD_US - 1
        machine.advance(1)
        assert clock.now() == machine.wall() == START + STEP_HOLD_US + step


def test_a_step_forward_that_is_reverted_never_counts(machine: Machine) -> None:
    with machine.installed():
        clock = SystemClock()
        machine.step(HOUR)
        run(machine, clock, STEP_HOLD_US - SECOND)
        machine.step(-HOUR)
        run(machine, clock, 2 * STEP_HOLD_US)
        assert clock.now() == START + 3 * STEP_HOLD_US - SECOND == machine.wall()
        machine.step(HOUR)
        assert clock.now() == machine.wall() - HOUR, "it must hold again"


@pytest.mark.parametrize("step", [SECOND, HOUR, 400 * DAY])
def test_a_step_back_counts_at_once(machine: Machine, step: int) -> None:
    with machine.installed():
        clock = SystemClock()
        machine.step(-step)
        assert clock.now() == START - step


def test_a_second_step_must_hold_by_itself(machine: Machine) -> None:
    with machine.installed():
        clock = SystemClock()
        machine.step(HOUR)
        run(machine, clock, STEP_HOLD_US - SECOND)
        machine.step(DAY)
        run(machine, clock, SECOND)
        assert clock.now() == START + STEP_HOLD_US + HOUR, "the first one has held, the second one for a second only"
        run(machine, clock, STEP_HOLD_US)
        assert clock.now() == machine.wall()


def test_only_the_smallest_offset_that_held_counts(machine: Machine) -> None:
    with machine.installed():
        clock = SystemClock()
        machine.step(DAY)
        run(machine, clock, STEP_HOLD_US // 2)
        machine.step(HOUR - DAY)
        run(machine, clock, STEP_HOLD_US // 4)
        machine.step(DAY - HOUR)
        run(machine, clock, STEP_HOLD_US // 4)
        assert clock.now() <= START + STEP_HOLD_US + HOUR


def test_a_new_process_takes_the_wall_clock_as_it_is(machine: Machine) -> None:
    with machine.installed():
        machine.step(DAY)
        assert SystemClock().now() == START + DAY


@pytest.mark.parametrize("seed", range(20))
def test_the_clock_never_shows_a_step_that_has_not_held(machine: Machine, seed: int) -> None:
    chance = random.Random(seed)
    with machine.installed():
        clock = SystemClock()
        for _ in range(300):
            machine.advance(chance.choice((1, 1000, SECOND, 3 * SECOND, STEP_HOLD_US, HOUR)))
            if chance.random() < 0.3:
                machine.step(chance.choice((1, -1)) * chance.choice((SECOND, 10 * SECOND, HOUR, DAY)))
            assert clock.now() <= machine.believable(0)
        run(machine, clock, 5 * STEP_HOLD_US)
        assert clock.now() == machine.wall(), "in the end it agrees"


def test_threads_can_read_the_clock_concurrently(machine: Machine) -> None:
    wrong: list[BaseException] = []

    def look(clock: SystemClock) -> None:
        try:
            for _ in range(3_000):
                clock.now()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            wrong.append(error)

    with machine.installed():
        clock = SystemClock()
        threads = [threading.Thread(target=look, args=(clock,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(2_000):
            machine.step(HOUR if number % 2 else -HOUR)
            machine.advance(STEP_HOLD_US)
        for thread in threads:
            thread.join()
    assert wrong == []
