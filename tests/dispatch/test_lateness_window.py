"""Lateness of the last minute, to within 5 %, in constant memory."""

import random

import pytest

from tidings.dispatch.leases import SLICE_US, SPAN_US, Lateness, LatenessWindow

SECOND = 1_000_000


def test_no_releases_give_zeros() -> None:
    assert LatenessWindow().pace(0) == Lateness()


@pytest.mark.parametrize("at_once", [1, 10, 500])
def test_percentiles(at_once: int) -> None:
    chance = random.Random(1)
    late = [int(chance.expovariate(1 / 3_000)) for _ in range(10_000)]
    pacing = LatenessWindow()
    for index in range(0, len(late), at_once):
        pacing.add(late[index : index + at_once], index * 100)
    pace = pacing.pace(SECOND)
    late.sort()
    assert pace.released == 10_000
    assert pace.max_us == late[-1]
    for shown, exact in ((pace.p50_us, late[4_999]), (pace.p99_us, late[9_899])):
        assert 0.95 * exact - 1 <= shown <= 1.05 * exact + 1


def test_releases_older_than_a_minute_are_dropped() -> None:
    pacing = LatenessWindow()
    pacing.add([5 * SECOND], 0)
    pacing.add([7], 10 * SECOND)
    assert pacing.pace(SPAN_US - 1).max_us == 5 * SECOND
    assert pacing.pace(SPAN_US) == Lateness(1, 7, 7, 7)
    assert pacing.pace(10 * SECOND + SPAN_US) == Lateness()


def test_the_window_starts_over_when_the_clock_is_set_back() -> None:
    pacing = LatenessWindow()
    pacing.add([5 * SECOND], 100 * SPAN_US)
    pacing.add([7], 90 * SPAN_US)
    assert pacing.pace(90 * SPAN_US) == Lateness(1, 7, 7, 7)


def test_batches_of_several_lanes_may_be_counted_out_of_order() -> None:
    pacing = LatenessWindow()
    for at in (100 * SECOND, 99 * SECOND, 100 * SECOND):
        pacing.add([7], at)
    assert pacing.pace(100 * SECOND).released == 3


def test_memory_does_not_grow() -> None:
    pacing = LatenessWindow()
    for second in range(1_000):
        pacing.add([1] * 30, second * SECOND)
    assert len(pacing._slices) <= SPAN_US // SLICE_US + 1
    assert pacing.pace(999 * SECOND).released <= 60 * 30


def test_negative_and_huge_lateness_is_counted() -> None:
    pacing = LatenessWindow()
    pacing.add([-5, 10**15], 0)
    assert pacing.pace(0).released == 2
    assert pacing.pace(0).max_us == 10**15
