"""Records for Kafka wait in the outbox, in one order, until they are known to be on Kafka."""

import pytest

from tests.contract.conftest import OpenStore
from tests.contract.factories import (
    ACME,
    MINUTE,
    NOW,
    SECOND,
    add,
    applied,
    drain,
    every,
    found,
    lane_of,
    state,
    words,
)
from tidings.domain.errors import Moved
from tidings.domain.schedules.command import Cancel, Command, Fire, Outcome, Pause, Replace, Resume
from tidings.domain.schedules.lateness import Lateness, MissedReason
from tidings.domain.schedules.schedule import Query
from tidings.ports import SourceBatch, SourcePosition, Store

ON_KAFKA = "kafka:orders"


def nothing(_outcomes: object) -> list[Cancel]:
    return []


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_records_for_kafka_go_to_the_outbox_and_not_to_the_log(store: Store) -> None:
    await applied(store, add("one", NOW + SECOND, topic=ON_KAFKA), add("two", NOW + SECOND, topic="orders"))
    release = await drain(store, NOW + SECOND)
    assert release.handed == 1
    assert release.lateness_us == [0]
    (record,) = await lane_of(store).outgoing(0, 10)
    assert (record.offset, record.tenant, record.topic, record.id, record.number) == (0, ACME, "orders", "one", 1)
    assert [topic.name for topic in await store.topics(ACME)] == ["orders"]
    assert await lane_of(store).outbox() == (0, 1)


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_a_record_is_in_flight_until_it_is_on_kafka(store: Store) -> None:
    await applied(store, add("one", NOW, topic=ON_KAFKA))
    await drain(store, NOW)
    found = await store.find(ACME, "one", NOW)
    assert found is not None
    assert (found.state, found.offset) == ("in_flight", None)
    (outcome,) = await store.apply([Cancel(ACME, "one")], NOW)
    assert outcome.outcome == "in_flight"
    lane_of(store).arrived(1)
    found = await store.find(ACME, "one", NOW)
    assert found is not None
    assert found.state == "released"
    (outcome,) = await store.apply([Cancel(ACME, "one")], NOW)
    assert outcome.outcome == "already_released"


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_settle_deletes_records_on_kafka_and_keeps_the_rest(store: Store) -> None:
    await applied(store, *(add(f"row-{index}", NOW, topic=ON_KAFKA) for index in range(10)))
    await drain(store, NOW)
    await lane_of(store).settle(4)
    assert await lane_of(store).outbox() == (4, 10)
    assert [record.offset for record in await lane_of(store).outgoing(0, 100)] == list(range(4, 10))
    assert [record.offset for record in await lane_of(store).outgoing(7, 2)] == [7, 8]
    await lane_of(store).settle(99)
    assert await lane_of(store).outbox() == (10, 10)
    assert await lane_of(store).outgoing(0, 100) == []


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_every_occurrence_of_a_recurring_schedule_is_there_in_order(store: Store) -> None:
    await applied(store, every("tick", NOW, topic=ON_KAFKA))
    for second in range(3):
        await drain(store, NOW + second * SECOND)
    assert [record.number for record in await lane_of(store).outgoing(0, 10)] == [1, 2, 3]


async def test_a_list_by_topic_has_both(store: Store) -> None:
    later = NOW + 100 * SECOND
    topics = {"one": ON_KAFKA, "two": "orders", "three": "others"}
    await applied(store, *(add(name, later, topic=topic) for name, topic in topics.items()))
    page = await store.page(ACME, Query(topic="orders"), NOW)
    assert {schedule.id: schedule.topic for schedule in page.schedules} == {"one": ON_KAFKA, "two": "orders"}


async def test_positions_move_with_the_schedules_or_not_at_all(store: Store) -> None:
    first = SourceBatch([SourcePosition("requests", 0, 0, 5), SourcePosition("requests", 1, 0, 2)], nothing)
    await store.apply([add("one", NOW)], NOW, None, first)
    assert await store.positions() == {("requests", 0): 5, ("requests", 1): 2}
    with pytest.raises(Moved):
        await store.apply([add("two", NOW)], NOW, None, SourceBatch([SourcePosition("requests", 0, 0, 9)], nothing))
    assert await store.find(ACME, "two", NOW) is None
    assert await store.positions() == {("requests", 0): 5, ("requests", 1): 2}
    await store.apply([add("two", NOW)], NOW, None, SourceBatch([SourcePosition("requests", 0, 5, 9)], nothing))
    assert (await store.positions())["requests", 0] == 9


async def test_commands_from_on_outcomes_are_part_of_the_transaction(store: Store) -> None:
    seen: list[str] = []

    def follow(outcomes: list[Outcome]) -> list[object]:
        seen.extend(outcome.outcome for outcome in outcomes)
        return [add("rejection", NOW)]

    taken = SourceBatch([SourcePosition("requests", 0, 0, 1)], follow)  # type: ignore[arg-type]
    outcomes = await store.apply([add("one", NOW), add("one", NOW + SECOND)], NOW, None, taken)
    assert seen == [outcome.outcome for outcome in outcomes] == ["scheduled", "rejected"]
    assert await store.find(ACME, "rejection", NOW) is not None


