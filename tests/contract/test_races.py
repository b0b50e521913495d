"""Changes and releases at the same time: the second one gets a correct answer."""

import asyncio
from collections.abc import Sequence

from tests.contract.factories import ACME, NOW, add, applied, drain, every, left, records
from tidings.domain.schedules.command import Cancel, Command, Outcome, Pause, Replace
from tidings.ports import Store

ROWS = 400
IDS = [f"s{number}" for number in range(ROWS)]


async def change(store: Store, commands: Sequence[Command]) -> dict[str, Outcome]:
    """Apply commands a few at a time, so that releases come between."""
    outcomes: list[Outcome] = []
    for start in range(0, len(commands), 8):
        outcomes += await store.apply(commands[start : start + 8], NOW)
    return {outcome.id: outcome for outcome in outcomes}


async def test_cancelled_or_released_but_never_both(store: Store) -> None:
    await applied(store, *(add(one) for one in IDS))
    outcomes, _ = await asyncio.gather(
        change(store, [Cancel(ACME, one) for one in reversed(IDS)]), drain(store, rows_max=16)
    )
    await drain(store)
    cancelled = {one for one, outcome in outcomes.items() if outcome.outcome == "cancelled"}
    late = {one for one, outcome in outcomes.items() if outcome.outcome == "already_released"}
    assert cancelled | late == set(IDS)
    assert await left(store) == sorted(late)


async def test_replaced_or_released_but_never_both(store: Store) -> None:
    await applied(store, *(add(one, value=b"old") for one in IDS))
    replacements = [Replace(add(one, value=b"new")) for one in reversed(IDS)]
    outcomes, _ = await asyncio.gather(change(store, replacements), drain(store, rows_max=16))
    await drain(store)
    old, new = add(value=b"old").message, add(value=b"new").message
    expected = {one: (new, 2) if outcome.outcome == "replaced" else (old, 1) for one, outcome in outcomes.items()}
    kept = await records(store)
    assert len(kept) == ROWS
    assert {record.id: (record.message, record.generation) for record in kept} == expected


async def test_nothing_is_released_after_a_pause(store: Store) -> None:
    await applied(store, *(add(one) for one in IDS))
    outcomes, _ = await asyncio.gather(
        change(store, [Pause(ACME, one) for one in reversed(IDS)]), drain(store, rows_max=16)
    )
    await drain(store)
    held = {one for one, outcome in outcomes.items() if outcome.outcome == "paused"}
    assert await left(store) == sorted(set(IDS) - held)


async def test_a_recurrence_ends_where_it_was_cancelled(store: Store) -> None:
    """Records released before the cancel stay; nothing follows them, and no number occurs twice."""
    names = IDS[:40]
    await applied(store, *(every(name, NOW - 20_000_000) for name in names))
    outcomes, _ = await asyncio.gather(change(store, [Cancel(ACME, name) for name in names]), drain(store, rows_max=5))
    assert {outcome.outcome for outcome in outcomes.values()} == {"cancelled"}
    before = [record.occurrence for record in await records(store)]
    assert len(before) == len(set(before))
    await drain(store, NOW + 60_000_000)
    assert [record.occurrence for record in await records(store)] == before


async def test_two_releases_at_once_release_nothing_twice(store: Store) -> None:
    await applied(store, *(add(one) for one in IDS))
    await asyncio.gather(*(drain(store, rows_max=7) for _ in range(4)))
    assert await left(store) == sorted(IDS)


async def test_two_callers_with_one_id_make_one_schedule(store: Store) -> None:
    answers = await asyncio.gather(*(store.apply([add(one)], NOW) for one in IDS[:20] for _ in range(5)))
    words = sorted(outcome.outcome for answer in answers for outcome in answer)
    assert words == ["scheduled"] * 20 + ["unchanged"] * 80
    await drain(store)
    assert await left(store) == sorted(IDS[:20])
