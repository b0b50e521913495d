"""Recomputes pending occurrences when a calendar or the rules of a time zone (tzdata) change."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidings.clock import Clock
from tidings.domain.facts import Listener, Revised
from tidings.domain.recurrence import timezone
from tidings.domain.recurrence.rule import Cron, Rule
from tidings.domain.schedules.reschedule import (
    CalendarChange,
    Pending,
    Revise,
    Seen,
    by_calendar,
    by_zone,
    calendar_of,
    zone_of,
)
from tidings.domain.schedules.schedule import Calendar, KeptZone
from tidings.ports import CalendarStore

SLICE_ROWS = 500

logger = logging.getLogger("tidings.revision")


class Report(NamedTuple):
    """The result of a recomputation: how many occurrences moved, and the zones where schedules followed older rules."""

    moved: int
    zones: tuple[str, ...] = ()


class RuleChanges:
    """Recomputes recurring schedules in slices, so that releases continue between them."""

    def __init__(self, store: CalendarStore, clock: Clock, listener: Listener, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._listener = listener
        self._wake = wake

    async def put_calendar(self, tenant: str, name: str, days: tuple[int, ...]) -> Report:
        """Store a calendar, and recompute the schedules that use it."""
        change = await self._store.put_calendar(tenant, Calendar(name, days, self._clock.now()))
        return await self._apply([change])

    async def drop_calendar(self, tenant: str, name: str) -> Report | None:
        """Delete a calendar, and recompute the schedules that used it. None if there is no such calendar."""
        change = await self._store.drop_calendar(tenant, name)
        return None if change is None else await self._apply([change])

    async def catch_up(self) -> None:
        """Finish interrupted recomputations, and apply the rules of zones that have changed since the last start."""
        changes = await self._store.unsettled()
        if changes:
            await self._apply(changes)
        if _stale(await self._store.zones()):
            await self.zones()

    async def zones(self) -> Report:
        """Recompute every schedule that does not follow the current rules of its zone."""
        kept = await self._store.zones()
        await self._recall(kept)
        stale = _stale(kept)
        versions = ", ".join(sorted({zone.version for zone in stale} - {timezone.VERSION}))
        seen: set[str] = set()
        moved = await self._walk(
            self._by_zone(seen), f"tzdata {versions} to {timezone.VERSION}" if versions else "tzdata"
        )
        for zone in stale:
            await self._store.forget_zone(zone, self._clock.now())
        return Report(moved, tuple(sorted(seen)))

    async def _recall(self, kept: Sequence[KeptZone]) -> None:
        """Load the older rules of changed zones, and store the current ones before any schedule follows them."""
        for zone in _stale(kept):
            timezone.recall(zone.name, zone.content)
            now = KeptZone(zone.name, timezone.VERSION, timezone.content_of(zone.name))
            await self._store.keep_zone(now, self._clock.now())

    async def _apply(self, changes: Sequence[CalendarChange]) -> Report:
        await self._recall(await self._store.zones())
        cause = f"calendar {changes[0].name}" if len(changes) == 1 else "calendars"
        moved = await self._walk(self._by_calendar({(change.tenant, change.name) for change in changes}), cause)
        await self._store.settle_calendars(changes)
        return Report(moved)

    def _by_calendar(self, changed: set[tuple[str, str]]) -> Revise:
        def revise(seen: Seen) -> Pending | None:
            when = seen.pending.when
            if (seen.tenant, calendar_of(when)) not in changed or seen.days is None:
                return None
            pending = self._by_rules(seen) or seen.pending
            assert isinstance(when, Rule | Cron), "only rules and cron expressions have a calendar"
            if pending.due is not None and when.excluded != seen.days:
                pending = by_calendar(pending, seen.days, self._clock.now())
            return None if pending is seen.pending else pending

        return revise

    def _by_zone(self, found: set[str]) -> Revise:
        def revise(seen: Seen) -> Pending | None:
            pending = self._by_rules(seen)
            if pending is not None:
                found.add(zone_of(pending.when) or "")
            return pending

        return revise

    def _by_rules(self, seen: Seen) -> Pending | None:
        """The occurrence by the current rules of its zone; None if it already follows them."""
        zone = zone_of(seen.pending.when)
        if zone is None or seen.rules is None or seen.rules == timezone.rules_of(zone):
            return None
        return by_zone(seen.pending, timezone.recalled(zone, seen.rules), self._clock.now())

    async def _walk(self, revise: Revise, cause: str) -> int:
        cursor: str | None = None
        moved = 0
        while True:
            some = await self._store.revise(cursor, SLICE_ROWS, _one_by_one(revise), cause, self._clock.now())
            moved += len(some.moved)
            self._wake()
            cursor = some.cursor
            if cursor is None:
                break
        self._listener(Revised(self._clock.now(), cause, moved))
        return moved


def _stale(kept: Sequence[KeptZone]) -> list[KeptZone]:
    return [zone for zone in kept if zone.content != timezone.content_of(zone.name)]


def _one_by_one(revise: Revise) -> Revise:
    """Log a schedule that cannot be recomputed and leave it as it is, so that it does not stop the others."""

    def safely(seen: Seen) -> Pending | None:
        try:
            return revise(seen)
        except Exception:
            logger.exception("a schedule of %s cannot be recomputed and stays as it is: %r", seen.tenant, seen.pending)
            return None

    return safely