async def test_an_add_may_begin_a_new_generation_of_a_finished_id(store: Store) -> None:
    await applied(store, add("one", NOW))
    await drain(store, NOW)
    (again,) = await store.apply([add("one", NOW, reuse=True)], NOW)
    assert again.outcome == "unchanged"
    (other,) = await store.apply([add("one", NOW + SECOND, reuse=True)], NOW)
    assert other.outcome == "scheduled"
    found = await store.find(ACME, "one", NOW)
    assert found is not None
    assert (found.state, found.generation) == ("pending", 2)


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_held_records_block_no_others_and_are_not_lost(store: Store) -> None:
    await applied(store, *(add(f"row-{index}", NOW, topic=f"kafka:topic-{index % 2}") for index in range(6)))
    await drain(store, NOW)
    bad = [record.offset for record in await lane_of(store).outgoing(0, 10) if record.topic == "topic-1"]
    await lane_of(store).hold(bad, "no such topic")
    assert {record.topic for record in await lane_of(store).outgoing(0, 10)} == {"topic-0"}
    await lane_of(store).settle(6)
    assert [record.offset for record in await lane_of(store).held("topic-1")] == bad
    assert await lane_of(store).held("topic-0") == []
    assert await lane_of(store).held_topics() == {"topic-1"}
    name = (await lane_of(store).held("topic-1"))[0].id
    found = await store.find(ACME, name, NOW)
    assert found is not None
    assert (found.state, found.reason) == ("in_flight", "no such topic")
    await lane_of(store).free(bad[:2])
    assert [record.offset for record in await lane_of(store).held("topic-1")] == bad[2:]
    await lane_of(store).free(bad[2:])
    assert await lane_of(store).held_topics() == set()
    found = await store.find(ACME, name, NOW)
    assert found is not None
    assert found.state == "released"


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_topics_are_held_back_independently_for_all_tenants(store: Store) -> None:
    """Much of one hides nothing of another; tenants that share a topic keep its order."""
    for index in range(4):
        await applied(store, add(f"row-{index}", NOW, tenant=f"t{index % 2}", topic="kafka:shared"))
        await drain(store, NOW)
    await applied(store, add("other", NOW, topic="kafka:other"))
    await drain(store, NOW)
    await lane_of(store).hold(range(5), "no such topic")
    assert await lane_of(store).held_topics() == {"shared", "other"}
    assert [record.offset for record in await lane_of(store).held("shared", 3)] == [0, 1, 2]
    assert [record.id for record in await lane_of(store).held("other", 1)] == ["other"]


@pytest.mark.one_lane("every lane has an outbox of its own")
@pytest.mark.parametrize("reason", ["too_large", "invalid_record"])
async def test_a_record_that_cannot_be_published_is_missed_and_reported(store: Store, reason: MissedReason) -> None:
    await applied(store, add("large", NOW, topic=ON_KAFKA))
    await drain(store, NOW)
    await lane_of(store).hold([0], "too large")
    await lane_of(store).drop(0, reason, [add("told", NOW, topic="kafka:rejections")], NOW)
    found = await store.find(ACME, "large", NOW)
    assert found is not None
    assert (found.state, found.reason) == ("missed", reason)
    assert await lane_of(store).held_topics() == set()
    assert await store.find(ACME, "told", NOW) is not None


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_a_list_by_state_shows_records_in_flight(store: Store) -> None:
    await applied(store, *(add(f"row-{index}", NOW, topic=ON_KAFKA) for index in range(4)), add("log", NOW))
    await drain(store, NOW)
    lane_of(store).arrived(2)
    flying = await store.page(ACME, Query(state="in_flight"), NOW)
    landed = await store.page(ACME, Query(state="released"), NOW)
    assert len(flying.schedules) == 2
    assert len(landed.schedules) == 3
    assert {schedule.state for schedule in flying.schedules} == {"in_flight"}


