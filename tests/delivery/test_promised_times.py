"""Promised times take turns between tenants, and a promise costs the same however many there are."""

import sys
import tracemalloc
from collections import Counter
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.domain.notifications.rate_limit import IN_A_ROW_MAX, PromisedTimes

SECOND = 1_000_000
NOW = 1_900_000_000 * SECOND
NEXT = NOW + SECOND  # when the next token is there


def place(promised: Counter[tuple[str, bool]], tenant: str, *, high: bool) -> int:
    """How many of the times that were promised come before the next one of a tenant, counted one by one."""
    number = promised[tenant, high] + 1
    alike = sum(min(count, number) for (_, side), count in promised.items() if side == high)
    others = sum(count for (_, side), count in promised.items() if side != high)
    return alike + min(others, alike // IN_A_ROW_MAX if high else (alike + 1) * IN_A_ROW_MAX)


messages = st.tuples(st.sampled_from("abcdef"), st.booleans())


@given(st.lists(st.tuples(messages, st.integers(1, 60)), max_size=12))
@settings(deadline=None)
def test_queues_take_turns(bulks: list[tuple[tuple[str, bool], int]]) -> None:
    times, promised = PromisedTimes(per_s=1.0), Counter[tuple[str, bool]]()
    for (tenant, high), count in bulks:
        for _ in range(count):
            before = place(promised, tenant, high=high)
            last = times.last(tenant, high=high)
            given = times.promise(tenant, NOW, NEXT, high=high)
            exact = max(last, NEXT + before * SECOND)
            promised[tenant, high] += 1
            if max(promised.values()) <= 31:
                assert given == exact
            assert exact <= given <= NEXT + (before * 17 // 16 + 1) * SECOND or given == last


def test_times_that_are_over_count_no_more() -> None:
    times = PromisedTimes(per_s=10.0)
    bulk = [times.promise("bulk", NOW, NOW + SECOND // 10, high=False) for _ in range(1_000)]
    assert bulk[-1] == NOW + 100 * SECOND
    for second in range(10, 100, 10):
        now = NOW + second * SECOND
        place = times.promise("bulk", now, now + SECOND // 10, high=False)
        assert place - bulk[-1] in range(SECOND // 5), "right behind those that are left"
        bulk.append(place)
    assert not times.is_over(bulk[-1] - 1)
    assert times.is_over(bulk[-1])
    assert times.promise("bulk", bulk[-1], bulk[-1] + 1, high=False) == bulk[-1] + 1


def test_short_queues_are_dropped_one_by_one() -> None:
    times = PromisedTimes(per_s=10.0)
    for _ in range(3):
        for tenant in range(100):
            times.promise(f"t{tenant}", NOW, NOW + 1, high=False)
    halfway = NOW + 15 * SECOND
    assert times.promise("single", halfway, halfway + 1, high=False) < halfway + 11 * SECOND
    assert times.promise("single", halfway, halfway + 1, high=False) > halfway + 10 * SECOND


def steps_of_a_promise(tenants: int) -> int:
    """How many functions a promise calls beside the promised times of so many tenants."""
    times, steps = PromisedTimes(per_s=10.0), 0
    for _ in range(3):
        for tenant in range(tenants):
            times.promise(f"t{tenant}", NOW, NEXT, high=False)

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        times.promise("t0", NOW, NEXT, high=False)
    finally:
        sys.setprofile(before)
    return steps


def test_a_promise_takes_the_same_steps_however_many_tenants_there_are() -> None:
    assert steps_of_a_promise(2_000) == steps_of_a_promise(20)


def test_a_long_queue_takes_no_more_memory_than_a_short_one() -> None:
    times = PromisedTimes(per_s=10.0)
    for _ in range(1_000):
        times.promise("bulk", NOW, NEXT, high=False)
    tracemalloc.start()
    try:
        for _ in range(10_000):
            times.promise("bulk", NOW, NEXT, high=False)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20_000, "two bytes for each"
