"""Adding schedules: ids, repeats, and what is kept."""

import msgspec
import pytest

from tests.contract.factories import (
    ACME,
    DAY,
    MINUTE,
    NOW,
    SECOND,
    TOPIC,
    add,
    answer,
    applied,
    bring,
    drain,
    every,
    found,
    left,
    records,
    state,
    words,
)
from tidings.domain.names import ID_BYTES_MOST
from tidings.domain.schedules.command import Cancel, Command, Fire, Pause, Priority, Replace, Resume
from tidings.domain.schedules.lateness import Lateness, deadline
from tidings.domain.schedules.schedule import MADE_ID, Schedule, make_id
from tidings.ports import Store
from tidings.timeline import store_rules

REJECTED = ["rejected"]
AWKWARD_IDS = [
    "x",
    "order 42 / 'quoted' \"twice\" %s ?1 \\",
    "Grüße-世界-🎉",
    "é" * 100,  # 200 bytes
    "a" * 200,
    "tid_",
    make_id(1, NOW, 1)[:-1],
    make_id(1, NOW, 1).upper(),
    make_id(1, NOW, 1) + "0",
]


async def test_an_id_that_cannot_be_stored_is_rejected_and_the_longest_id_is_accepted(store: Store) -> None:
    longest, longer = "é" * 499 + "x", "é" * 500
    assert len(longest.encode()) == ID_BYTES_MOST
    asked: list[Command] = [
        add("a"),
        add(longer),
        add(longest),
        every(f"{longer}y"),
        Replace(add("z" * 3_000)),
        add("b"),
    ]
    outcomes = await applied(store, *asked)
    assert [each.outcome for each in outcomes] == ["scheduled", *REJECTED, "scheduled", *REJECTED * 2, "scheduled"]
    assert [each.field for each in outcomes if each.outcome == "rejected"] == ["id"] * 3
    await drain(store, NOW)
    assert await left(store) == sorted(["a", "b", longest])


async def test_a_schedule_is_returned_with_all_its_fields(store: Store) -> None:
    command = add(
        "one",
        NOW + MINUTE,
        key=b"k",
        priority=Priority.HIGH,
        lateness=Lateness("skip", 5 * SECOND, 7 * SECOND, 9 * SECOND),
        labels='{"campaign":"autumn","city":"Köln"}',
    )
    outcome = await answer(store, command)
    assert (outcome.id, outcome.outcome, outcome.due) == ("one", "scheduled", NOW + MINUTE)
    schedule = await found(store, "one")
    assert schedule.lateness is not None
    assert deadline(schedule.due, schedule.lateness) == deadline(command.due, command.lateness)
    assert msgspec.structs.replace(schedule, lateness=None) == Schedule(
        tenant=ACME,
        id="one",
        generation=1,
        topic=TOPIC,
        state="pending",
        due=NOW + MINUTE,
        accepted=NOW,
        priority=Priority.HIGH,
        occurrence=1,
        when=command.when,
        labels=command.labels,
        message=command.message,
    )


async def test_a_recurring_schedule_is_returned_with_its_rule(store: Store) -> None:
    command = every("one", NOW + MINUTE, period=DAY, count=3, jitter_us=7)
    assert (await answer(store, command)).due == NOW + MINUTE + 7
    schedule = await found(store, "one")
    assert (schedule.state, schedule.due, schedule.occurrence) == ("pending", NOW + MINUTE + 7, 1)
    assert (schedule.when, schedule.lateness) == (command.when, command.lateness)
    assert schedule.message == command.message


async def test_no_commands_give_no_outcomes(store: Store) -> None:
    assert await store.apply([], NOW) == []


# --- generated ids ---


