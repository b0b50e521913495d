"""A notification for 09:00 is due at 09:00 local time in every time zone, across every DST change of a year."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

import pytest

from tests.delivery.script_stage import SimulatedDelivery
from tests.delivery.services import ACME, SECOND, Services
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.people.profile import Profile
from tidings.delivery.people.users import Users
from tidings.domain.notifications.delivery import Accepted, Verdict
from tidings.domain.notifications.message import ChannelName, Rendered
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.recurrence.timezone import names
from tidings.domain.schedules.when import occurrence
from tidings.ports import Address
from tidings.testing import SimulatedClock
from tidings.timeline.memory import MemoryStore

DAYS = 366
MONTHS = 12


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
async def test_nine_o_clock_on_every_day_of_a_year_in_every_time_zone(services: Services) -> None:
    places = await people(services.users)
    ask = NotificationRequest(
        id="daily", users=tuple(places), words=InlineContent("Good morning"), channel="email", cron="0 9 * * *"
    )
    accepted = await services.acceptance.accept(ACME, ask)
    assert {one.outcome for one in accepted} == {"scheduled"}
    changes = 0
    for one in accepted:
        schedule = await services.engine.find(ACME, one.id)
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
    assert changes > 150  # this many time zones have DST changes


@pytest.mark.slow
async def test_nine_o_clock_of_one_day_in_every_time_zone(services: Services) -> None:
    places = await people(services.users)
    for day in ("2027-03-14", "2027-03-28", "2027-10-31", "2027-11-07"):
        ask = NotificationRequest(
            users=tuple(places), words=InlineContent("Good morning"), channel="email", at=f"{day}T09:00"
        )
        for one in await services.acceptance.accept(ACME, ask):
            assert one.due is not None
            wall = datetime.fromtimestamp(one.due // SECOND, UTC).astimezone(zone_of(places[one.user or ""]))
            assert wall.replace(tzinfo=None).isoformat() == f"{day}T09:00:00"


class Inboxes:
    """A provider that records when each user got something."""

    deduplicates = True

    def __init__(self, clock: SimulatedClock) -> None:
        self.times: dict[str, list[int]] = defaultdict(list)
        self._clock = clock

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del channel, address
        return True

    async def send(self, message: Rendered) -> Verdict:
        self.times[str(message.to)].append(self._clock.now())
        return Accepted(message.id)

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.slow
async def test_every_month_of_a_year_is_delivered_at_nine_in_every_time_zone() -> None:
    """Released and sent: each arrives once, at 09:00 where the user is, before, between and after both DST changes."""
    clock = SimulatedClock(int(datetime(2026, 12, 31, tzinfo=UTC).timestamp()) * SECOND)
    sent = Inboxes(clock)
    delivery = SimulatedDelivery(MemoryStore(), clock, {"all": sent})
    places = await people(delivery.services.users)
    ask = NotificationRequest(
        users=tuple(places), words=InlineContent("Hi"), channel="in_app", cron="0 9 1 * *", count=MONTHS
    )
    accepted = await delivery.services.acceptance.accept(ACME, ask)
    assert {one.outcome for one in accepted} == {"scheduled"}
    async with delivery.running():
        while (due := delivery.next_due()) is not None:
            clock.advance(max(0, due - clock.now()))
            while await delivery.release():
                pass
    offsets = 0
    for user, name in places.items():
        walls = [datetime.fromtimestamp(at // SECOND, UTC).astimezone(zone_of(name)) for at in sent.times[user]]
        assert [(wall.year, wall.month) for wall in walls] == [(2027, month + 1) for month in range(MONTHS)], name
        assert {(wall.day, wall.hour, wall.minute, wall.second) for wall in walls} == {(1, 9, 0, 0)}, name
        offsets += len({wall.utcoffset() for wall in walls}) > 1
    assert offsets > 150  # this many time zones have DST changes
