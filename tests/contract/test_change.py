"""Changing schedules: what a change means for what is released."""

import pytest

from tests.contract.factories import (
    ACME,
    DAY,
    MINUTE,
    NOW,
    SECOND,
    add,
    answer,
    applied,
    drain,
    every,
    found,
    left,
    next_due,
    numbers,
    records,
    release,
    state,
    tend,
    words,
)
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Pause, Priority, Replace, Resume
from tidings.domain.schedules.lateness import Lateness
from tidings.ports import Store

LATE = NOW + MINUTE


# --- cancel ---


async def test_a_cancelled_schedule_is_never_released(store: Store) -> None:
    _, made, _, _ = [one.id for one in await applied(store, add("one"), add(), every("often"), add("kept"))]
    assert await words(store, *(Cancel(ACME, one) for one in ("one", made, "often"))) == ["cancelled"] * 3
    assert (await drain(store, LATE)).missed == {}
    assert await left(store) == ["kept"]


async def test_cancel_of_a_recurring_schedule_between_two_occurrences(store: Store) -> None:
    await applied(store, every("often", NOW))
    await drain(store, NOW + SECOND)
    assert (await answer(store, Cancel(ACME, "often"), NOW + SECOND)).outcome == "cancelled"
    await drain(store, LATE)
    assert await numbers(store, "often") == [1, 2]
    schedule = await found(store, "often", LATE)
    assert (schedule.state, schedule.finished) == ("cancelled", NOW + SECOND)


async def test_cancel_while_paused(store: Store) -> None:
    await applied(store, add("one"), Pause(ACME, "one"), Cancel(ACME, "one"))
    assert await words(store, Resume(ACME, "one")) == ["cancelled"]
    await drain(store, LATE)
    assert await left(store) == []


async def test_a_cancel_drops_fired_records_that_are_not_released(store: Store) -> None:
    await applied(store, every("often", LATE), Fire(ACME, "often"))
    await applied(store, Cancel(ACME, "often"))
    before = await numbers(store, "often")
    await drain(store, LATE + MINUTE)
    assert await numbers(store, "often") == before


# --- replace ---


async def test_only_the_replacement_is_released(store: Store) -> None:
    await applied(store, add("one", NOW, value=b"old", topic="old", priority=Priority.LOW))
    new = add("one", NOW + SECOND, value=b"new", key=b"k", topic="new", priority=Priority.HIGH, labels='{"a":"b"}')
    assert await words(store, Replace(new)) == ["replaced"]
    schedule = await found(store, "one")
    assert (schedule.topic, schedule.message, schedule.labels) == ("new", new.message, '{"a":"b"}')
    assert (schedule.priority, schedule.due, schedule.generation) == (Priority.HIGH, NOW + SECOND, 2)
    assert not (await drain(store, NOW)).lateness_us
    await drain(store, LATE)
    assert await left(store, "old") == []
    assert [(one.occurrence, one.message) for one in await records(store, "new")] == [("one/2/1", new.message)]


async def test_a_replacement_counts_from_one(store: Store) -> None:
    await applied(store, every("often", NOW))
    await drain(store, NOW + 2 * SECOND)
    await applied(store, Replace(every("often", LATE, count=2)), now=NOW + 2 * SECOND)
    schedule = await found(store, "often")
    assert (schedule.generation, schedule.occurrence, schedule.due) == (2, 1, LATE)
    await drain(store, LATE + DAY)
    assert sorted(one.occurrence for one in await records(store)) == [
        "often/1/1",
        "often/1/2",
        "often/1/3",
        "often/2/1",
        "often/2/2",
    ]


async def test_a_paused_schedule_stays_paused_when_replaced(store: Store) -> None:
    await applied(store, add("one"), Pause(ACME, "one"), Replace(add("one", NOW, value=b"new")))
    assert await state(store, "one") == "paused"
    await drain(store, LATE)
    assert await left(store) == []
    assert (await answer(store, Resume(ACME, "one"), LATE)).due == NOW
    await drain(store, LATE)
    assert [one.message for one in await records(store)] == [add(value=b"new").message]


