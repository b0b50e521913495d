from hypothesis import given
from hypothesis import strategies as some

from tidings.domain.schedules.lateness import jittered

INSTANTS = some.integers(0, 4_000_000_000_000_000)
WINDOWS = some.integers(0, 86_400_000_000)


@given(INSTANTS, WINDOWS, some.binary(max_size=64))
def test_never_early_and_never_beyond_the_window(due: int, window_us: int, identity: bytes) -> None:
    assert due <= jittered(due, window_us, identity) <= due + window_us


@given(INSTANTS, INSTANTS, WINDOWS, some.binary(max_size=64))
def test_the_same_identity_is_moved_by_the_same_share(due: int, other: int, window_us: int, identity: bytes) -> None:
    assert jittered(due, window_us, identity) - due == jittered(other, window_us, identity) - other


def test_no_window_moves_nothing() -> None:
    assert jittered(1_000, 0, b"a") == 1_000


def test_is_stable_over_versions() -> None:
    assert jittered(0, 60_000_000, b"default/a") == 52_063_221


def test_identities_spread_over_the_whole_window() -> None:
    moved = [jittered(0, 9, str(number).encode()) for number in range(10_000)]
    counts = [moved.count(offset) for offset in range(10)]
    assert sum(counts) == 10_000
    assert min(counts) > 800
    assert max(counts) < 1_200
