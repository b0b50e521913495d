"""Releasing one-shots: never early, never lost, once, byte for byte, or missed with a reason."""

from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from tests.contract.conftest import OpenStore
from tests.contract.factories import (
    ACME,
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    TOPIC,
    add,
    answer,
    applied,
    drain,
    found,
    left,
    next_due,
    records,
    release,
    state,
    tend,
)
from tidings.domain.schedules.command import Cancel, Pause, Priority, Replace
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Headers, Message, pack, unpack
from tidings.ports import Release, Store


def assert_nothing(done: Release) -> None:
    """Nothing was released or missed, and nothing is due."""
    assert not done.lateness_us
    assert not done.topics
    assert not done.missed
    assert not done.more


# --- never early ---


@pytest.mark.parametrize("ahead", [1, SECOND, MINUTE, HOUR, DAY, 30 * DAY])
async def test_a_row_is_never_released_early_and_then_at_once(store: Store, ahead: int) -> None:
    await applied(store, add("one", NOW + ahead), add(None, NOW + ahead))
    assert_nothing(await release(store, NOW + ahead - 1, 1000))
    assert await records(store) == []
    assert (await drain(store, NOW + ahead)).lateness_us == [0, 0]
    assert len(await records(store)) == 2


async def test_a_clock_that_steps_back_releases_nothing_early(store: Store) -> None:
    await drain(store, NOW + DAY)
    await applied(store, add("one", NOW + HOUR), now=NOW + DAY)
    assert (await drain(store, NOW + HOUR - 1)).lateness_us == []
    await applied(store, add("two", NOW + HOUR), now=NOW)
    assert (await drain(store, NOW + HOUR - 1)).lateness_us == []
    assert (await drain(store, NOW + HOUR)).lateness_us == [0, 0]


async def test_a_row_that_is_due_earlier_is_released_earlier(store: Store) -> None:
    await applied(store, add("late", NOW + 2 * SECOND))
    await drain(store)
    await applied(store, add("soon", NOW + SECOND))
    await drain(store, NOW + SECOND)
    assert await left(store) == ["soon"]


@pytest.mark.parametrize("tended", [False, True])
async def test_nothing_is_lost_in_a_long_outage(store: Store, tended: bool) -> None:
    """Rows of every distance are found after months without a release, whether or not anyone tended."""
    dues = [NOW + step for step in (0, SECOND, 10 * MINUTE, HOUR, 25 * HOUR, 9 * DAY, 59 * DAY, 60 * DAY)]
    await applied(store, *(add(f"s{index}", due) for index, due in enumerate(dues)))
    now = NOW + 60 * DAY - 1
    if tended:
        await tend(store, now)
    drained = await drain(store, now)
    assert sorted(drained.lateness_us) == sorted(now - due for due in dues[:-1])
    assert await left(store) == [f"s{index}" for index in range(len(dues) - 1)]
    assert await state(store, f"s{len(dues) - 1}", now) == "pending"


# --- what lies on the log ---


async def test_a_record_has_all_its_fields(store: Store) -> None:
    command = add("one", NOW + 1, key=b"k")
    await applied(store, command)
    done = await release(store, NOW + 4, 10)
    assert done.topics == {(ACME, TOPIC)}
    assert list(done.lateness_us) == [3]
    assert (done.missed, done.more) == ({}, False)
    (record,) = await records(store)
    assert (record.topic, record.id, record.generation, record.number) == (TOPIC, "one", 1, 1)
    assert (record.due, record.released, record.occurrence) == (NOW + 1, NOW + 4, "one/1/1")
    assert record.message == command.message


async def test_a_row_is_released_once(store: Store) -> None:
    await applied(store, add("one"), add())
    await drain(store)
    assert_nothing(await release(store, NOW + DAY, 1000))
    assert len(await records(store)) == 2


