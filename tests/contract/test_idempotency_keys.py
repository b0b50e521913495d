"""Idempotency keys: the same request answers the same, and does nothing twice."""

import pytest

from tests.contract.conftest import OpenStore
from tests.contract.factories import ACME, DAY, HOUR, NOW, SECOND, add, applied, drain, left, state, tend
from tidings.domain.errors import KeyReused
from tidings.domain.schedules.command import Cancel, Command
from tidings.ports import IdempotencyKey, Store

IDEMPOTENCY = IdempotencyKey(ACME, "key-1", b"digest of the body")


async def test_a_repeated_request_returns_the_first_outcomes_and_changes_nothing(store: Store) -> None:
    commands: list[Command] = [add(None, NOW), add("one", NOW), Cancel(ACME, "nobody")]
    first = await store.apply(commands, NOW, IDEMPOTENCY)
    assert [one.outcome for one in first] == ["scheduled", "scheduled", "unknown"]
    await drain(store)
    assert await store.apply(commands, NOW + HOUR, IDEMPOTENCY) == first
    await drain(store, NOW + HOUR)
    assert await left(store) == sorted([first[0].id, "one"])


async def test_a_repeated_request_returns_the_first_outcomes_after_later_changes(store: Store) -> None:
    first = await store.apply([add("one", NOW + HOUR)], NOW, IDEMPOTENCY)
    await applied(store, Cancel(ACME, "one"))
    assert await store.apply([add("one", NOW + HOUR)], NOW, IDEMPOTENCY) == first
    assert await state(store, "one") == "cancelled"


async def test_a_key_with_another_body_is_rejected_and_changes_nothing(store: Store) -> None:
    await store.apply([add("one")], NOW, IDEMPOTENCY)
    with pytest.raises(KeyReused, match="this Idempotency-Key was used with another body: use a new key"):
        await store.apply([add("two")], NOW, IdempotencyKey(ACME, "key-1", b"another body"))
    assert await state(store, "two") is None
    assert await store.apply([], NOW, IDEMPOTENCY) != []


async def test_keys_belong_to_tenants(store: Store) -> None:
    await store.apply([add("one")], NOW, IDEMPOTENCY)
    outcomes = await store.apply([add("one", tenant="globex")], NOW, IdempotencyKey("globex", "key-1", b"another"))
    assert [one.outcome for one in outcomes] == ["scheduled"]


async def test_other_keys_are_other_requests(store: Store) -> None:
    (first,) = await store.apply([add()], NOW, IDEMPOTENCY)
    (second,) = await store.apply([add()], NOW, IdempotencyKey(ACME, "key-2", IDEMPOTENCY.body))
    assert first.id != second.id


@pytest.mark.parametrize("tended", [False, True])
async def test_an_idempotency_key_is_kept_for_its_retention(open_store: OpenStore, tended: bool) -> None:
    store = await open_store(idempotency_retention_us=DAY)
    (first,) = await store.apply([add()], NOW, IDEMPOTENCY)
    if tended:
        await tend(store, NOW + DAY - SECOND)
    assert await store.apply([add()], NOW + DAY - SECOND, IDEMPOTENCY) == [first]
    if tended:
        await tend(store, NOW + DAY + SECOND)
    (second,) = await store.apply([add()], NOW + DAY + SECOND, IdempotencyKey(ACME, "key-1", b"another body"))
    assert second.outcome == "scheduled"
    assert second.id != first.id


async def test_the_retention_of_an_idempotency_key_starts_with_the_first_request(open_store: OpenStore) -> None:
    store = await open_store(idempotency_retention_us=DAY)
    (first,) = await store.apply([add()], NOW, IDEMPOTENCY)
    assert await store.apply([add()], NOW + DAY - SECOND, IDEMPOTENCY) == [first]
    (second,) = await store.apply([add()], NOW + DAY + SECOND, IDEMPOTENCY)
    assert second.id != first.id


@pytest.mark.parametrize("tended", [False, True])
async def test_an_idempotency_key_expires_exactly_at_its_retention(open_store: OpenStore, tended: bool) -> None:
    store = await open_store(idempotency_retention_us=DAY)
    (first,) = await store.apply([add()], NOW, IDEMPOTENCY)
    assert await store.apply([add()], NOW + DAY - 1, IDEMPOTENCY) == [first]
    if tended:
        await tend(store, NOW + DAY)
    (second,) = await store.apply([add()], NOW + DAY, IDEMPOTENCY)
    assert second.id != first.id
