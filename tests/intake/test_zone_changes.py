"""The rules of a zone change several times in a row, on every store."""

from collections.abc import Iterator

import pytest

from tests.contract.conftest import open_store, store  # noqa: F401
from tests.contract.factories import answer, drain, found, numbers, records
from tests.contract.test_rules import scheduled
from tests.intake.test_rule_changes import forget, renew, revision, say
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_rule
from tidings.domain.schedules.iso8601 import parse_instant
from tidings.domain.schedules.when import When
from tidings.ports import Store

ACCEPTED = parse_instant("2026-11-16T12:00:00Z")
FIRST, SECOND, THIRD = (parse_instant(f"2026-11-{day}T12:35:19Z") for day in (16, 17, 18))
DAILY = read_rule("FREQ=DAILY;BYHOUR=13;BYMINUTE=35;BYSECOND=19;COUNT=3", ACCEPTED, Terms(zone="Europe/Berlin"))
CRON = read_cron("19 35 13 * * *", ACCEPTED, Terms(zone="Europe/Berlin", count=3))


@pytest.fixture
def zones_now(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as now:
        yield now
    forget()


@pytest.mark.parametrize("when", [DAILY, CRON])
@pytest.mark.parametrize("way", [["Europe/Helsinki"], ["America/New_York", "Asia/Tokyo"]])
async def test_two_changes_of_zone_rules_release_nothing_twice(
    store: Store,  # noqa: F811
    zones_now: pytest.MonkeyPatch,
    when: When,
    way: list[str],
) -> None:
    """The first was released at 12:35:19Z. By the intermediate rules it is not an occurrence, and it stays handled."""
    await answer(store, scheduled(when, policy="fire_all"), now=ACCEPTED)
    await drain(store, FIRST)
    for place in way:
        say(zones_now, place)
        await revision(store, now=FIRST).zones()
        assert (await found(store, "one", FIRST)).due > FIRST
    renew(zones_now)
    await revision(store, now=FIRST).zones()
    schedule = await found(store, "one", FIRST)
    assert (schedule.occurrence, schedule.due) == (2, SECOND)
    await drain(store, THIRD + 9 * (THIRD - SECOND))
    assert [record.due for record in await records(store)] == [FIRST, SECOND, THIRD]
    assert await numbers(store, "one") == [1, 2, 3]
