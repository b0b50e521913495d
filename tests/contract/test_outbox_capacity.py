"""The capacity of the outbox: while it is full, rows for Kafka stay on the timeline, and the log continues."""

from collections import Counter

import pytest

from tests.contract.conftest import OpenStore
from tests.contract.factories import (
    ACME,
    NOW,
    SECOND,
    add,
    applied,
    drain,
    every,
    found,
    lane_of,
    left,
    next_due,
    release,
    state,
    words,
)
from tidings.domain.schedules.command import Add, Cancel, Fire, Priority, Replace
from tidings.domain.schedules.lateness import Lateness
from tidings.ports import Store
from tidings.timeline.store_rules import OUTBOX_ROWS_MAX, OutboxCapacity

GLOBEX = "globex"
ON_KAFKA = "kafka:orders"
ROOM = 40

pytestmark = pytest.mark.one_lane("every lane has an outbox of its own")


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store(outbox_rows_max=ROOM)


def burst(number: int, due: int = NOW, **options: object) -> list[Add]:
    return [add(None, due, topic=ON_KAFKA, **options) for _ in range(number)]  # type: ignore[arg-type]


async def fill(store: Store) -> None:
    """Have as much in the outbox as it holds."""
    await applied(store, *burst(ROOM))
    assert (await drain(store)).handed == ROOM


async def test_the_outbox_never_exceeds_its_capacity(store: Store) -> None:
    await applied(store, *burst(3 * ROOM))
    assert (await release(store, NOW, 30)).handed == 30
    full = await release(store, NOW, 30)
    assert (full.handed, full.more) == (ROOM - 30, False)
    assert (await release(store, NOW, 30)).handed == 0
    assert (await store.count(NOW)).overdue == 2 * ROOM


async def test_the_log_is_released_while_the_outbox_is_full(store: Store) -> None:
    await fill(store)
    await applied(store, *burst(ROOM), *(add(f"log-{index}", NOW) for index in range(5)))
    done = await drain(store)
    assert (len(done.lateness_us), done.handed) == (5, 0)
    assert len(await left(store)) == 5


async def test_rows_that_wait_for_room_are_pending_and_can_be_changed(store: Store) -> None:
    await fill(store)
    await applied(store, *(add(name, NOW, topic=ON_KAFKA) for name in ("one", "two", "three")))
    await drain(store)
    assert await state(store, "one") == "pending"
    other = add("two", NOW, topic=ON_KAFKA, value=b"other")
    assert await words(store, Cancel(ACME, "one"), Replace(other)) == ["cancelled", "replaced"]
    lane_of(store).arrived(ROOM)
    await drain(store)
    records = await lane_of(store).outgoing(ROOM, 10)
    assert {record.id: record.message for record in records} == {
        "two": other.message,
        "three": add("three", NOW).message,
    }


async def test_rows_that_wait_for_room_expire(store: Store) -> None:
    await fill(store)
    await applied(store, add("short", NOW, topic=ON_KAFKA, lateness=Lateness(expires_after_us=SECOND)))
    await drain(store, NOW + 5 * SECOND)
    assert await state(store, "short", NOW + 5 * SECOND) == "pending"
    lane_of(store).arrived(1)
    assert (await drain(store, NOW + 5 * SECOND)).missed == {"expired": 1}


async def test_a_replacement_for_the_other_bus_is_released_there(store: Store) -> None:
    await fill(store)
    await applied(store, add("to-log", NOW, topic=ON_KAFKA), add("to-kafka", NOW), every("again", topic=ON_KAFKA))
    instead = [add("to-log", NOW, content="new"), add("to-kafka", NOW, topic=ON_KAFKA, content="new")]
    await applied(store, *map(Replace, (*instead, every("again", content="new"))))
    await drain(store)
    assert await left(store) == ["again", "to-log"]
    assert await state(store, "to-kafka") == "pending"
    lane_of(store).arrived(ROOM)
    await drain(store)
    assert [record.id for record in await lane_of(store).outgoing(ROOM, 10)] == ["to-kafka"]


async def test_recurring_and_fired_records_wait_for_room_too(store: Store) -> None:
    await fill(store)
    tick = every("tick", NOW + SECOND, topic=ON_KAFKA, lateness=Lateness("fire_latest"))
    await applied(store, tick, every("tock", NOW + 9 * SECOND, topic=ON_KAFKA))
    now = NOW + 3 * SECOND
    await applied(store, Fire(ACME, "tock"), now=now)
    assert (await drain(store, now)).handed == 0
    lane_of(store).arrived(ROOM)
    await drain(store, now)
    records = await lane_of(store).outgoing(ROOM, 10)
    assert {(record.id, record.number) for record in records} == {("tick", 3), ("tock", -1)}


async def test_recurring_schedules_do_not_exceed_the_capacity(store: Store) -> None:
    await applied(store, *(every(f"tick-{index}", NOW, topic=ON_KAFKA) for index in range(2 * ROOM)))
    assert (await drain(store)).handed == ROOM
    assert await lane_of(store).outbox() == (0, ROOM)


