"""Revision: when a calendar or the rules of a zone change, what is pending by them is computed again."""

from collections.abc import Callable
from typing import NamedTuple

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.facts import Listener, Revised
from tidings.domain.recurrence import zones
from tidings.domain.revising import Pending, by_calendar, by_zone, calendar_of, zone_of
from tidings.domain.schedule import Calendar, KeptZone
from tidings.ports import Revise, Standing

SLICE_ROWS = 500
CALENDARS_MAX = 1_000


class Report(NamedTuple):
    """What a revision did: how many occurrences moved, and the zones whose rules changed."""

    moved: int
    zones: tuple[str, ...] = ()


class Revision:
    """Walks over the standing schedules in slices, so that releases go on between them."""

    def __init__(self, store: Standing, clock: Clock, tell: Listener, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell
        self._wake = wake

    async def put_calendar(self, tenant: str, name: str, days: tuple[int, ...]) -> Report:
        """Keep a calendar, and apply it to what is pending by it."""
        known = {calendar.name: calendar.days for calendar in await self._store.calendars(tenant)}
        if name not in known and len(known) >= CALENDARS_MAX:
            raise Invalid("calendar", f"there are {CALENDARS_MAX:,} already: drop one that is not needed")
        await self._store.put_calendar(tenant, Calendar(name, days, self._clock.now()))
        return Report(0) if known.get(name) == days else await self._apply_days(tenant, name, days)

    async def drop_calendar(self, tenant: str, name: str) -> Report | None:
        """Forget a calendar; what is pending by it goes on without. None if there is no such calendar."""
        if not await self._store.drop_calendar(tenant, name):
            return None
        return await self._apply_days(tenant, name, ())

    async def zones(self) -> Report:
        """Apply the rules of zones that are not as they were when something pending was computed by them."""
        changed = [zone for zone in await self._store.zones() if zone.content != zones.content_of(zone.name)]
        if not changed:
            return Report(0)
        versions = ", ".join(sorted({zone.version for zone in changed}))
        cause = f"tzdata {versions} to {zones.VERSION}"
        moved = await self._walk(_by_zones(changed), cause)
        for zone in changed:
            await self._store.keep_zone(KeptZone(zone.name, zones.VERSION, zones.content_of(zone.name)))
        return Report(moved, tuple(zone.name for zone in changed))

    async def _apply_days(self, tenant: str, name: str, days: tuple[int, ...]) -> Report:
        def revise(owner: str, pending: Pending, _tzdata: str | None) -> Pending | None:
            if owner != tenant or calendar_of(pending.when) != name:
                return None
            return by_calendar(pending, days, self._clock.now())

        return Report(await self._walk(revise, f"calendar {name}"))

    async def _walk(self, revise: Revise, cause: str) -> int:
        cursor: str | None = None
        moved = 0
        while True:
            some = await self._store.revise(cursor, SLICE_ROWS, revise, cause, self._clock.now())
            moved += len(some.moved)
            self._wake()
            cursor = some.cursor
            if cursor is None:
                break
        self._tell(Revised(self._clock.now(), cause, moved))
        return moved


def _by_zones(changed: list[KeptZone]) -> Revise:
    aliases = {zone.name: zones.recall(zone.name, zone.content) for zone in changed}

    def revise(_tenant: str, pending: Pending, tzdata: str | None) -> Pending | None:
        zone = zone_of(pending.when)
        if zone not in aliases or tzdata == zones.VERSION:
            return None
        return by_zone(pending, aliases[zone])

    return revise
