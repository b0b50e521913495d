"""What became of notifications: one, or those that fit a search."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import (
    NO_WORKER,
    RELEASED,
    Status,
    StatusReader,
    all_deliveries,
    last_names,
    shown,
    status_of,
    unserved_channels,
)
from tidings.delivery.rows import (
    address_digest,
    delivery_key,
    notification_key,
    position_of,
    read,
    read_cursor,
    write_cursor,
)
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address_key import address_key, looks_like
from tidings.domain.notifications.delivery import Delivery, State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification, Priority
from tidings.domain.notifications.tables import (
    DELIVERIES,
    DELIVERIES_BY_NOTIFICATION,
    DELIVERIES_BY_TROUBLE,
    DELIVERIES_BY_USER,
    NOTIFICATIONS,
    NOTIFICATIONS_BY_ADDRESS,
    NOTIFICATIONS_BY_GROUP,
    NOTIFICATIONS_BY_TEMPLATE,
    NOTIFICATIONS_BY_USER,
    Index,
    Value,
)
from tidings.domain.schedules.schedule import Schedule
from tidings.ports.tables import Row, RowPosition, Tables

T = TypeVar("T")
SearchState = State | Literal["paused"]  # a paused notification is pending, with this reason
Found = tuple[Index, tuple[Value, ...]]  # an index, and the values to look for

PAGE_MAX = 1_000
SLICE = 100
LOOKED_AT_MAX = 2_000  # for one page; it may be short while there is more


class Search(msgspec.Struct, frozen=True):
    """What to list: every condition given must hold. `since` and `until` are about acceptance (for deliveries: due).

    `to` is a bare address, of a device `apns:<token>` or `fcm:<token>`.
    """

    user: str | None = None
    state: SearchState | None = None
    channel: ChannelName | None = None
    template: str | None = None
    batch: str | None = None
    since: int | None = None
    until: int | None = None
    cursor: str | None = None
    limit: int = 100
    to: str | None = None
    category: str | None = None
    priority: Priority | None = None


class StatusPage(msgspec.Struct, frozen=True):
    """Some notifications, the latest first, and where to go on (None: that was all). May be short before the end."""

    notifications: tuple[Status, ...]
    cursor: str | None


class DeliveryPage(msgspec.Struct, frozen=True):
    """The same of deliveries."""

    deliveries: tuple[Delivery, ...]
    cursor: str | None


class NotificationReader:
    """Reads rows, schedules and deliveries together."""

    def __init__(self, tables: Tables, schedules: NotificationEngine, clock: Clock) -> None:
        self._tables = tables
        self._schedules = schedules
        self._clock = clock
        self._status = StatusReader(tables, schedules, clock)

    async def get(self, tenant: str, notification_id: str) -> Status | None:
        """One with all its deliveries; None if there is none, or it was never accepted."""
        [there] = await self._tables.get([notification_key(tenant, notification_id)], self._clock.now())
        if there is None:
            return None
        schedule = await self._schedules.find(tenant, notification_id)
        status = status_of(
            read(there, Notification),
            schedule,
            await all_deliveries(self._tables, tenant, notification_id, self._clock.now()),
        )
        if status is None or await self.is_over(status, schedule):
            return None
        return (await self.told([status]))[0]

    async def has_any(self, tenant: str, notification_ids: Sequence[str]) -> bool:
        """Whether one of these ids was accepted before, and is still known."""
        rows = await self._tables.get([notification_key(tenant, each) for each in notification_ids], self._clock.now())
        return any(row is not None for row in rows)

    async def is_over(self, status: Status, schedule: Schedule | None) -> bool:
        """Whether its deliveries have expired, so that what became of it is not known any more."""
        return await self._status.is_over(status, schedule)

    async def page(self, tenant: str, search: Search) -> StatusPage:
        """Those that fit, the latest first."""

        async def keep(rows: Sequence[Row]) -> list[tuple[Row, Status]]:
            fitting = [each for each in rows if _fits(read(each, Notification), search)]
            statuses = await self._statuses(tenant, fitting)
            return [(each, status) for each, status in statuses if _is_in(status, search.state)]

        return StatusPage(*await self._scan(tenant, _index(search), search, keep))

    async def deliveries(self, tenant: str, search: Search, notification: str | None = None) -> DeliveryPage:
        """Deliveries that fit, those due last first; a template or batch is a matter of notifications."""
        if search.template is not None or search.batch is not None:
            raise Invalid(
                "template" if search.template else "batch", "applies to notifications only: list those instead"
            )

        async def keep(rows: Sequence[Row]) -> list[tuple[Row, Delivery]]:
            pairs = ((each, shown(read(each, Delivery))) for each in rows)
            return [(each, delivery) for each, delivery in pairs if _delivery_fits(delivery, search)]

        index: Found = (DELIVERIES_BY_NOTIFICATION, (notification,)) if notification else _delivery_index(search)
        return DeliveryPage(*await self._scan(tenant, index, search, keep))

    async def delivery(self, tenant: str, name: str) -> Delivery | None:
        """One delivery by its name."""
        [there] = await self._tables.get([delivery_key(tenant, name)], self._clock.now())
        return None if there is None else shown(read(there, Delivery))

    async def _scan(
        self,
        tenant: str,
        index: Found,
        search: Search,
        keep: Callable[[Sequence[Row]], Awaitable[list[tuple[Row, T]]]],
    ) -> tuple[tuple[T, ...], str | None]:
        """Slices of rows, the latest first, until enough were kept or too many were looked at."""
        found: list[tuple[Row, T]] = []
        after, more, looked_at = _start(search), True, 0
        while more and len(found) <= search.limit and looked_at < LOOKED_AT_MAX:
            rows = await self._tables.find(
                index[0], tenant, index[1], self._clock.now(), after=after, limit=SLICE, newest=True
            )
            inside = [each for each in rows if search.since is None or each.order >= search.since]
            more = len(rows) == SLICE and len(inside) == SLICE
            found += await keep(inside)
            looked_at += len(rows)
            after = position_of(rows[-1]) if rows else after
        shown_ones = found[: search.limit]
        values = tuple(value for _, value in shown_ones)
        if len(found) > search.limit:
            return values, write_cursor(position_of(shown_ones[-1][0]))
        return values, write_cursor(after) if more and after is not None else None

    async def _statuses(self, tenant: str, rows: Sequence[Row]) -> list[tuple[Row, Status]]:
        """Each with its last deliveries only; those that were never accepted are left out."""
        schedules = await asyncio.gather(*(self._schedules.find(tenant, each.key.name) for each in rows))
        kept = [read(each, Notification) for each in rows]
        pairs = list(zip(kept, schedules, strict=True))
        names = [[] if schedule is None else last_names(each, schedule) for each, schedule in pairs]
        keys = [delivery_key(tenant, name) for several in names for name in several]
        found = iter(await self._tables.get(keys, self._clock.now()))
        forgotten = [each for each, schedule in pairs if schedule is None]
        last = dict(zip([each.id for each in forgotten], await self._last(tenant, forgotten), strict=True))
        result = []
        for row, (notification, schedule), several in zip(rows, pairs, names, strict=True):
            there = [read(each, Delivery) for each in (next(found) for _ in several) if each is not None]
            status = status_of(notification, schedule, last.get(notification.id, there))
            if status is not None and not await self.is_over(status, schedule):
                result.append((row, status))
        told = await self.told([status for _, status in result])
        return [(row, status) for (row, _), status in zip(result, told, strict=True)]

    async def told(self, statuses: Sequence[Status]) -> list[Status]:
        """The same; of what waits for a worker of its first channel, that there is none."""
        waiting = [status.state == "pending" and status.reason == RELEASED for status in statuses]
        if not any(waiting):
            return list(statuses)
        unserved = await unserved_channels(self._schedules)
        return [
            msgspec.structs.replace(status, reason=NO_WORKER)
            if waits and status.notification.channels[0] in unserved
            else status
            for status, waits in zip(statuses, waiting, strict=True)
        ]

    async def _last(self, tenant: str, forgotten: Sequence[Notification]) -> list[list[Delivery]]:
        """The last deliveries of those whose schedules are not known any more, nor which occurrence was their last."""
        now = self._clock.now()
        asked = (all_deliveries(self._tables, tenant, each.id, now, 2 * len(each.channels)) for each in forgotten)
        return await asyncio.gather(*asked)


def _start(search: Search) -> RowPosition | None:
    if not 1 <= search.limit <= PAGE_MAX:
        raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
    if search.cursor is not None:
        return read_cursor(search.cursor)
    return None if search.until is None else (search.until, "")


def _index(search: Search) -> Found:
    """The index with the fewest rows to look at."""
    if search.batch is not None:
        return NOTIFICATIONS_BY_GROUP, (search.batch,)
    if search.to is not None:
        return NOTIFICATIONS_BY_ADDRESS, (address_digest(looks_like(search.to), search.to),)
    if search.user is not None:
        return NOTIFICATIONS_BY_USER, (search.user,)
    if search.template is not None:
        return NOTIFICATIONS_BY_TEMPLATE, (search.template,)
    return NOTIFICATIONS, ()


def _fits(notification: Notification, search: Search) -> bool:
    return (
        search.user in {None, notification.user}
        and search.template in {None, notification.template}
        and search.batch in {None, notification.batch}
        and search.category in {None, notification.category}
        and search.priority in {None, notification.priority}
        and (search.to is None or _is_to(notification, search.to))
        and (search.channel is None or search.channel in notification.channels)
    )


def _is_in(status: Status, state: SearchState | None) -> bool:
    if state == "paused":
        return (status.state, status.reason) == ("pending", "paused")
    return state in {None, status.state}


def _is_to(notification: Notification, to: str) -> bool:
    channel = notification.channels[0]
    return notification.to is not None and address_key(channel, notification.to) == address_key(channel, to)


def _delivery_index(search: Search) -> Found:
    if search.user is not None:
        return DELIVERIES_BY_USER, (search.user,)
    if search.state in {"failed", "bounced", "complained", "expired"}:
        return DELIVERIES_BY_TROUBLE, (search.state,)
    return DELIVERIES, ()


def _delivery_fits(delivery: Delivery, search: Search) -> bool:
    return (
        search.user in {None, delivery.user}
        and search.state in {None, delivery.state}
        and search.channel in {None, delivery.channel}
    )
