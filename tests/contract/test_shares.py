"""Fair shares when more is due than one batch holds: the burst of one tenant does not delay another."""

from collections import Counter

import pytest

from tests.contract.factories import (
    ACME,
    DAY,
    MINUTE,
    NOW,
    SECOND,
    add,
    applied,
    drain,
    every,
    left,
    records,
    release,
    state,
    tend,
)
from tidings.domain.schedules.command import Add, Priority
from tidings.domain.schedules.lateness import Lateness
from tidings.ports import Store

GLOBEX = "globex"
ROWS = 1000
FRESH = NOW
OVERDUE = NOW - 10 * SECOND


async def burst(store: Store, *commands: Add) -> None:
    """Add many, a thousand at a time, to a store that is tended."""
    await tend(store, NOW - MINUTE)
    for start in range(0, len(commands), ROWS):
        await applied(store, *commands[start : start + ROWS], now=NOW - MINUTE)


def many(number: int, **options: object) -> list[Add]:
    return [add(None, **options) for _ in range(number)]  # type: ignore[arg-type]


async def shares(store: Store, tenant: str = ACME) -> Counter[str]:
    """The number of records on each topic of a tenant."""
    return Counter({topic.name: sum(topic.next) for topic in await store.topics(tenant)})


@pytest.mark.slow
@pytest.mark.parametrize("due", [FRESH, OVERDUE], ids=["fresh", "overdue"])
@pytest.mark.parametrize("priority", list(Priority))
async def test_a_single_message_is_released_beside_another_tenants_burst(
    store: Store, priority: Priority, due: int
) -> None:
    """Whatever the priority of the burst, and although every row of it is older."""
    await burst(store, *many(10_000, due=due, priority=priority), add("single", NOW, tenant=GLOBEX))
    await release(store, NOW, ROWS)
    assert await state(store, "single", tenant=GLOBEX) == "released"


@pytest.mark.slow
@pytest.mark.parametrize("priority", list(Priority))
async def test_a_single_message_of_any_priority_is_released(store: Store, priority: Priority) -> None:
    await burst(store, *many(3_000, priority=Priority.HIGH), *many(3_000, priority=Priority.NORMAL))
    await burst(store, add("single", NOW, tenant=GLOBEX, priority=priority))
    await release(store, NOW, ROWS)
    assert await state(store, "single", tenant=GLOBEX) == "released"


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_shares_follow_priority(store: Store) -> None:
    for priority in Priority:
        await burst(store, *many(ROWS, topic=priority.name, priority=priority))
    done = await release(store, NOW, ROWS)
    assert (len(done.lateness_us), done.more) == (ROWS, True)
    assert await shares(store) == {"HIGH": 600, "NORMAL": 300, "LOW": 100}


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_shares_of_absent_priorities_go_to_the_others(store: Store) -> None:
    await burst(store, *many(ROWS, topic="normal"), *many(ROWS, topic="low", priority=Priority.LOW))
    await release(store, NOW, ROWS)
    assert await shares(store) == {"normal": 750, "low": 250}


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_unused_shares_go_to_the_others(store: Store) -> None:
    await burst(
        store,
        *many(20, topic="high", priority=Priority.HIGH),
        *many(2 * ROWS, topic="low", priority=Priority.LOW),
    )
    done = await release(store, NOW, ROWS)
    assert len(done.lateness_us) == ROWS
    assert await shares(store) == {"high": 20, "low": ROWS - 20}


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_tenants_of_one_priority_have_equal_shares(store: Store) -> None:
    tenants = [f"t{number}" for number in range(5)]
    for tenant in tenants:
        await burst(store, *many(500, tenant=tenant))
    await release(store, NOW, ROWS)
    assert [(await shares(store, tenant)).total() for tenant in tenants] == [200] * 5


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_more_tenants_than_rows_all_have_their_turn(store: Store) -> None:
    tenants = [f"t{number:02}" for number in range(30)]
    await burst(store, *(add(None, NOW + number % 3, tenant=tenant) for tenant in tenants for number in range(3)))
    done = await release(store, NOW + SECOND, 10)
    assert (len(done.lateness_us), done.more) == (10, True)
    await drain(store, NOW + SECOND, rows_max=10)
    assert [(await shares(store, tenant)).total() for tenant in tenants] == [3] * 30


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_a_burst_of_missed_rows_does_not_hold_up_another(store: Store) -> None:
    await burst(store, *many(5_000, due=OVERDUE, lateness=Lateness(max_us=1)), add("single", NOW, tenant=GLOBEX))
    done = await release(store, NOW, ROWS)
    assert await state(store, "single", tenant=GLOBEX) == "released"
    assert len(done.lateness_us) + sum(done.missed.values()) <= ROWS


