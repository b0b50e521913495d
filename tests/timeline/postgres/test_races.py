"""Changes against releases, on several connections at once: the second one gets a correct answer."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add, drain, every, left, records, release
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.schedules.command import Cancel, Command, Outcome, Replace
from tidings.testing import SimulatedClock
from tidings.timeline.postgres.store import PostgresStore

ROWS = 2_000
LEASE_US = 3_600 * SECOND
CALLERS = 4


async def change(store: PostgresStore, commands: list[Command], size: int = 5) -> dict[str, str]:
    """Apply commands a few at a time over several connections."""
    parts = iter([commands[start : start + size] for start in range(0, len(commands), size)])
    outcomes: list[Outcome] = []

    async def caller() -> None:
        for part in parts:
            outcomes.extend(await store.apply(part, NOW))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return {outcome.id: outcome.outcome for outcome in outcomes}


async def two_nodes(open_store: OpenStore, lanes: int) -> tuple[PostgresStore, PostgresStore]:
    """A node that releases and one that accepts changes."""
    owner, other = [await open_store(SimulatedClock(), lanes=lanes) for _ in range(2)]
    await owner.acquire(0, LEASE_US)
    return owner, other


@pytest.mark.parametrize("lanes", [1, 4])
async def test_never_both_cancelled_and_released(open_store: OpenStore, lanes: int) -> None:
    owner, other = await two_nodes(open_store, lanes)
    ids = [f"s{number}" for number in range(ROWS)]
    await other.apply([add(one) for one in ids], NOW)
    outcomes, _ = await asyncio.gather(
        change(other, [Cancel(ACME, one) for one in reversed(ids)]), drain(owner, rows_max=16)
    )
    await drain(owner)
    words = Counter(outcomes.values())
    assert words.keys() <= {"cancelled", "already_released"}
    assert await left(owner) == sorted(one for one in ids if outcomes[one] == "already_released")
    assert min(words.values()) > 0, f"they did not meet: {words}"


async def test_either_the_old_or_the_new_schedule_is_released(open_store: OpenStore) -> None:
    owner, other = await two_nodes(open_store, 4)
    ids = [f"s{number}" for number in range(ROWS)]
    await other.apply([add(one, value=b"old") for one in ids], NOW)
    outcomes, _ = await asyncio.gather(
        change(other, [Replace(add(one, value=b"new")) for one in reversed(ids)]), drain(owner, rows_max=16)
    )
    await drain(owner)
    kept = {record.id: record.generation for record in await records(owner)}
    assert len(await records(owner)) == len(kept) == ROWS
    assert kept == {one: 2 if outcomes[one] == "replaced" else 1 for one in ids}


async def test_a_recurrence_ends_where_it_was_cancelled(open_store: OpenStore) -> None:
    owner, other = await two_nodes(open_store, 1)
    ids = [f"s{number}" for number in range(60)]
    await other.apply([every(one, NOW - 20 * SECOND) for one in ids], NOW)
    outcomes, _ = await asyncio.gather(change(other, [Cancel(ACME, one) for one in ids], 1), drain(owner, rows_max=5))
    assert set(outcomes.values()) == {"cancelled"}
    before = sorted(record.occurrence for record in await records(owner))
    assert len(before) == len(set(before))
    await drain(owner, NOW + 60 * SECOND)
    assert sorted(record.occurrence for record in await records(owner)) == before


async def test_two_nodes_with_one_id_make_one_schedule(open_store: OpenStore) -> None:
    owner, other = await two_nodes(open_store, 4)
    ids = [f"s{number}" for number in range(300)]

    async def send(store: PostgresStore, order: list[str]) -> list[Outcome]:
        parts = [order[start : start + 50] for start in range(0, len(order), 50)]
        return [outcome for part in parts for outcome in await store.apply([add(one) for one in part], NOW)]

    answers = await asyncio.gather(send(owner, ids), send(other, ids[::-1]), send(other, ids), send(owner, ids[::-1]))
    words = Counter(outcome.outcome for answer in answers for outcome in answer)
    assert words == {"scheduled": 300, "unchanged": 900}
    await drain(owner)
    assert await left(owner) == sorted(ids)


async def test_a_row_that_is_being_changed_does_not_delay_the_others(open_store: OpenStore) -> None:
    owner, other = await two_nodes(open_store, 1)
    await other.apply([add("held"), add("free")], NOW)
    async with other._pool.transaction() as connection:
        await connection.execute(
            owner._context.inside("SELECT 1 FROM tidings.timeline WHERE id = 'held' FOR UPDATE").encode()
        )
        done = await release(owner)
        assert len(done.lateness_us) == 1
        assert await left(owner) == ["free"]
    await drain(owner)
    assert await left(owner) == ["free", "held"]


async def test_readers_of_the_log_never_see_a_gap(open_store: OpenStore) -> None:
    owner, other = await two_nodes(open_store, 1)
    ids = [f"s{number}" for number in range(ROWS)]
    await other.apply([add(one, key=b"k") for one in ids], NOW)
    draining = asyncio.create_task(drain(owner, rows_max=32))
    while not draining.done():
        for partition in range(other.partitions):
            offsets = [record.offset for record in await other.read(ACME, "greetings", partition, 0, 10_000)]
            assert offsets == list(range(len(offsets)))
    await draining


async def test_no_topic_is_known_before_its_tenant(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node creates both during the read: releasing records of the topic needs the name of its tenant."""
    ours, other = [await open_store(SimulatedClock(), lanes=1) for _ in range(2)]
    read = ours._context.pools.first.read

    async def interrupted(*call: Any) -> list[Any]:
        found = await read(*call)
        await other.apply([add("one", tenant="new", topic="news")], NOW)
        return found

    monkeypatch.setattr(ours._context.pools.first, "read", interrupted)
    names = ours._context.names
    for _ in range(2):
        await names.load()
        assert all(tenant < len(names.tenant_names) for tenant, _ in names.topic_names)
    assert names.destination(0) == ("new", "news")