@pytest.mark.parametrize("moment", [NOW, NOW + SECOND, NOW + DAY, NOW + 40 * DAY])
async def test_replace_moves_to_any_time(store: Store, moment: int) -> None:
    await applied(store, add("one", NOW + 2 * DAY), add("two", NOW + SECOND))
    await applied(store, Replace(add("one", moment, value=b"new")), Replace(add("two", moment, value=b"new")))
    await drain(store, moment - 1)
    assert await left(store) == []
    await drain(store, moment)
    assert await left(store) == ["one", "two"]


async def test_one_shot_becomes_recurring_and_back(store: Store) -> None:
    await applied(store, add("a"), every("b", LATE), Replace(every("a", NOW, count=2)), Replace(add("b", NOW)))
    await drain(store, LATE + MINUTE)
    assert await left(store) == ["a", "a", "b"]
    assert [await state(store, name) for name in "ab"] == ["ended", "released"]


# --- pause and resume ---


async def test_a_paused_schedule_is_not_released_until_it_is_resumed(store: Store) -> None:
    await applied(store, add("one"), every("often", NOW, count=3))
    await applied(store, Pause(ACME, "one"), Pause(ACME, "often"))
    assert next_due(store) is None
    assert (await drain(store, LATE)).lateness_us == []
    outcomes = await applied(store, Resume(ACME, "one"), Resume(ACME, "often"), now=LATE)
    assert [(one.outcome, one.due) for one in outcomes] == [("resumed", NOW), ("resumed", NOW)]
    assert await words(store, Resume(ACME, "one"), now=LATE) == ["unchanged"]
    await drain(store, LATE)
    assert await left(store) == ["often", "often", "often", "one"]


async def test_a_schedule_resumed_before_its_due_time_is_released_at_its_due_time(store: Store) -> None:
    await applied(store, add("one", LATE), Pause(ACME, "one"), Resume(ACME, "one"))
    await drain(store, LATE - 1)
    assert await left(store) == []
    assert (await drain(store, LATE)).lateness_us == [0]


async def test_occurrences_of_a_pause_follow_the_lateness_policy(store: Store) -> None:
    latest, skip = Lateness("fire_latest"), Lateness("skip", grace_us=2 * SECOND)
    await applied(
        store,
        every("all", NOW, count=10),
        every("latest", NOW, count=10, lateness=latest),
        every("skip", NOW, count=10, lateness=skip),
        add("once", NOW, lateness=Lateness(expires_after_us=SECOND)),
        *(Pause(ACME, name) for name in ("all", "latest", "skip", "once")),
    )
    now = NOW + 9 * SECOND
    await applied(store, *(Resume(ACME, name) for name in ("all", "latest", "skip", "once")), now=now)
    drained = await drain(store, now)
    assert drained.missed == {"superseded": 9, "late_skipped": 7, "expired": 1}
    assert await numbers(store, "all") == list(range(1, 11))
    assert await numbers(store, "latest") == [10]
    assert await numbers(store, "skip") == [8, 9, 10]
    assert await state(store, "once", now) == "missed"


async def test_pause_of_a_recurring_schedule_between_two_occurrences(store: Store) -> None:
    await applied(store, every("often", NOW))
    await drain(store, NOW + SECOND)
    assert (await answer(store, Pause(ACME, "often"), NOW + SECOND)).outcome == "paused"
    await drain(store, NOW + 10 * SECOND)
    schedule = await found(store, "often", NOW + 10 * SECOND)
    assert (schedule.state, schedule.occurrence, schedule.due) == ("paused", 3, NOW + 2 * SECOND)
    assert await numbers(store, "often") == [1, 2]
    await applied(store, Resume(ACME, "often"), now=NOW + 10 * SECOND)
    await drain(store, NOW + 10 * SECOND)
    assert await numbers(store, "often") == list(range(1, 12))


# --- fire ---


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("due", [NOW + SECOND, NOW + 40 * DAY])
async def test_a_fired_one_shot_is_released_now_instead_of_at_its_due_time(
    store: Store, due: int, paused: bool
) -> None:
    await applied(store, add("one", due), *([Pause(ACME, "one")] if paused else []))
    outcome = await answer(store, Fire(ACME, "one"), NOW + 5)
    assert (outcome.outcome, outcome.due) == ("fired", NOW + 5)
    assert (await drain(store, NOW + 7)).lateness_us == [2]
    await drain(store, due)
    (record,) = await records(store)
    assert (record.id, record.number, record.due, record.released) == ("one", 1, NOW + 5, NOW + 7)
    schedule = await found(store, "one", NOW + 7)
    assert (schedule.state, schedule.due) == ("released", NOW + 5)