@pytest.mark.slow
async def test_a_burst_of_recurring_schedules_does_not_hold_up_another(store: Store) -> None:
    recurring = [every(f"r{number}", OVERDUE, priority=Priority.HIGH) for number in range(3_000)]
    await burst(store, *recurring, add("single", NOW, tenant=GLOBEX))
    await release(store, NOW, ROWS)
    assert await state(store, "single", tenant=GLOBEX) == "released"


async def test_a_single_message_is_released_beside_a_burst_after_an_outage(store: Store) -> None:
    """Rows that were far away when the process stopped, and are long overdue when it comes back."""
    await burst(store, *many(5_000, due=NOW + DAY, priority=Priority.HIGH))
    await burst(store, add("single", NOW + DAY + SECOND, tenant=GLOBEX))
    now = NOW + 2 * DAY
    await tend(store, now)
    await release(store, now, ROWS)
    assert await state(store, "single", now, tenant=GLOBEX) == "released"


# --- backlog inside a stream ---


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_backlog_takes_at_most_half_while_there_is_fresh_work(store: Store) -> None:
    await burst(store, *many(3 * ROWS, topic="old", due=OVERDUE), *many(ROWS, topic="fresh", due=FRESH))
    done = await release(store, NOW, ROWS)
    assert len(done.lateness_us) == ROWS
    assert await shares(store) == {"old": ROWS // 2, "fresh": ROWS // 2}


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_a_little_fresh_work_is_released_at_once_and_backlog_fills_the_batch(store: Store) -> None:
    await burst(store, *many(3 * ROWS, topic="old", due=OVERDUE), *many(50, topic="fresh", due=FRESH))
    await release(store, NOW, ROWS)
    assert await shares(store) == {"old": ROWS - 50, "fresh": 50}


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_a_row_less_than_a_second_overdue_is_fresh(store: Store) -> None:
    await burst(
        store,
        *many(ROWS, topic="old", due=NOW - SECOND - 1),
        *many(ROWS, topic="fresh", due=NOW - SECOND + 1),
    )
    await release(store, NOW, ROWS)
    assert await shares(store) == {"old": ROWS // 2, "fresh": ROWS // 2}


@pytest.mark.one_lane("the shares of a batch are those of a lane")
async def test_backlog_is_released_oldest_first(store: Store) -> None:
    await burst(store, *(add(f"s{number:04}", OVERDUE + number) for number in reversed(range(400))))
    await release(store, NOW, 100)
    assert await left(store) == [f"s{number:04}" for number in range(100)]


@pytest.mark.one_lane("the order of a batch is that of a lane")
async def test_a_batch_that_holds_all_that_is_due_keeps_the_order_of_due_times(store: Store) -> None:
    old, fresh = [f"old-{number:02}" for number in range(60)], [f"fresh-{number}" for number in range(10)]
    await burst(store, *(add(name, FRESH + number, key=b"k") for number, name in enumerate(fresh, -9)))
    await burst(store, *(add(name, OVERDUE + number, key=b"k") for number, name in enumerate(old)))
    await release(store, NOW, 100)
    in_order = sorted(await records(store), key=lambda record: record.offset)
    assert [record.id for record in in_order] == old + fresh


async def test_everything_is_released_in_the_end(store: Store) -> None:
    commands = [
        add(None, due, tenant=tenant, priority=priority)
        for due in (OVERDUE, FRESH)
        for tenant in (ACME, GLOBEX)
        for priority in Priority
        for _ in range(50)
    ]
    await burst(store, *commands)
    drained = await drain(store, NOW, rows_max=32)
    assert len(drained.lateness_us) == len(commands)
    assert len(await records(store)) == len(await records(store, tenant=GLOBEX)) == len(commands) // 2
