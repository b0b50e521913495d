"""How long a finished id is known, and when it is free again."""

import pytest

from tests.contract.conftest import OpenStore
from tests.contract.factories import (
    ACME,
    DAY,
    MINUTE,
    NOW,
    SECOND,
    add,
    answer,
    applied,
    bring,
    drain,
    found,
    listed,
    records,
    state,
    tend,
    words,
)
from tidings.domain.schedules.command import Cancel, Pause, Replace, State
from tidings.domain.schedules.schedule import Query
from tidings.ports import Store

FINISHED_STATES: tuple[State, ...] = ("released", "ended", "cancelled", "missed")
RETENTION = 3 * DAY


@pytest.mark.parametrize("tended", [False, True])
@pytest.mark.parametrize("finished", FINISHED_STATES)
async def test_a_finished_id_is_known_during_its_retention(
    open_store: OpenStore, finished: State, tended: bool
) -> None:
    store = await open_store(id_retention_us=RETENTION)
    command = await bring(store, finished)
    before = NOW + RETENTION - SECOND
    if tended:
        await tend(store, before)
    assert await state(store, "one", before) == finished
    assert (await answer(store, command, before)).outcome == "unchanged"
    assert [one.id for one in await listed(store, Query(), before)] == ["one"]
    assert await store.history(ACME, "one", before)


@pytest.mark.parametrize("tended", [False, True])
@pytest.mark.parametrize("finished", FINISHED_STATES)
async def test_a_finished_id_is_free_after_its_retention(open_store: OpenStore, finished: State, tended: bool) -> None:
    store = await open_store(id_retention_us=RETENTION)
    await bring(store, finished)
    after = NOW + RETENTION + SECOND
    if tended:
        await tend(store, after)
    assert await store.find(ACME, "one", after) is None
    assert await store.history(ACME, "one", after) == []
    assert await listed(store, Query(), after) == []
    unknown = await answer(store, Cancel(ACME, "one"), after)
    assert (unknown.outcome, unknown.remembered_since) == ("unknown", NOW + SECOND)
    assert (await answer(store, add("one", after, value=b"new"), after)).outcome == "scheduled"
    assert await state(store, "one", after) == "pending"
    assert [event.at for event in await store.history(ACME, "one", after)] == [after]
    await drain(store, after)
    assert (await answer(store, Cancel(ACME, "one"), after)).outcome == "already_released"


async def test_a_free_id_can_be_put(open_store: OpenStore) -> None:
    store = await open_store(id_retention_us=RETENTION)
    command = await bring(store, "released")
    after = NOW + RETENTION + SECOND
    assert (await answer(store, Replace(command), after)).outcome == "scheduled"
    await drain(store, after)
    assert await state(store, "one", after) == "released"


async def test_the_retention_of_an_id_starts_when_it_finishes(open_store: OpenStore) -> None:
    store = await open_store(id_retention_us=RETENTION)
    late = NOW + 10 * DAY
    await applied(store, add("one", late), add("two", late), Pause(ACME, "two"))
    await tend(store, late - MINUTE)
    await drain(store, late)
    await applied(store, Cancel(ACME, "two"), now=late + DAY)
    assert await words(store, Cancel(ACME, "one"), now=late + RETENTION - SECOND) == ["already_released"]
    both = [Cancel(ACME, "one"), Cancel(ACME, "two")]
    assert await words(store, *both, now=late + RETENTION + SECOND) == ["unknown", "cancelled"]


async def test_unfinished_schedules_are_never_forgotten(open_store: OpenStore) -> None:
    store = await open_store(id_retention_us=RETENTION)
    await bring(store, "paused", "held")
    await applied(store, add("far", NOW + 100 * DAY))
    await tend(store, NOW + 90 * DAY)
    assert [await state(store, name, NOW + 90 * DAY) for name in ("held", "far")] == ["paused", "pending"]


