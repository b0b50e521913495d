"""Reads: the history of a schedule, pages, forecast and counts."""

from collections.abc import Callable

import pytest

from tests.contract.factories import (
    ACME,
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    add,
    applied,
    bring,
    drain,
    every,
    listed,
    tend,
)
from tidings.domain.errors import Invalid
from tidings.domain.schedules.command import Cancel, Command, Fire, Pause, Replace, Resume, State
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Event, Query
from tidings.ports import Store

STATES: tuple[State, ...] = ("pending", "paused", "released", "ended", "cancelled", "missed")


async def history(store: Store, schedule_id: str = "one", now: int = NOW) -> list[str]:
    return [event.event for event in await store.history(ACME, schedule_id, now)]


async def last(store: Store, word: str, now: int = NOW) -> Event:
    return [event for event in await store.history(ACME, "one", now) if event.event == word][-1]


# --- history ---


async def test_a_long_history_keeps_its_last_hundred_lines(store: Store) -> None:
    await applied(store, add("one", due=NOW + DAY))
    for moment in range(1, 81):
        await applied(store, Pause(ACME, "one"), now=NOW + 2 * moment)
        await applied(store, Resume(ACME, "one"), now=NOW + 2 * moment + 1)
    lines = await history(store, "one", NOW + 200)
    assert lines[:1] == ["accepted"]
    assert lines[1:] == ["paused", "resumed"] * 50


async def test_history_of_a_one_shot(store: Store) -> None:
    await applied(store, add("one", NOW + 1))
    await drain(store, NOW + 3)
    accepted, released = await store.history(ACME, "one", NOW + 3)
    assert (accepted.event, accepted.at) == ("accepted", NOW)
    assert (released.event, released.at) == ("released", NOW + 3)
    assert (released.occurrence, released.due) == (1, NOW + 1)


async def test_history_of_a_generated_id(store: Store) -> None:
    (outcome,) = await applied(store, add(None, NOW + 1))
    assert await history(store, outcome.id) == ["accepted"]
    await drain(store, NOW + 3)
    assert await history(store, outcome.id) == ["accepted", "released"]


async def test_history_has_every_change_once(store: Store) -> None:
    steps: list[Callable[[str, str], Command]] = [Pause, Pause, Resume, Resume, Fire, Cancel]
    await applied(store, every("one", NOW + HOUR))
    for step, kind in enumerate(steps, start=1):
        await applied(store, kind(ACME, "one"), now=NOW + step)
        await drain(store, NOW + step)
    await applied(store, Cancel(ACME, "one"), now=NOW + 9)
    events = await store.history(ACME, "one", NOW + 9)
    assert [(event.event, event.at - NOW) for event in events] == [
        ("accepted", 0),
        ("paused", 1),
        ("resumed", 3),
        ("fired", 5),
        ("released", 5),
        ("cancelled", 6),
    ]
    assert events[4].occurrence == -1


async def test_history_of_missed_occurrences(store: Store) -> None:
    await bring(store, "missed")
    assert await history(store) == ["accepted", "missed"]
    missed = await last(store, "missed")
    assert (missed.at, missed.reason) == (NOW, "expired")


async def test_history_of_a_recurring_schedule(store: Store) -> None:
    await applied(store, every("one", NOW, count=5, lateness=Lateness("fire_latest")))
    await drain(store, NOW)
    await drain(store, NOW + 3 * SECOND)
    await drain(store, NOW + 4 * SECOND)
    now = NOW + 4 * SECOND
    assert sorted(await history(store, now=now)) == sorted(
        ["accepted", "released", "missed", "released", "released", "ended"]
    )
    missed = await last(store, "missed", now)
    assert (missed.occurrence, missed.count, missed.reason) == (2, 2, "superseded")
    events = await store.history(ACME, "one", now)
    assert [(e.occurrence, e.due, e.at) for e in events if e.event == "released"] == [
        (1, NOW, NOW),
        (4, NOW + 3 * SECOND, NOW + 3 * SECOND),
        (5, NOW + 4 * SECOND, NOW + 4 * SECOND),
    ]