CHANGES: dict[str, tuple[Command, Outcome]] = {
    "cancel": (Cancel(ACME, "ten"), Outcome("ten", "cancelled", NOW + 2 * SECOND, in_flight=2)),
    "pause": (Pause(ACME, "ten"), Outcome("ten", "paused", NOW + 2 * SECOND, in_flight=2)),
    "replace": (
        Replace(every("ten", NOW + MINUTE, topic=ON_KAFKA)),
        Outcome("ten", "replaced", NOW + MINUTE, in_flight=2),
    ),
    "fire": (Fire(ACME, "ten"), Outcome("ten", "fired", NOW + SECOND, in_flight=2)),
    "resume": (Resume(ACME, "ten"), Outcome("ten", "unchanged", NOW + 2 * SECOND, "pending", in_flight=2)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.one_lane("what a lane knows to have arrived is its own")
async def test_a_change_of_a_recurring_schedule_says_what_is_in_flight(store: Store, change: str) -> None:
    """What follows the occurrence in flight is changed; once it has arrived nothing is in flight."""
    command, expected = CHANGES[change]
    other_tenant = every("ten", NOW, topic=ON_KAFKA, count=10, tenant="globex")
    await applied(store, every("ten", NOW, topic=ON_KAFKA, count=10), other_tenant)
    await drain(store, NOW + SECOND)
    assert await applied(store, command, now=NOW + SECOND) == [expected]
    assert [each.number for each in await lane_of(store).outgoing(0, 10) if each.tenant == ACME] == [1, 2]
    if change == "cancel":
        assert await applied(store, command, now=NOW + SECOND) == [expected]  # again: the same
    lane_of(store).arrived(4)
    (after,) = await applied(store, Cancel(ACME, "ten"), now=NOW + SECOND)
    assert (after.outcome, after.in_flight) == ("cancelled", None)


@pytest.mark.one_lane("what a lane knows to have arrived is its own")
async def test_a_held_record_is_in_flight_until_it_is_deleted(store: Store) -> None:
    await applied(store, every("ten", NOW, topic=ON_KAFKA, count=10))
    await drain(store, NOW)
    lane = lane_of(store)
    await lane.hold([0], "unknown_topic")
    await lane.settle(1)
    assert [one.in_flight for one in await applied(store, Pause(ACME, "ten"), Resume(ACME, "ten"))] == [1, 1]
    await lane.free([0])
    assert await applied(store, Cancel(ACME, "ten")) == [Outcome("ten", "cancelled", NOW + SECOND)]


@pytest.mark.one_lane("what a lane knows to have arrived is its own")
async def test_the_last_occurrence_in_flight_and_one_that_was_fired(store: Store) -> None:
    two = every("two", NOW, topic=ON_KAFKA, count=2)
    await applied(store, two, every("fired", NOW + MINUTE, topic=ON_KAFKA), Fire(ACME, "fired"))
    await drain(store, NOW + SECOND)
    last = Outcome("two", "in_flight", NOW + SECOND, "in_flight", in_flight=2)
    fired = Outcome("fired", "cancelled", NOW + MINUTE, in_flight=-1)
    assert await applied(store, Cancel(ACME, "two"), Cancel(ACME, "fired"), now=NOW + SECOND) == [last, fired]
    lane_of(store).arrived(3)
    (over,) = await applied(store, Cancel(ACME, "two"), now=NOW + SECOND)
    assert (over.outcome, over.state) == ("already_released", "ended")


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_a_record_that_expired_in_the_outbox_is_missed(store: Store) -> None:
    lane, bounded = lane_of(store), Lateness(expires_after_us=SECOND)
    await applied(
        store,
        *(add(name, NOW, topic=ON_KAFKA, lateness=bounded) for name in ("one", "two")),
        add("three", NOW, topic=ON_KAFKA),
    )
    await drain(store, NOW)
    records = {record.id: record for record in await lane.outgoing(0, 10)}
    assert {name: record.expires for name, record in records.items()} == {
        "one": NOW + SECOND,
        "two": NOW + SECOND,
        "three": None,
    }
    later = NOW + 5 * SECOND
    await lane.expire([records["one"].offset], later)
    missed = await found(store, "one")
    assert (missed.state, missed.reason, missed.finished) == ("missed", "expired", later)
    assert {record.id for record in await lane.outgoing(0, 10)} == {"two", "three"}
    assert await words(store, Cancel(ACME, "one")) == ["rejected"]
    assert await state(store, "two") == "in_flight"
    await lane.settle(3)
    assert await lane.outgoing(0, 10) == []
    assert await state(store, "two") == "released"


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_an_expired_record_takes_no_room(open_store: OpenStore) -> None:
    store = await open_store(outbox_rows_max=2)
    bounded = Lateness(expires_after_us=SECOND)
    await applied(store, *(add(None, NOW, topic=ON_KAFKA, lateness=bounded) for _ in range(3)))
    assert (await drain(store, NOW)).handed == 2
    await lane_of(store).expire([0, 1], NOW + SECOND)
    assert (await drain(store, NOW)).handed == 1


@pytest.mark.one_lane("every lane has an outbox of its own")
async def test_the_moment_of_leaving_is_stored_for_what_had_waited(store: Store) -> None:
    await applied(store, *(add(name, NOW, topic=ON_KAFKA) for name in ("one", "two")), every("tick", topic=ON_KAFKA))
    await drain(store, NOW)
    lane, later = lane_of(store), NOW + 5 * SECOND
    offsets = {record.id: record.offset for record in await lane.outgoing(0, 10)}
    await lane.left([offsets["one"], offsets["tick"]], later)
    await lane.settle(3)
    assert (await found(store, "one")).finished == later
    assert (await found(store, "two")).finished == NOW
    events = await store.history(ACME, "one", later)
    assert (events[-1].event, events[-1].at) == ("released", later)