@pytest.mark.one_lane("an id chooses the lane, and the lane the partition")
@pytest.mark.parametrize("partitions", [1, 4, 7])
async def test_partitions_follow_the_key_or_the_id(open_store: OpenStore, partitions: int) -> None:
    store = await open_store(partitions=partitions)
    assert store.partitions == partitions
    keys = [None, b"", b"\x00", b"order-42", "schlüssel".encode(), b"\xff" * 50]
    await applied(store, *(add(f"k{number}", key=key) for number, key in enumerate(keys)), add(), add("ünï"))
    await drain(store)
    kept = await records(store)
    assert len(kept) == len(keys) + 2
    for record in kept:
        key = unpack(record.message).key
        assert record.partition == crc32(record.id.encode() if key is None else key) % partitions


async def test_offsets_are_dense_in_each_partition_over_many_releases(store: Store) -> None:
    for step in range(5):
        await applied(store, *(add(None, NOW + step, key=b"%d" % key) for key in range(20)), now=NOW + step)
        await drain(store, NOW + step, rows_max=7)
    kept = await records(store)
    assert len(kept) == 100
    topic = await store.topic(ACME, TOPIC)
    assert topic is not None
    assert topic.first == (0,) * store.partitions
    assert sum(topic.next) == 100


MESSAGES = [
    Message(None, None),
    Message(b"", b""),
    Message(b"\x00\xff", bytes(range(256))),
    Message(b"k", b"v", (("trace", b"abc"), ("trace", b"def"), ("empty", None), ("", b""), ("trace", b"abc"))),
    Message(None, b"x" * 1024 * 1024, (("Großer Wert", b"\x00"),)),
    Message(b"k" * 16_384, None, tuple((f"h{number}", bytes([number])) for number in range(64))),
]


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
@pytest.mark.parametrize("ahead", [0, 40 * DAY])
async def test_messages_are_released_byte_for_byte(store: Store, message: Message, ahead: int) -> None:
    due = NOW + ahead
    shape = {"key": message.key, "value": message.value, "headers": message.headers}
    await applied(store, add("one", due, **shape), add(None, due, **shape))  # type: ignore[arg-type]
    await applied(store, add("two", due), Replace(add("two", due, **shape, content="new")))  # type: ignore[arg-type]
    assert (await found(store, "one")).message == pack(message)
    await drain(store, due)
    kept = await records(store)
    assert [unpack(record.message) for record in kept] == [message] * 3
    assert [record.message for record in kept] == [pack(message)] * 3