@pytest.mark.slow
async def test_history_keeps_the_latest_occurrences(store: Store) -> None:
    await applied(store, every("one", NOW))
    await drain(store, NOW + 299 * SECOND)
    events = await store.history(ACME, "one", NOW + 299 * SECOND)
    released = [event.occurrence for event in events if event.event == "released"]
    assert len(released) >= 50
    assert released == list(range(300 - len(released) + 1, 301))


async def test_history_of_a_pending_schedule_does_not_expire(store: Store) -> None:
    """A daily schedule shows its last fifty days, although finished ids are forgotten after seven."""
    await applied(store, every("one", NOW, period=DAY))
    for day in range(60):
        await drain(store, NOW + day * DAY)
        await tend(store, NOW + day * DAY)
    events = await store.history(ACME, "one", NOW + 59 * DAY)
    released = [event.occurrence for event in events if event.event == "released"]
    assert released[-50:] == list(range(11, 61))


async def test_history_of_a_replacement(store: Store) -> None:
    await applied(store, add("one", NOW + 1))
    await applied(store, Replace(add("one", NOW + 2)), now=NOW + 1)
    await drain(store, NOW + 2)
    events = await store.history(ACME, "one", NOW + 2)
    assert [event.event for event in events][-2:] == ["replaced", "released"]
    assert [event.at for event in events][-2:] == [NOW + 1, NOW + 2]


@pytest.mark.parametrize("target", STATES)
async def test_history_is_in_order_of_time(store: Store, target: State) -> None:
    await bring(store, target)
    moments = [event.at for event in await store.history(ACME, "one", NOW)]
    assert moments
    assert moments == sorted(moments)


async def test_an_unknown_id_has_no_schedule_and_no_history(store: Store) -> None:
    assert await store.find(ACME, "nobody", NOW) is None
    assert await store.history(ACME, "nobody", NOW) == []
    assert await listed(store, Query()) == []


# --- pages ---


async def ids(store: Store, now: int = NOW, limit: int = 100, **conditions: object) -> list[str]:
    query = Query(limit=limit, **conditions)  # type: ignore[arg-type]
    return [schedule.id for schedule in await listed(store, query, now)]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_in_order_of_due_time(store: Store, limit: int) -> None:
    dues = {
        "e": 50 * DAY,
        "a": 0,
        "d": DAY,
        "b": SECOND,
        "c": 20 * MINUTE,
        "f": 50 * DAY + 1,
        "g": 3000 * DAY,
    }
    await applied(store, *(add(name, NOW + ahead) for name, ahead in dues.items()))
    assert await ids(store, limit=limit) == list("abcdefg")
    assert await ids(store, limit=limit, state="pending") == list("abcdefg")


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_pages_of_schedules_due_at_one_moment_contain_each_once(store: Store, limit: int) -> None:
    names = [f"s{number:02}" for number in range(50)]
    await applied(store, *(add(name, NOW + DAY) for name in names))
    assert await ids(store, limit=limit) == names


async def test_pages_with_every_state(store: Store) -> None:
    for target in STATES:
        await bring(store, target, target)
    assert sorted(await ids(store, limit=2)) == sorted(STATES)
    for target in STATES:
        assert await ids(store, state=target) == [target]
    assert await ids(store, state="in_flight") == []
    assert {one.id: one.state for one in await listed(store, Query())} == {name: name for name in STATES}


