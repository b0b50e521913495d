"""Nine o'clock stays nine o'clock, for users in every zone, across every clock change of a year."""

from datetime import UTC, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

import pytest

from tests.delivery.office import ACME, SECOND, Office
from tidings.delivery.asking import Notify
from tidings.delivery.profile import Profile
from tidings.delivery.users import Users
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.recurrence.timezone import names
from tidings.domain.schedules.when import occurrence

DAYS = 366


def zone_of(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


async def people(users: Users) -> dict[str, str]:
    """A user in every zone, by id."""
    places = {f"u{number:03}": name for number, name in enumerate(sorted(names()))}
    for user, zone in places.items():
        await users.put(ACME, user, Profile(email="x@example.com", zone=zone))
    return places


@pytest.mark.slow
async def test_every_day_of_a_year_in_every_zone(office: Office) -> None:
    places = await people(office.users)
    ask = Notify(
        id="daily", users=tuple(places), words=InlineContent("Good morning"), channel="email", cron="0 9 * * *"
    )
    told = await office.notifying.accept(ACME, ask)
    assert {one.outcome for one in told} == {"scheduled"}
    changes = 0
    for one in told:
        schedule = await office.engine.find(ACME, one.id)
        assert schedule is not None
        assert schedule.when is not None
        zone = zone_of(places[one.user or ""])
        shown = []
        for number in range(1, DAYS + 1):
            at = occurrence(schedule.when, number)
            assert at is not None
            shown.append(datetime.fromtimestamp(at // SECOND, UTC).astimezone(zone))
        assert {(wall.hour, wall.minute, wall.second) for wall in shown} == {(9, 0, 0)}, zone
        days = [wall.date() for wall in shown]
        assert days == [days[0] + timedelta(days=number) for number in range(DAYS)], zone
        changes += len({wall.utcoffset() for wall in shown}) > 1
    assert changes > 150  # so many zones change their clocks


@pytest.mark.slow
async def test_one_morning_in_every_zone(office: Office) -> None:
    places = await people(office.users)
    for day in ("2027-03-14", "2027-03-28", "2027-10-31", "2027-11-07"):
        ask = Notify(users=tuple(places), words=InlineContent("Good morning"), channel="email", at=f"{day}T09:00")
        for one in await office.notifying.accept(ACME, ask):
            assert one.due is not None
            wall = datetime.fromtimestamp(one.due // SECOND, UTC).astimezone(zone_of(places[one.user or ""]))
            assert wall.replace(tzinfo=None).isoformat() == f"{day}T09:00:00"
