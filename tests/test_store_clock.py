"""The clock of a fleet is that of the store, measured over a slow network; local wall clocks do not matter."""

import random

import pytest

from tests.contract.factories import HOUR, SECOND
from tidings.clock import STEP_HOLD_US, STEP_TOLERANCE_US, StoreClock
from tidings.testing import START, SimulatedClock

MINUTE = 60 * SECOND
EVERY_US = 750_000


class Network:
    """A machine with its own clock, and a remote store whose clock is the reference."""

    def __init__(self, wall: int = START, drift_ppm: int = 0) -> None:
        self.own = SimulatedClock(wall, elapsed=5 * HOUR)
        self.clock = StoreClock(self.own)
        self._drift_ppm = drift_ppm
        self._stepped = 0
        self._begun = self.own.elapsed()

    def store(self) -> int:
        """The store's time now."""
        passed = self.own.elapsed() - self._begun
        return START + passed + passed * self._drift_ppm // 1_000_000 + self._stepped

    def step(self, us: int) -> None:
        self._stepped += us

    def measure(self, there_us: int = 200, back_us: int = 200) -> None:
        sent = self.own.elapsed()
        self.own.advance(there_us)
        answered = self.store()
        self.own.advance(back_us)
        self.clock.measure(sent, answered, self.own.elapsed())

    def run(self, us: int, there_us: int = 200, back_us: int = 200) -> None:
        for _ in range(us // EVERY_US):
            self.own.advance(EVERY_US)
            self.measure(there_us, back_us)

    @property
    def error_us(self) -> int:
        """How far our clock is ahead of the store's."""
        return self.clock.now() - self.store()


def test_without_a_measurement_it_is_the_local_clock() -> None:
    network = Network(START + 7)
    assert network.clock.now() == START + 7
    assert network.clock.elapsed() == network.own.elapsed()


@pytest.mark.parametrize("off", [0, 2 * MINUTE, -2 * MINUTE, 400 * 24 * HOUR])
def test_a_wrong_local_wall_clock_does_not_matter(off: int) -> None:
    network = Network(START + off)
    network.measure()
    assert network.error_us == 0
    assert network.clock.ahead_us() == off


@pytest.mark.parametrize("step", [MINUTE, -MINUTE, 400 * 24 * HOUR])
def test_a_step_of_the_local_wall_clock_does_not_matter(step: int) -> None:
    network = Network()
    network.run(3 * SECOND)
    network.own.step(step)
    assert network.error_us == 0
    network.run(30 * SECOND)
    assert network.error_us == 0


def test_the_midpoint_of_the_round_trip_is_used() -> None:
    network = Network()
    network.measure(there_us=1_000, back_us=3_000)
    assert abs(network.error_us) == 1_000, "no more than half of the way can be wrong"


def test_the_quickest_of_the_latest_measurements_counts() -> None:
    network = Network()
    network.measure()
    for _ in range(3):
        network.measure(there_us=20_000, back_us=100)
    assert network.error_us == 0
    for _ in range(20):
        network.measure(there_us=20_000, back_us=100)
    assert abs(network.error_us) < 10_000, "what is long ago counts no longer"


@pytest.mark.parametrize("ppm", [-200, -50, 50, 200])
def test_clocks_that_drift_apart_are_followed(ppm: int) -> None:
    network = Network(drift_ppm=ppm)
    network.measure()
    worst = 0
    for _ in range(400):
        network.run(EVERY_US)
        worst = max(worst, abs(network.error_us))
    assert worst < 2_000


@pytest.mark.parametrize("step", [STEP_TOLERANCE_US + SECOND, HOUR])
def test_a_step_of_the_store_forward_counts_once_it_has_held(step: int) -> None:
    network = Network()
    network.run(10 * SECOND)
    network.step(step)
    network.run(STEP_HOLD_US - SECOND)
    assert network.error_us == -step
    network.run(3 * SECOND)
    assert abs(network.error_us) < 1_000


def test_a_step_forward_that_is_reverted_never_counts() -> None:
    network = Network()
    network.run(10 * SECOND)
    network.step(HOUR)
    network.run(STEP_HOLD_US - SECOND)
    network.step(-HOUR)
    network.run(STEP_HOLD_US)
    assert network.error_us == 0


@pytest.mark.parametrize("step", [SECOND, MINUTE, HOUR])
def test_a_step_of_the_store_back_counts_at_once(step: int) -> None:
    network = Network()
    network.run(10 * SECOND)
    network.step(-step)
    network.run(EVERY_US)
    assert network.error_us == 0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_never_more_than_half_a_round_trip_ahead(seed: int) -> None:
    """For any network delays, as long as the clock of the store is not set."""
    chance = random.Random(seed)
    network = Network(START + chance.randrange(-HOUR, HOUR), drift_ppm=chance.randrange(-100, 100))
    slowest = 0
    for _ in range(300):
        ways = chance.choice((100, 500, 3_000, 40_000)), chance.choice((100, 500, 3_000, 40_000))
        slowest = max(slowest, sum(ways))
        network.own.advance(chance.randrange(1, 3 * SECOND))
        if chance.random() < 0.1:
            network.own.step(chance.randrange(-HOUR, HOUR))
        network.measure(*ways)
        assert abs(network.error_us) <= slowest // 2 + 5_000
