"""Reading schedules: one by id, pages, histories, forecasts and counts."""

from typing import Protocol

import msgspec

from tidings.domain.schedules.schedule import (
    Event,
    Page,
    Query,
    Schedule,
)


class Count(msgspec.Struct, frozen=True, gc=False):
    """The store's size: schedules pending, those overdue (counted up to a bound), and bytes on disk."""

    pending: int
    overdue: int
    bytes: int


class ScheduleReader(Protocol):
    """What can be seen of the timeline."""

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None: ...

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]: ...

    async def page(self, tenant: str, query: Query, now: int) -> Page: ...

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        """Pending by time: (start of a step, how many), empty steps left out; True if it was cut short."""
        ...

    async def count(self, now: int) -> Count: ...
