"""What the tests of channels share: an authority whom they trust, and a clock that stands still."""

import pytest

from tests.providers.servers.authority import Authority
from tidings.testing import SimulatedClock


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()