async def test_firing_a_recurring_schedule_releases_an_extra_record_and_it_continues(store: Store) -> None:
    await applied(store, every("often", LATE, period=MINUTE, count=2))
    before = await found(store, "often")
    for moment in (NOW + 1, NOW + 2):
        assert (await answer(store, Fire(ACME, "often"), moment)).outcome == "fired"
        assert (await drain(store, moment)).topics == {(ACME, "greetings")}
    assert await found(store, "often") == before
    extra = sorted(await records(store), key=lambda record: record.released)
    assert [(one.number, one.due, one.released) for one in extra] == [
        (-1, NOW + 1, NOW + 1),
        (-2, NOW + 2, NOW + 2),
    ]
    assert not any(one.final for one in extra)
    await drain(store, LATE + MINUTE)
    assert sorted(await numbers(store, "often")) == [-2, -1, 1, 2]


async def test_several_fires_before_one_release(store: Store) -> None:
    await tend(store)
    await applied(store, every("often", LATE), *(Fire(ACME, "often") for _ in range(3)))
    assert next_due(store) == NOW
    await drain(store, NOW)
    assert sorted(await numbers(store, "often")) == [-3, -2, -1]


async def test_fires_count_within_a_generation(store: Store) -> None:
    await applied(store, every("often", LATE), Fire(ACME, "often"))
    await drain(store, NOW)
    await applied(store, Replace(every("often", LATE, value=b"new")), Fire(ACME, "often"))
    await drain(store, NOW)
    assert sorted(one.occurrence for one in await records(store)) == ["often/1/-1", "often/2/-1"]


async def test_a_paused_recurring_schedule_can_be_fired_and_stays_paused(store: Store) -> None:
    await applied(store, every("often", NOW, key=b"k"), Pause(ACME, "often"))
    assert (await answer(store, Fire(ACME, "often"))).outcome == "fired"
    await drain(store, LATE)
    assert await numbers(store, "often") == [-1]
    assert await state(store, "often") == "paused"


async def test_a_fired_record_is_released_however_late(store: Store) -> None:
    """Someone asked for it by hand: no lateness policy applies, also not after a pause."""
    strict = Lateness("skip", grace_us=SECOND, max_us=SECOND, expires_after_us=SECOND)
    await applied(store, add("one", LATE, lateness=strict), every("often", NOW + DAY, lateness=strict))
    await applied(store, add("held", LATE, lateness=strict))
    await applied(store, *(Fire(ACME, name) for name in ("one", "often", "held")), Pause(ACME, "held"))
    await applied(store, Resume(ACME, "held"), now=LATE)
    drained = await drain(store, LATE)
    assert drained.missed == {}
    assert await left(store) == ["held", "often", "one"]


async def test_a_replacement_drops_fired_records_that_are_not_released(store: Store) -> None:
    await applied(store, every("often", LATE, value=b"old"), Fire(ACME, "often"))
    before = await numbers(store, "often")
    await applied(store, Replace(every("often", LATE + MINUTE, value=b"new")))
    await drain(store, LATE)
    assert await numbers(store, "often") == before


async def test_a_pause_does_not_hold_back_fired_records(store: Store) -> None:
    await applied(store, every("often", LATE), Fire(ACME, "often"), Pause(ACME, "often"))
    await drain(store, NOW)
    assert await numbers(store, "often") == [-1]


async def test_a_record_fired_before_the_end_is_released_after_it(store: Store) -> None:
    await applied(store, every("often", NOW, count=1), Fire(ACME, "often"))
    await release(store, NOW, 1)
    await drain(store, NOW)
    assert sorted(await numbers(store, "often")) == [-1, 1]
    assert await state(store, "often") == "ended"


async def test_the_history_of_a_fired_schedule_keeps_its_original_due_time(store: Store) -> None:
    due = NOW + 10 * SECOND
    await applied(store, add("one", due))
    await applied(store, Fire(ACME, "one"))
    await drain(store, NOW)
    history = await store.history(ACME, "one", NOW)
    assert [event.event for event in history] == ["accepted", "fired", "released"]
    assert history[0].due == due


# --- schedules that belong to a notification ---