async def test_generated_ids_contain_their_place_and_sort_by_arrival(store: Store) -> None:
    commands = [
        add(None, NOW + DAY),
        add(None, NOW + MINUTE, priority=Priority.HIGH),
        add(None, NOW, priority=Priority.LOW),
        every(None, NOW + 2),
    ]
    ids = [outcome.id for outcome in await applied(store, *commands)]
    assert ids == [make_id(n, one.due, one.priority) for n, one in enumerate(commands, start=1)]
    assert ids == sorted(ids)
    assert all(MADE_ID.match(made) for made in ids)


async def test_generated_ids_continue_to_count(store: Store) -> None:
    first, second = await applied(store, add(), add("one"))
    third, *_ = await applied(store, add(), now=NOW + 1)
    assert (first.outcome, second.outcome, third.outcome) == ("scheduled",) * 3
    assert first.id < third.id


async def test_equal_adds_without_an_id_are_two_schedules(store: Store) -> None:
    first, second = await applied(store, add(), add())
    assert first.id != second.id
    await drain(store)
    assert await left(store) == sorted([first.id, second.id])


async def test_a_schedule_with_a_generated_id_can_be_changed(store: Store) -> None:
    made = [(await answer(store, add(None, NOW + DAY))).id for _ in range(4)]
    assert await words(
        store,
        Replace(add(made[0], NOW + SECOND, value=b"other")),
        Pause(ACME, made[1]),
        Fire(ACME, made[2]),
        Cancel(ACME, made[3]),
    ) == ["replaced", "paused", "fired", "cancelled"]
    await drain(store, NOW + SECOND)
    assert await left(store) == sorted([made[0], made[2]])
    assert await words(store, *(Cancel(ACME, one) for one in made), now=NOW + SECOND) == [
        "already_released",
        "cancelled",
        "already_released",
        "cancelled",
    ]


async def test_a_generated_id_survives_several_replacements(store: Store) -> None:
    made = (await answer(store, add(None, NOW + DAY))).id
    for step in range(1, 5):
        outcome = await answer(store, Replace(add(made, NOW + DAY - step * SECOND)))
        assert (outcome.id, outcome.outcome, outcome.due) == (made, "replaced", NOW + DAY - step * SECOND)
    schedule = await found(store, made)
    assert (schedule.generation, schedule.due) == (5, NOW + DAY - 4 * SECOND)
    assert await words(store, Pause(ACME, made), Resume(ACME, made)) == ["paused", "resumed"]
    await drain(store, NOW + DAY)
    assert await left(store) == [made]


async def test_an_id_of_the_generated_form_that_was_never_generated_is_unknown(store: Store) -> None:
    made = (await answer(store, add(None, NOW + DAY))).id
    others = [
        make_id(1, NOW + DAY + 1, Priority.NORMAL),
        make_id(1, NOW + DAY, Priority.HIGH),
        make_id(2, NOW + DAY, Priority.NORMAL),
        make_id(0, 0, Priority.NORMAL),
        make_id(10**16 - 1, 10**16 - 1, Priority.LOW),
    ]
    assert made not in others
    for other in others:
        assert (await answer(store, Cancel(ACME, other))).outcome == "unknown"
        assert await store.find(ACME, other, NOW) is None
        assert await store.history(ACME, other, NOW) == []
    assert await state(store, made) == "pending"


# --- ids of callers ---


@pytest.mark.parametrize("schedule_id", AWKWARD_IDS)
async def test_ids_are_stored_unchanged(store: Store, schedule_id: str) -> None:
    assert await words(store, add(schedule_id, NOW + 1), add("other", NOW + 1)) == ["scheduled"] * 2
    assert (await found(store, schedule_id)).id == schedule_id
    assert (await answer(store, add(schedule_id, NOW + 1))).outcome == "unchanged"
    await drain(store, NOW + 1)
    assert await left(store) == sorted([schedule_id, "other"])
    assert (await answer(store, Cancel(ACME, schedule_id), NOW + 1)).outcome == "already_released"


async def test_ids_that_look_alike_are_different(store: Store) -> None:
    ids = ["a", "A", "a ", " a", "ä", "a\u0308", "\u0430", "a%", "a_"]
    assert await words(store, *(add(one, value=one.encode()) for one in ids)) == ["scheduled"] * len(ids)
    await drain(store)
    assert await left(store) == sorted(ids)


