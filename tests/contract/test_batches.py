"""Large batches with mixed commands: in order, completely, with the same outcomes as single commands."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from tests.contract.conftest import OpenStore
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
    found,
    left,
    records,
    words,
)
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Outcome, Pause, Priority, Replace, Resume
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Schedule
from tidings.ports import Store

ROWS = 1000
IDS = [f"s{number}" for number in range(150)]


def mixed(random: Random, number: int) -> Iterator[Command]:
    """Commands of every kind over a few ids, so that they meet."""
    for _ in range(number):
        target = random.choice(IDS)
        kind = random.choice([Add, Add, Add, Replace, Cancel, Pause, Resume, Fire])
        if kind in {Cancel, Pause, Resume, Fire}:
            yield kind(ACME, target)
            continue
        schedule = any_schedule(random, random.choice([None, target, target]))
        yield Replace(schedule, reuse=random.random() < 0.5) if kind is Replace and schedule.id else schedule


def any_schedule(random: Random, schedule_id: str | None) -> Add:
    ahead = random.choice([-MINUTE, 0, SECOND, DAY, 40 * DAY])
    priority = random.choice(list(Priority))
    key = random.choice([None, b"a", b"b"])
    if random.random() < 0.2:
        return every(schedule_id, NOW + ahead, key=key, priority=priority, count=random.choice([1, 5]))
    bound = random.choice([None, Lateness(max_us=SECOND)])
    return add(schedule_id, NOW + ahead, key=key, priority=priority, lateness=bound)


def shown(outcomes: list[Outcome]) -> list[tuple[str, str, int | None, str | None]]:
    return [(one.id, one.outcome, one.due, one.state) for one in outcomes]


async def seen(store: Store, schedule_id: str, now: int) -> Schedule | None:
    """A schedule, but for its place on the log, which depends on the order of others."""
    schedule = await store.find(ACME, schedule_id, now)
    return schedule and msgspec.structs.replace(schedule, offset=None)


async def test_a_batch_of_a_thousand_new_schedules(store: Store) -> None:
    ids = [f"s{number}" for number in range(ROWS)]
    assert await words(store, *(add(one, NOW) for one in ids)) == ["scheduled"] * ROWS
    assert await words(store, *(add(one, NOW) for one in ids)) == ["unchanged"] * ROWS
    outcomes = await applied(store, *(add(None, NOW) for _ in ids))
    made = [outcome.id for outcome in outcomes]
    assert len(set(made)) == ROWS
    await drain(store)
    assert await left(store) == sorted(ids + made)
    assert await words(store, *(add(one, NOW) for one in ids)) == ["unchanged"] * ROWS
    assert await words(store, *(Cancel(ACME, one) for one in ids + made)) == ["already_released"] * 2 * ROWS


async def test_a_batch_of_a_thousand_with_some_repeats(store: Store) -> None:
    """Repeats of earlier batches, repeats inside the batch, and other content, all in one."""
    await applied(store, *(add(f"s{number}", NOW) for number in range(0, ROWS, 2)))
    batch: list[Command] = [add(f"s{number % 700}", NOW + (number % 7 == 0)) for number in range(ROWS)]
    expected = []
    contents = {f"s{number}": NOW for number in range(0, ROWS, 2)}
    for command in batch:
        assert isinstance(command, Add)
        assert command.id is not None
        present = contents.setdefault(command.id, command.due) if command.id in contents else None
        expected.append("scheduled" if present is None else "unchanged" if present == command.due else "rejected")
        contents.setdefault(command.id, command.due)
    assert set(expected) == {"scheduled", "unchanged", "rejected"}
    assert await words(store, *batch) == expected
    await drain(store, NOW + 1)
    assert await left(store) == sorted(contents)


@pytest.mark.slow
async def test_one_batch_gives_the_same_outcomes_as_a_thousand_batches(open_store: OpenStore) -> None:
    together, apart = await open_store(), await open_store()
    for seed in range(3):
        commands = list(mixed(Random(seed), ROWS))
        now = NOW + seed * SECOND
        one_by_one = [(await apart.apply([command], now))[0] for command in commands]
        assert shown(await together.apply(commands, now)) == shown(one_by_one)
        for schedule_id in IDS:
            assert await seen(together, schedule_id, now) == await seen(apart, schedule_id, now)
        first, second = await drain(together, now), await drain(apart, now, rows_max=33)
        assert sorted(first.lateness_us) == sorted(second.lateness_us)
        assert first.missed == second.missed
        assert await left(together) == await left(apart)


@pytest.mark.slow
async def test_a_thousand_cancels_beside_a_thousand_new_schedules(store: Store) -> None:
    old, new = [f"old{number}" for number in range(ROWS)], [f"new{number}" for number in range(ROWS)]
    await applied(store, *(add(one, NOW + DAY) for one in old[::2]), *(add(one, NOW) for one in old[1::2]))
    both: list[Command] = []
    for cancelled, added in zip(old, new, strict=True):
        both += [Cancel(ACME, cancelled), add(added, NOW)]
    assert await words(store, *both) == ["cancelled", "scheduled"] * ROWS
    await drain(store, NOW + DAY)
    assert await left(store) == sorted(new)


@pytest.mark.slow
async def test_nothing_is_lost_over_many_batches(store: Store) -> None:
    """Conservation: what was scheduled and not cancelled is released or missed, in the end."""
    random = Random(42)
    expected: set[str] = set()
    released = missed = 0
    for step in range(10):
        now = NOW + step * SECOND
        bounds = [None, Lateness(max_us=SECOND)]
        batch = [
            add(
                None,
                now + random.randrange(20 * SECOND),
                lateness=random.choice(bounds),
                key=random.randbytes(2),
            )
            for _ in range(300)
        ]
        made = [outcome.id for outcome in await applied(store, *batch, now=now)]
        cancels = random.sample(made, 50)
        gone = await words(store, *(Cancel(ACME, one) for one in cancels), now=now)
        assert set(gone) == {"cancelled"}
        expected |= set(made) - set(cancels)
        if step % 3 == 2:
            drained = await drain(store, now, rows_max=64)
            released, missed = released + len(drained.lateness_us), missed + drained.missed.total()
    drained = await drain(store, NOW + MINUTE, rows_max=64)
    released, missed = released + len(drained.lateness_us), missed + drained.missed.total()
    assert released + missed == len(expected)
    assert missed > 0
    kept = await left(store)
    assert len(kept) == len(set(kept)) == released
    assert set(kept) <= expected
    assert (await store.count(NOW + MINUTE)).pending == 0
    for one in expected - set(kept):
        assert (await found(store, one, NOW + MINUTE)).state == "missed"
    assert all(record.due <= record.released for record in await records(store))


async def test_a_repeated_batch_returns_the_present_state_of_each_schedule(store: Store) -> None:
    """Schedules due soon, later and much later, released or changed ones, and those of another tenant."""
    dues = [0, SECOND, 20 * MINUTE, DAY, DAY + 1, 3 * DAY, 40 * DAY, 40 * DAY + 1]
    batch = [add(f"s{number}", NOW + due) for number, due in enumerate(dues * 20)]
    outcomes = await applied(store, *batch)
    assert {outcome.outcome for outcome in outcomes} == {"scheduled"}
    theirs = [add(one.id, one.due, tenant="globex") for one in batch[:40]]
    assert {outcome.outcome for outcome in await applied(store, *theirs)} == {"scheduled"}
    await drain(store, NOW)
    changed: list[Command] = [
        Cancel(ACME, "s11"),
        Pause(ACME, "s12"),
        Replace(add("s13", NOW + 2 * DAY)),
        Fire(ACME, "s14"),
        Cancel(ACME, "s15"),
    ]
    await applied(store, *changed)
    others = [add("new", NOW + DAY), add("s21", NOW + 7 * DAY)]
    again = await applied(store, *(one for one in reversed(batch) if one.id != "s21"), *others)
    outcomes_by_id = {outcome.id: (outcome.outcome, outcome.due, outcome.state or "pending") for outcome in again}
    for one in batch:
        assert one.id is not None
        state = "released" if one.due == NOW else "pending"
        if one.id not in {"s11", "s12", "s13", "s14", "s15", "s21"}:
            assert outcomes_by_id[one.id] == ("unchanged", one.due, state)
    assert outcomes_by_id["s11"] == ("unchanged", NOW + DAY, "cancelled")
    assert outcomes_by_id["s12"] == ("unchanged", NOW + DAY + 1, "paused")
    assert outcomes_by_id["s13"][0] == "rejected"
    assert outcomes_by_id["s14"] == ("unchanged", NOW, "pending")
    assert outcomes_by_id["s15"] == ("unchanged", NOW + 40 * DAY + 1, "cancelled")
    assert (outcomes_by_id["new"][0], outcomes_by_id["s21"][0]) == ("scheduled", "rejected")
    assert {outcome.outcome for outcome in await applied(store, *theirs)} == {"unchanged"}