async def test_next_due_is_none_while_the_outbox_is_full(store: Store) -> None:
    await fill(store)
    await applied(store, *burst(5))
    assert next_due(store) is None
    await applied(store, add("log", NOW + SECOND))
    assert next_due(store) == NOW + SECOND
    lane_of(store).arrived(1)
    due = next_due(store)
    assert due is not None
    assert due <= NOW


async def test_the_watcher_is_woken_when_there_is_room_again(store: Store) -> None:
    woken: list[int] = []
    lane_of(store).watch(lambda: woken.append(1))
    await fill(store)
    await applied(store, *burst(5))
    woken.clear()
    lane_of(store).arrived(10)
    assert woken
    assert (await drain(store)).handed == 5


async def test_room_is_divided_in_fair_shares(store: Store) -> None:
    """The burst was there first, and is older."""
    await fill(store)
    await applied(store, *burst(10 * ROOM, NOW - 10 * SECOND))
    await applied(store, *burst(ROOM, tenant=GLOBEX), *burst(5, tenant="initech", priority=Priority.HIGH))
    lane_of(store).arrived(20)
    assert (await drain(store)).handed == 20
    shares = Counter(record.tenant for record in await lane_of(store).outgoing(ROOM, 100))
    assert shares["initech"] == 5
    assert 7 <= shares[ACME] <= 8
    assert 7 <= shares[GLOBEX] <= 8


async def test_parked_records_need_no_room(store: Store) -> None:
    await fill(store)
    await applied(store, *burst(ROOM))
    await lane_of(store).hold(range(10), "no such topic")
    assert (await drain(store)).handed == 10
    lane_of(store).arrived(ROOM)
    assert (await drain(store)).handed == ROOM - 10


async def test_settled_records_make_room(store: Store) -> None:
    await fill(store)
    await applied(store, *burst(ROOM))
    await lane_of(store).settle(7)
    assert (await drain(store)).handed == 7


async def test_the_capacity_in_bytes_is_respected(open_store: OpenStore) -> None:
    store = await open_store(outbox_bytes_max=100_000)
    await applied(store, *(add(None, NOW, topic=ON_KAFKA, value=bytes(10_000)) for _ in range(30)))
    assert 9 <= (await drain(store)).handed <= 10
    assert next_due(store) is None
    lane_of(store).arrived(3)
    assert 2 <= (await drain(store)).handed <= 4


async def test_a_record_larger_than_the_capacity_is_released_alone(open_store: OpenStore) -> None:
    store = await open_store(outbox_bytes_max=1_000)
    await applied(store, *(add(f"large-{index}", NOW, topic=ON_KAFKA, value=bytes(10_000)) for index in range(3)))
    assert (await drain(store)).handed == 1
    lane_of(store).arrived(1)
    assert (await drain(store)).handed == 1


async def test_recurring_schedules_count_towards_the_capacity_in_bytes(open_store: OpenStore) -> None:
    store = await open_store(outbox_bytes_max=100_000)
    names = [f"tick-{index}" for index in range(30)]
    await applied(store, *(every(name, NOW, topic=ON_KAFKA, value=bytes(10_000)) for name in names))
    assert 9 <= (await drain(store)).handed <= 10


@pytest.mark.slow
async def test_the_default_capacity_is_thousands_of_records(open_store: OpenStore) -> None:
    store = await open_store()
    for _ in range(2):
        await applied(store, *burst(OUTBOX_ROWS_MAX // 2 + 100))
    done = await drain(store, NOW, 2_048)
    assert done.handed == OUTBOX_ROWS_MAX
    assert (await found(store, (await lane_of(store).outgoing(0, 1))[0].id)).state == "in_flight"


def test_room_is_counted_from_the_stored_records() -> None:
    room = OutboxCapacity(10, 1_000)
    room.begin([(5, [10] * 6), (11, [10])])
    assert (room.rows, room.bytes) == (3, 930)
    room.put(12, [10, 500, 10])
    assert room.rows == 0
    assert room.arrive(6)
    assert not room.arrive(7)
    room.leave([13, 99])
    assert (room.rows, room.bytes) == (3, 930)


async def test_while_the_outbox_is_closed_nothing_enters_and_nothing_is_lost(store: Store) -> None:
    woken: list[bool] = []
    lane_of(store).watch(lambda: woken.append(True))
    lane_of(store).shut(True)
    await applied(store, add("one", NOW, topic=ON_KAFKA), add("two", NOW, topic=ON_KAFKA), add("log", NOW))
    assert (await drain(store)).handed == 0
    assert await words(store, Cancel(ACME, "one")) == ["cancelled"]
    assert (await state(store, "two"), await state(store, "log")) == ("pending", "released")
    woken.clear()
    lane_of(store).shut(False)
    assert woken
    assert (await drain(store)).handed == 1