async def test_content_is_compared_as_it_was_sent(store: Store) -> None:
    """`+5s` sent twice is the same content, although its moment is another: the first one stands."""
    await applied(store, add("one", NOW + 5 * SECOND, content="+5s"))
    again = await answer(store, add("one", NOW + 8 * SECOND, content="+5s"), NOW + 3 * SECOND)
    assert (again.outcome, again.due) == ("unchanged", NOW + 5 * SECOND)
    assert (await found(store, "one")).due == NOW + 5 * SECOND


async def test_repeats_within_one_batch(store: Store) -> None:
    outcomes = await applied(
        store, add("one", NOW + MINUTE), add("one", NOW + MINUTE), add("one", NOW + DAY), add("two", NOW)
    )
    assert [outcome.outcome for outcome in outcomes] == ["scheduled", "unchanged", "rejected", "scheduled"]
    assert [outcome.due for outcome in outcomes[:2]] == [NOW + MINUTE] * 2
    assert outcomes[2].state == "pending"
    await drain(store, NOW + DAY)
    assert await left(store) == ["one", "two"]


async def test_a_rejected_add_leaves_the_existing_schedule_unchanged(store: Store) -> None:
    await applied(store, add("one", NOW, value=b"first"))
    assert (await answer(store, add("one", NOW, value=b"second"))).outcome == "rejected"
    await drain(store)
    assert [record.message for record in await records(store)] == [add("one", NOW, value=b"first").message]


async def test_commands_of_one_batch_see_the_results_of_earlier_ones(store: Store) -> None:
    assert await words(
        store,
        add("one", NOW),
        Cancel(ACME, "one"),
        add("one", NOW, value=b"other"),
        Replace(add("one", NOW), reuse=True),
        Pause(ACME, "one"),
        Pause(ACME, "one"),
        Resume(ACME, "one"),
        Replace(add("one", NOW + 1, value=b"third")),
    ) == ["scheduled", "cancelled", "cancelled", "scheduled", "paused", "paused", "resumed", "replaced"]
    schedule = await found(store, "one")
    assert (schedule.generation, schedule.state, schedule.due) == (3, "pending", NOW + 1)


async def test_a_schedule_in_the_past_is_due_at_once(store: Store) -> None:
    assert (await answer(store, add("one", NOW - DAY))).due == NOW - DAY
    assert (await drain(store)).lateness_us == [DAY]


async def test_a_schedule_in_the_far_future_is_not_released(store: Store) -> None:
    far = NOW + 3653 * DAY
    await applied(store, add("one", far), add(None, far))
    assert not (await drain(store, NOW + DAY)).lateness_us
    assert not (await drain(store, far - 1)).lateness_us
    assert (await drain(store, far)).lateness_us == [0, 0]


async def test_reuse_counts_generations(store: Store) -> None:
    command = await bring(store, "released")
    for generation in (2, 3):
        assert (await answer(store, Replace(command, reuse=True))).outcome == "scheduled"
        assert (await found(store, "one")).generation == generation
        await drain(store)
    assert [record.occurrence for record in await records(store)] == ["one/1/1", "one/2/1", "one/3/1"]


async def test_a_tenant_has_at_most_so_many_topics(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rules, "TOPICS_PER_TENANT_MAX", 2)
    outcomes = [await answer(store, add(name, topic=f"topic-{name}")) for name in "abc"]
    assert [outcome.outcome for outcome in outcomes] == ["scheduled", "scheduled", "rejected"]
    assert outcomes[2].reason == "topic: there are 2 already, use one of them"
    assert await words(store, add("d", topic="topic-a"), add("e", topic="topic-c")) == ["scheduled", "rejected"]
    assert await words(store, add("c", topic="topic-c", tenant="globex")) == ["scheduled"]
