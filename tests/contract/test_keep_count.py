"""`keep_count` where there is no count to keep is rejected, and changes nothing."""

import pytest

from tests.contract.factories import ACME, DAY, HOUR, NOW, add, answer, drain, found
from tests.contract.test_rules import hourly, scheduled
from tidings.domain.schedules.command import Cancel, Replace
from tidings.ports import Store


@pytest.mark.parametrize("end", ["ended", "cancelled"])
async def test_keep_count_of_a_finished_schedule_is_rejected(store: Store, end: str) -> None:
    await answer(store, scheduled(hourly(";COUNT=2"), policy="fire_all"))
    await drain(store, NOW if end == "cancelled" else NOW + DAY)
    if end == "cancelled":
        await answer(store, Cancel(ACME, "one"))
    new = scheduled(hourly(";COUNT=5", "2026-11-25T09:00:00"))
    outcome = await answer(store, Replace(new, reuse=True, keep_count=True), now=NOW + DAY)
    assert (outcome.outcome, outcome.field) == ("rejected", "keep_count")
    assert "the schedule under this id has finished" in (outcome.reason or "")
    assert (await found(store, "one", NOW + DAY)).state == end
    assert (await answer(store, Replace(new, reuse=True), now=NOW + DAY)).outcome == "scheduled"


@pytest.mark.parametrize("known", [True, False])
async def test_keep_count_of_a_one_shot_is_rejected(store: Store, known: bool) -> None:
    if known:
        await answer(store, scheduled(hourly()))
        await drain(store, NOW)
    outcome = await answer(store, Replace(add("one", due=NOW + 9 * HOUR), keep_count=True))
    assert (outcome.outcome, outcome.field) == ("rejected", "keep_count")
    assert "goes with a recurring one" in (outcome.reason or "")
    if known:
        assert (await found(store, "one")).occurrence == 2
    else:
        assert await store.find(ACME, "one", NOW) is None