async def test_generated_ids_have_the_same_retention(open_store: OpenStore) -> None:
    store = await open_store(id_retention_us=RETENTION)
    made = (await answer(store, add())).id
    await drain(store)
    cancel = Cancel(ACME, made)
    assert (await answer(store, cancel, NOW + RETENTION - SECOND)).outcome == "already_released"
    assert (await answer(store, cancel, NOW + RETENTION + SECOND)).outcome == "unknown"


async def test_housekeeping_of_ids_keeps_the_log(open_store: OpenStore) -> None:
    store = await open_store(id_retention_us=DAY, retention_us=30 * DAY)
    await bring(store, "released")
    await tend(store, NOW + 2 * DAY)
    assert [record.id for record in await records(store)] == ["one"]


async def test_a_finished_schedule_is_returned(store: Store) -> None:
    await applied(store, add("one", NOW + 1, key=b"k", labels='{"a":"b"}'), now=NOW)
    await drain(store, NOW + 3)
    schedule = await found(store, "one")
    (record,) = await records(store)
    assert schedule.message == record.message
    assert (schedule.state, schedule.due, schedule.occurrence) == ("released", NOW + 1, 1)
    assert (schedule.accepted, schedule.finished, schedule.generation) == (NOW, NOW + 3, 1)
    assert (schedule.partition, schedule.offset) == (record.partition, record.offset)
    assert (schedule.topic, schedule.labels, schedule.reason) == ("greetings", '{"a":"b"}', None)


@pytest.mark.parametrize("finished", FINISHED_STATES)
async def test_unknown_fields_of_a_finished_schedule_are_omitted(store: Store, finished: State) -> None:
    """When and lateness may be dropped with the end; what is shown was asked for."""
    command = await bring(store, finished)
    shown = [await found(store, "one"), *await listed(store, Query())]
    assert len(shown) == 2
    for schedule in shown:
        assert schedule.when in {None, command.when}
        assert schedule.lateness in {None, command.lateness}
        assert schedule.message in {None, command.message}


async def test_a_missed_schedule_has_a_reason(store: Store) -> None:
    await bring(store, "missed")
    schedule = await found(store, "one")
    assert (schedule.state, schedule.reason, schedule.finished) == ("missed", "expired", NOW)
    assert (schedule.partition, schedule.offset) == (None, None)


async def test_a_forgotten_id_begins_with_the_generation_that_its_caller_states(open_store: OpenStore) -> None:
    """Whoever remembers an id for longer than the store does must not see a generation twice."""
    store = await open_store(id_retention_us=7 * DAY)
    command = await bring(store, "released")
    after = NOW + 8 * DAY
    assert await store.find(ACME, "one", after) is None
    again = Replace(add("one", after, value=b"again"), reuse=True, generation_min=3)
    assert (await answer(store, again, after)).outcome == "scheduled"
    one = await found(store, "one", after)
    assert (one.generation, one.state) == (3, "pending")
    assert [(event.event, event.at, event.due) for event in await store.history(ACME, "one", after)] == [
        ("accepted", after, after)
    ]
    await drain(store, after)
    assert [record.generation for record in await records(store, command.topic) if record.id == "one"] == [1, 3]
    for least, expected in ((2, 4), (9, 9)):
        more = Replace(add("one", after, value=b"%d" % least), reuse=True, generation_min=least)
        assert (await answer(store, more, after)).outcome == "scheduled"
        assert (await found(store, "one", after)).generation == expected
        await drain(store, after)


async def test_a_forgotten_id_can_begin_paused(open_store: OpenStore) -> None:
    store = await open_store(id_retention_us=7 * DAY)
    await bring(store, "released")
    after = NOW + 8 * DAY
    held = Replace(add("one", after, value=b"again"), reuse=True, paused=True, generation_min=2)
    assert (await answer(store, held, after)).outcome == "scheduled"
    await drain(store, after)
    one = await found(store, "one", after)
    assert (one.generation, one.state) == (2, "paused")
