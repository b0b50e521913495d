"""Tenants are isolated: the same id is two schedules, and no tenant sees or changes those of another."""

from collections.abc import Callable

import pytest

from tests.contract.factories import (
    ACME,
    MINUTE,
    NOW,
    add,
    answer,
    applied,
    drain,
    every,
    found,
    left,
    listed,
    records,
    state,
    words,
)
from tidings.domain.schedules.command import Cancel, Command, Fire, Pause, Replace, Resume
from tidings.domain.schedules.schedule import Query
from tidings.ports import Store

GLOBEX = "globex"
CHANGES: tuple[Callable[[str, str], Command], ...] = (Cancel, Pause, Resume, Fire)


async def test_the_same_id_is_two_schedules(store: Store) -> None:
    mine, theirs = add("one", NOW, value=b"mine"), add("one", NOW, value=b"theirs", tenant=GLOBEX)
    assert await words(store, mine, theirs) == ["scheduled", "scheduled"]
    assert await words(store, Cancel(ACME, "one")) == ["cancelled"]
    assert await state(store, "one", tenant=GLOBEX) == "pending"
    await drain(store)
    assert await records(store) == []
    assert [one.message for one in await records(store, tenant=GLOBEX)] == [theirs.message]


async def test_the_same_id_and_content_is_not_a_repeat(store: Store) -> None:
    assert await words(store, add("one"), add("one", tenant=GLOBEX), add("one")) == [
        "scheduled",
        "scheduled",
        "unchanged",
    ]
    await drain(store)
    assert await words(store, add("one"), add("one", tenant="initech")) == ["unchanged", "scheduled"]


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("schedule_id", ["one", "often", None], ids=["one", "often", "made"])
async def test_another_tenants_schedule_is_unknown(
    store: Store, kind: Callable[[str, str], Command], schedule_id: str | None
) -> None:
    """Also with a generated id, which contains its position."""
    outcomes = await applied(store, add("one", NOW + MINUTE), every("often", NOW + MINUTE), add(None, NOW + MINUTE))
    target = schedule_id or outcomes[2].id
    before = await found(store, target)
    assert (await answer(store, kind(GLOBEX, target))).outcome == "unknown"
    assert await found(store, target) == before
    assert await store.find(GLOBEX, target, NOW) is None
    assert await store.history(GLOBEX, target, NOW) == []


async def test_another_tenants_finished_schedule_is_unknown(store: Store) -> None:
    made = (await answer(store, add())).id
    await applied(store, add("one"))
    await drain(store)
    for target in ("one", made):
        assert (await answer(store, Cancel(GLOBEX, target))).outcome == "unknown"
        assert await store.find(GLOBEX, target, NOW) is None
        assert await store.history(GLOBEX, target, NOW) == []


async def test_replace_of_another_tenants_id_creates_a_schedule(store: Store) -> None:
    made = (await answer(store, add(None, NOW + MINUTE))).id
    await applied(store, add("one", NOW + MINUTE))
    assert await words(store, Replace(add("one", NOW, tenant=GLOBEX))) == ["scheduled"]
    assert await words(store, Replace(add(made, NOW, tenant=GLOBEX))) == ["unknown"], "only the store makes such ids"
    for target in ("one", made):
        assert (await found(store, target)).due == NOW + MINUTE
    await drain(store)
    assert await left(store) == []
    assert await left(store, tenant=GLOBEX) == ["one"]


async def test_reads_return_only_the_tenants_own_schedules(store: Store) -> None:
    await applied(store, add("a"), add("b", tenant=GLOBEX), add("c", NOW + 1), add("d", NOW + 1, tenant=GLOBEX))
    await drain(store)
    for tenant, expected in ((ACME, ["c", "a"]), (GLOBEX, ["d", "b"]), ("initech", [])):
        assert [one.id for one in await listed(store, Query(limit=1), tenant=tenant)] == expected
        assert [one.tenant for one in await listed(store, Query(), tenant=tenant)] == [tenant] * len(expected)
        assert await left(store, tenant=tenant) == expected[1:]
        steps, _ = await store.forecast(tenant, NOW, NOW + MINUTE, MINUTE)
        assert steps == [(NOW, 1)][: len(expected)]


@pytest.mark.one_lane("an id chooses the lane, and the lane the partition")
async def test_topics_of_one_name_are_separate(store: Store) -> None:
    await applied(
        store,
        *(add(None, key=b"k") for _ in range(5)),
        *(add(None, key=b"k", tenant=GLOBEX) for _ in range(3)),
    )
    drained = await drain(store)
    assert drained.topics == {(ACME, "greetings"), (GLOBEX, "greetings")}
    sizes = {}
    for tenant in (ACME, GLOBEX):
        (topic,) = await store.topics(tenant)
        sizes[tenant] = max(topic.next)
    assert sizes == {ACME: 5, GLOBEX: 3}
    assert await store.topics("initech") == []


async def test_a_cursor_does_not_reach_another_tenant(store: Store) -> None:
    await applied(
        store, *(add(None, NOW + n) for n in range(4)), *(add(None, NOW + n, tenant=GLOBEX) for n in range(4))
    )
    cursor = (await store.page(ACME, Query(limit=2), NOW)).cursor
    theirs = await listed(store, Query(after=cursor), tenant=GLOBEX)
    assert {one.tenant for one in theirs} <= {GLOBEX}