async def test_pages_continue_while_schedules_change(store: Store) -> None:
    """A cursor points between rows: what is to come is shown once; what finished meanwhile is listed at the end."""
    await applied(store, *(add(f"s{number}", NOW + number * MINUTE) for number in range(1, 9)))
    first = await store.page(ACME, Query(limit=3), NOW)
    assert first.cursor is not None
    await applied(store, Cancel(ACME, "s2"), Replace(add("s1", NOW + SECOND)), Pause(ACME, "s6"), add("new", NOW + 1))
    shown = [one.id for one in first.schedules]
    shown += [one.id for one in await listed(store, Query(limit=3, after=first.cursor))]
    assert shown == [*(f"s{number}" for number in range(1, 9)), "s2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
async def test_pending_schedules_are_listed_before_finished_ones(store: Store, limit: int) -> None:
    left = [add(f"left-{number}", NOW + number) for number in range(5)]
    again = [every("ended", NOW - MINUTE, period=MINUTE, count=2), add("same", NOW + 4)]
    await applied(store, *left, *again, add("cancelled", NOW + DAY), Cancel(ACME, "cancelled"))
    await drain(store, NOW + 4)
    soon = [add("soon", NOW + SECOND), every("often", NOW + MINUTE), add("far", NOW + 50 * DAY)]
    await applied(store, *soon, add("held", NOW + HOUR), Pause(ACME, "held"), now=NOW + 4)
    ahead = ["soon", "often", "held", "far"]
    behind = ["cancelled", "same", "left-4", "left-3", "left-2", "left-1", "ended", "left-0"]
    assert await ids(store, NOW + 4, limit) == ahead + behind
    assert await ids(store, NOW + 4, limit, due_from=NOW + 2, due_to=NOW + DAY) == [
        *ahead[:3],
        *behind[1:5],
    ]
    assert await ids(store, NOW + 4, limit, state="released") == behind[1:6] + behind[7:]
    assert await ids(store, NOW + 4, limit, due_to=NOW + 1) == behind[6:]


async def test_a_fired_record_is_not_listed_as_a_schedule(store: Store) -> None:
    await applied(store, every("often", NOW + MINUTE), Fire(ACME, "often"), add("one", NOW + DAY))
    assert await ids(store) == ["often", "one"]
    assert (await store.count(NOW)).pending == 2
    assert await store.forecast(ACME, NOW, NOW + HOUR, MINUTE) == ([(NOW + MINUTE, 1)], False)


async def test_pages_by_topic_prefix_and_time(store: Store) -> None:
    await applied(
        store,
        add("order-1", NOW + 1, topic="a"),
        add("order-2", NOW + 2, topic="b"),
        add("other-1", NOW + 3, topic="a"),
        every("order-3", NOW + 4, topic="a"),
        add("order%", NOW + 5, topic="a.b"),
        add("Order-4", NOW + DAY, topic="a"),
    )
    assert await ids(store, topic="a") == ["order-1", "other-1", "order-3", "Order-4"]
    assert await ids(store, topic="missing") == []
    assert await ids(store, prefix="order-") == ["order-1", "order-2", "order-3"]
    assert await ids(store, prefix="order%") == ["order%"]
    assert await ids(store, prefix="order_") == []
    assert await ids(store, due_from=NOW + 2, due_to=NOW + 4) == ["order-2", "other-1"]
    assert await ids(store, due_from=NOW + 4) == ["order-3", "order%", "Order-4"]
    assert await ids(store, due_to=NOW + 2) == ["order-1"]
    assert await ids(store, topic="a", prefix="order-", due_from=NOW + 2) == ["order-3"]
    assert await ids(store, topic="a", prefix="order-", due_from=NOW + 2, limit=1) == ["order-3"]


async def test_pages_by_label(store: Store) -> None:
    await applied(
        store,
        add("a", NOW + 1, labels='{"campaign":"autumn","n":"1"}'),
        add("b", NOW + 2, labels='{"campaign":"Frühling \\"x\\""}'),
        add("c", NOW + 3, labels='{"autumn":"campaign"}'),
        add("d", NOW + 4),
        add("e", NOW + DAY, labels='{"campaign":"autumn"}'),
    )
    await applied(store, Pause(ACME, "e"))
    assert await ids(store, label=("campaign", "autumn")) == ["a", "e"]
    assert await ids(store, label=("campaign", 'Frühling "x"')) == ["b"]
    assert await ids(store, label=("campaign", "aut")) == []
    await drain(store, NOW + 1)
    assert await ids(store, NOW + 1, label=("campaign", "autumn"), state="released") == ["a"]


async def test_finished_schedules_match_the_same_filters(store: Store) -> None:
    await applied(store, add("a", NOW + 1, topic="x"), add("b", NOW + 2, topic="y"), every("c", NOW + 3, count=1))
    await drain(store, NOW + 3)
    assert await ids(store, topic="x") == ["a"]
    assert await ids(store, prefix="b") == ["b"]
    assert await ids(store, due_from=NOW + 2, due_to=NOW + 3) == ["b"]
    assert await ids(store) == ["c", "b", "a"]


async def test_an_ended_recurring_schedule_is_listed_by_its_last_due_time(store: Store) -> None:
    await applied(store, every("often", NOW, period=MINUTE, count=3), add("between", NOW + MINUTE))
    await drain(store, NOW + 2 * MINUTE)
    assert await ids(store) == ["often", "between"]
    assert await ids(store, limit=1) == ["often", "between"]
    assert await ids(store, due_from=NOW + 2 * MINUTE) == ["often"]
    assert await ids(store, due_to=NOW + 2 * MINUTE) == ["between"]


@pytest.mark.parametrize("cursor", ["", "nonsense", "1.x", "9" * 400, "ünï", "🎉"])
async def test_a_cursor_of_no_page_is_rejected(store: Store, cursor: str) -> None:
    with pytest.raises(Invalid) as refused:
        await store.page(ACME, Query(after=cursor), NOW)
    assert refused.value.field == "cursor"


# --- forecast and count ---


async def test_forecast_counts_pending_occurrences_by_time(store: Store) -> None:
    dues = [NOW - 1, NOW, NOW + 1, NOW + MINUTE - 1, NOW + MINUTE, NOW + HOUR - 1, NOW + HOUR, NOW + 9 * DAY]
    await applied(store, *(add(None, due) for due in dues), every("often", NOW + 5 * MINUTE))
    await applied(store, add("held", NOW), Pause(ACME, "held"), add("gone", NOW), Cancel(ACME, "gone"))
    steps, cut = await store.forecast(ACME, NOW, NOW + HOUR, MINUTE)
    assert not cut
    assert steps == [(NOW, 3), (NOW + MINUTE, 1), (NOW + 5 * MINUTE, 1), (NOW + 59 * MINUTE, 1)]
    midnight = NOW - NOW % DAY
    days, _ = await store.forecast(ACME, NOW - DAY, NOW + 20 * DAY, DAY)
    assert days == [(midnight, 8), (midnight + 9 * DAY, 1)]
    some, _ = await store.forecast(ACME, NOW, NOW + 2, DAY)
    assert some == [(midnight, 2)]


async def test_forecast_omits_released_occurrences(store: Store) -> None:
    await applied(store, add("one", NOW), add("two", NOW + 1))
    await drain(store, NOW)
    assert await store.forecast(ACME, NOW, NOW + HOUR, MINUTE) == ([(NOW, 1)], False)
    assert await store.forecast("globex", NOW, NOW + HOUR, MINUTE) == ([], False)


async def test_count(store: Store) -> None:
    await tend(store)
    empty = await store.count(NOW)
    assert (empty.pending, empty.overdue) == (0, 0)
    await applied(store, add("a", NOW - MINUTE), add(None, NOW - 1), add("c", NOW + 1), every("d", NOW + DAY))
    await applied(store, add("e", NOW - 1, tenant="globex"), add("f", NOW + DAY), Pause(ACME, "f"))
    count = await store.count(NOW)
    assert (count.pending, count.overdue) == (5, 3)
    await drain(store)
    count = await store.count(NOW)
    assert (count.pending, count.overdue) == (2, 0)
    await applied(store, Cancel(ACME, "c"), Resume(ACME, "f"), Replace(add("d", NOW + 2)))
    assert (await store.count(NOW)).pending == 2
    assert count.bytes >= 0
