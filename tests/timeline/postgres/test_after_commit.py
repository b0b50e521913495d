"""A committed change is answered, even if a read after the commit fails."""

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add, drain, every, left, release, state
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import StoreError
from tidings.domain.schedules.command import Cancel, Fire
from tidings.testing import SimulatedClock
from tidings.timeline.postgres.database import Contended
from tidings.timeline.postgres.group_release import NextDue
from tidings.timeline.postgres.lane import RecurringRelease
from tidings.timeline.postgres.names import Names
from tidings.timeline.postgres.store import PostgresStore

LEASE_US = 3_600 * SECOND


async def failing(*_: object, **__: object) -> None:
    raise Contended("this call conflicted with another in PostgreSQL: try again")


async def refused(*_: object, **__: object) -> None:
    raise StoreError("PostgreSQL took too long and nothing was changed")


@pytest.fixture
async def store(open_store: OpenStore) -> PostgresStore:
    """A store that only the test uses."""
    store = await open_store(SimulatedClock(), lanes=1)
    await store.acquire(0, LEASE_US)
    await store._watch.stop()
    return store


async def test_a_cancel_is_answered_though_the_next_due_time_cannot_be_looked_up(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply([add("one", NOW + SECOND), add("two", NOW + 2 * SECOND)], NOW)
    with monkeypatch.context() as patch:
        patch.setattr(NextDue, "look", refused)
        (outcome,) = await store.apply([Cancel(ACME, "one")], NOW)
    assert outcome.outcome == "cancelled"
    assert await state(store, "one") == "cancelled"
    await drain(store, NOW + 2 * SECOND)
    assert await left(store) == ["two"]


async def test_a_fire_is_applied_once(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.apply([every("one", start=NOW)], NOW)
    await drain(store)
    await store.apply([add("first", NOW - SECOND)], NOW)
    with monkeypatch.context() as patch:
        patch.setattr(NextDue, "look", failing)
        await store.apply([Cancel(ACME, "first"), Fire(ACME, "one")], NOW)
    await drain(store)
    assert await left(store) == ["one", "one"]


async def test_a_release_is_reported_even_if_the_read_after_it_fails(
    store: PostgresStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await open_store(SimulatedClock())
    await other.apply([add("one"), every("two", start=NOW)], NOW)
    monkeypatch.setattr(NextDue, "look", failing)
    await store._context.names.load()
    await other.apply([add("three", topic="new")], NOW)
    store._context.next_due.offer(0, NOW)
    monkeypatch.setattr(Names, "load", failing)
    done = await release(store)
    assert len(done.lateness_us) == 3
    assert done.topics == {(ACME, "greetings")}


async def test_a_release_is_reported_even_if_recurring_schedules_fail_after_it(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply([add("one"), every("two", start=NOW)], NOW)
    with monkeypatch.context() as patch:
        patch.setattr(RecurringRelease, "release", failing)
        done = await release(store)
        assert len(done.lateness_us) == 1
        assert done.more, "the rest waits"
        with pytest.raises(Contended):
            await release(store)
    assert len((await release(store)).lateness_us) == 1
    assert await left(store) == ["one", "two"]