JOB = b'{"notification":"tea"}'
RETRY_JOB = b'{"notification":"tea","delivery":"tea/1","attempt":2}'


def notification_schedule(schedule_id: str = "tea", value: bytes = JOB) -> Add:
    return add(schedule_id, LATE, topic="notify.email", value=value)


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (Replace(add("tea", NOW)), "cancel the notification (DELETE /v1/notifications/tea"),
        (
            Replace(add("tea", NOW)),
            "change it (PATCH /v1/notifications/tea), or replace it (PUT /v1/notifications/tea)",
        ),
        (Replace(add("tea", NOW), reuse=True), "cancel the notification (DELETE /v1/notifications/tea"),
        (Cancel(ACME, "tea"), "cancel the notification (DELETE /v1/notifications/tea"),
        (add("tea", NOW), "use another id"),
        (add("tea", NOW, reuse=True), "use another id"),
        (Replace(add("tea/1~2", NOW)), "cancel the notification"),
        (Cancel(ACME, "tea/1~2"), "cancel the notification"),
        (Pause(ACME, "tea/1~2"), "cancel the notification"),
        (Resume(ACME, "tea/1~2"), "cancel the notification"),
        (Fire(ACME, "tea/1~2"), "cancel the notification"),
    ],
)
async def test_a_change_that_would_break_a_notification_is_rejected(
    store: Store, command: Command, advice: str
) -> None:
    await applied(store, notification_schedule(), notification_schedule("tea/1~2", RETRY_JOB))
    outcome = await answer(store, command)
    assert (outcome.outcome, outcome.state, outcome.due) == ("rejected", "pending", LATE)
    assert (outcome.reason or "").startswith("this schedule belongs to notification 'tea'")
    assert advice in (outcome.reason or "")
    await drain(store, LATE)
    assert sorted(record.message for record in await records(store, "notify.email")) == sorted(
        [notification_schedule().message, notification_schedule("", RETRY_JOB).message]
    )


async def test_a_notification_may_be_paused_fired_and_cancelled_with_its_deliveries(store: Store) -> None:
    await applied(store, notification_schedule(), notification_schedule("other"), notification_schedule("third"))
    assert await words(store, Pause(ACME, "tea"), Resume(ACME, "tea"), Fire(ACME, "tea")) == [
        "paused",
        "resumed",
        "fired",
    ]
    assert await words(store, Cancel(ACME, "other", with_deliveries=True), notification_schedule("third")) == [
        "cancelled",
        "unchanged",
    ]
    await drain(store, LATE)
    assert await state(store, "other") == "cancelled"


async def test_the_id_of_a_finished_notification_is_not_used_again(store: Store) -> None:
    await applied(store, notification_schedule())
    await drain(store, LATE)
    for command in (Replace(add("tea"), reuse=True), add("tea", reuse=True)):
        outcome = await answer(store, command, LATE)
        assert (outcome.outcome, outcome.reason) == (
            "rejected",
            "this id belonged to a notification: use another id",
        )
    for change in (Replace(add("tea")), Cancel(ACME, "tea")):
        outcome = await answer(store, change, LATE)
        assert (outcome.outcome, outcome.reason) == (
            "already_released",
            "this id belonged to a notification: use another id",
        )


async def test_a_schedule_of_a_client_for_a_notification_topic_can_be_changed(store: Store) -> None:
    inline = add("mine", LATE, topic="notify.email", value=b'{"inline":{"id":"mine","tenant":"acme","channels":[]}}')
    await applied(store, inline, add("text", LATE, topic="notify.email", value=b"no JSON"))
    assert await words(store, Replace(add("mine", NOW)), Cancel(ACME, "text")) == ["replaced", "cancelled"]


async def test_a_finished_id_can_begin_again_paused(store: Store) -> None:
    await applied(store, add("one", NOW))
    await drain(store, NOW)
    again = await answer(store, Replace(add("one", NOW), reuse=True, paused=True), NOW + SECOND)
    assert again.outcome == "scheduled"
    schedule = await found(store, "one", LATE)
    assert (schedule.state, schedule.generation, schedule.due) == ("paused", 2, NOW)
    await drain(store, LATE)
    assert await left(store) == ["one"]
    assert (await answer(store, Resume(ACME, "one"), LATE)).outcome == "resumed"
    await drain(store, LATE)
    assert await left(store) == ["one", "one"]