headers = some.lists(some.tuples(some.text(max_size=9), some.none() | some.binary(max_size=9)), max_size=4)


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the store is shared on purpose: each example adds to it
@given(key=some.none() | some.binary(max_size=20), value=some.none() | some.binary(max_size=99), headers=headers)
async def test_any_bytes(store: Store, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    made = (await answer(store, add(None, key=key, value=value, headers=tuple(headers)))).id
    await drain(store)
    (record,) = [record for record in await records(store) if record.id == made]
    assert unpack(record.message) == Message(key, value, tuple(headers))


# --- missed ---

BOUNDS = [
    (Lateness(expires_after_us=SECOND), "expired"),
    (Lateness("fire_all", expires_after_us=SECOND), "expired"),
    (Lateness("skip", grace_us=SECOND), "late_skipped"),
    (Lateness(max_us=SECOND), "late_max"),
    (Lateness("skip", grace_us=SECOND, max_us=DAY, expires_after_us=DAY), "late_skipped"),
]


@pytest.mark.parametrize(("lateness", "reason"), BOUNDS)
async def test_a_row_that_is_too_late_is_missed_with_its_reason(store: Store, lateness: Lateness, reason: str) -> None:
    await applied(store, add("one", lateness=lateness), add(None, lateness=lateness))
    late = NOW + SECOND + 1
    done = await release(store, late, 1000)
    assert done.missed == {reason: 2}
    assert (list(done.lateness_us), done.topics, done.more) == ([], frozenset(), False)
    assert await records(store) == []
    schedule = await found(store, "one", late)
    assert (schedule.state, schedule.reason, schedule.finished) == ("missed", reason, late)
    assert_nothing(await release(store, late + DAY, 1000))


@pytest.mark.parametrize("lateness", [lateness for lateness, _ in BOUNDS] + [Lateness(), Lateness("fire_all")])
async def test_a_row_at_its_deadline_is_not_too_late(store: Store, lateness: Lateness) -> None:
    await applied(store, add("one", lateness=lateness))
    drained = await drain(store, NOW + SECOND)
    assert (drained.lateness_us, drained.missed) == ([SECOND], {})


async def test_without_a_bound_nothing_is_too_late(store: Store) -> None:
    await applied(store, add("one"), add("two", lateness=Lateness("fire_all")))
    assert (await drain(store, NOW + 300 * DAY)).missed == {}
    assert await left(store) == ["one", "two"]


async def test_due_is_released_plus_missed(store: Store) -> None:
    bounds = [Lateness(), *(lateness for lateness, _ in BOUNDS)]
    commands = [
        add(
            None if number % 2 else f"s{number}",
            NOW + number * 50_000,
            lateness=bounds[number % len(bounds)],
            priority=Priority(number % 3),
        )
        for number in range(600)
    ]
    await applied(store, *commands)
    now = NOW + 15 * SECOND
    drained = await drain(store, now, rows_max=37)
    due = sum(command.due <= now for command in commands)
    assert len(drained.lateness_us) + drained.missed.total() == due
    assert len(await records(store)) == len(drained.lateness_us)
    assert drained.missed.keys() == {"expired", "late_skipped", "late_max"}
    assert (await store.count(now)).pending == len(commands) - due


# --- batches, and when to wake ---


@pytest.mark.one_lane("every lane has a batch of its own")
async def test_a_batch_is_bounded_and_says_that_there_is_more(store: Store) -> None:
    await applied(store, *(add(None, NOW - number) for number in range(10)))
    sizes = []
    for more in (True, True, False):
        done = await release(store, NOW, 4)
        sizes.append(len(done.lateness_us))
        assert done.more == more
    assert sizes == [4, 4, 2]


@pytest.mark.one_lane("every lane has a batch of its own")
async def test_missed_rows_count_in_a_batch_too(store: Store) -> None:
    await applied(store, *(add(None, NOW - MINUTE, lateness=Lateness(max_us=1)) for _ in range(10)))
    done = await release(store, NOW, 4)
    assert (sum(done.missed.values()), done.more) == (4, True)


@pytest.mark.one_lane("every lane has a batch of its own")
async def test_the_oldest_row_is_released_first(store: Store) -> None:
    await applied(store, *(add(f"s{number}", NOW - SECOND + number % 10) for number in range(50)))
    await release(store, NOW, 20)
    assert {record.due for record in await records(store)} <= {NOW - SECOND + step for step in range(4)}


async def test_next_due(store: Store) -> None:
    await tend(store)
    assert next_due(store) is None
    await applied(store, add("b", NOW + 2 * SECOND), add("a", NOW + SECOND), add("c", NOW + 3 * SECOND))
    assert next_due(store) == NOW + SECOND
    await applied(store, Cancel(ACME, "a"))
    assert next_due(store) == NOW + 2 * SECOND
    await applied(store, Pause(ACME, "b"))
    assert next_due(store) == NOW + 3 * SECOND
    await applied(store, Replace(add("c", NOW + 5 * SECOND)))
    assert next_due(store) == NOW + 5 * SECOND
    await drain(store, NOW + 5 * SECOND)
    assert next_due(store) is None


async def test_next_due_is_never_too_late(store: Store) -> None:
    """Distant rows may be ignored until maintenance moves them near."""
    far = NOW + 40 * DAY
    await applied(store, add("one", far))
    wake = next_due(store)
    assert wake is None or wake <= far
    await drain(store, far - SECOND)
    await tend(store, far - SECOND)
    assert next_due(store) == far
