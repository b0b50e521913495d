"""What waits for a template: so that nobody takes from it what it needs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import StatusReader, all_deliveries, last_names, status_of
from tidings.delivery.rows import delivery_key, read, user_key
from tidings.delivery.templates import Compiled
from tidings.domain.errors import Conflict
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.tables import NOTIFICATIONS_BY_TEMPLATE
from tidings.domain.notifications.user import User
from tidings.domain.schedules.schedule import Schedule
from tidings.ports.tables import Row, RowPosition, Tables

SLICE = 200
LOOKED_AT_MAX = 20_000
NAMED_MAX = 10
FORCE = "?force=true, --force"


class TemplateUsage:
    """Looks through the notifications of a template, newest first and within bounds. It is done rarely."""

    def __init__(self, tables: Tables, schedules: NotificationEngine, clock: Clock) -> None:
        self._tables = tables
        self._schedules = schedules
        self._clock = clock
        self._status = StatusReader(tables, schedules, clock)

    async def check(self, tenant: str, before: Compiled, after: Compiled) -> None:
        """`Conflict` if the new version lacks a part that pending notifications need, or needs variables they lack."""
        added = set(after.needs()) - set(before.needs())
        gone = set(before.channels) - set(after.channels)
        if not added and not gone:
            return
        variables, parts = set[str](), set[str]()
        lacking, losing = 0, 0
        async for notification, known in self._pending(tenant, after.template.name, latest=True):
            missing, lost = after.missing(known, notification.channels) & added, _lost(notification, gone)
            variables |= missing
            parts |= lost
            lacking, losing = lacking + bool(missing), losing + bool(lost)
        told = []
        if lacking:
            told.append(f"needs {_named(variables)}, which {_latest(lacking, 'lack')}: make it optional with a default")
        if losing:
            told.append(f"has no part for {_named(parts)}, which {_latest(losing, 'need')}: keep that part")
        if told:
            advice = f"wait until they are sent, or store it anyway ({FORCE})"
            raise Conflict(f"version {after.template.version} {'; it '.join(told)}, {advice}")

    async def check_unused(self, tenant: str, name: str) -> None:
        """`Conflict` if something that is not settled takes a template, whichever version."""
        pending = 0
        async for _ in self._pending(tenant, name):
            pending += 1
        if pending:
            need = "notification needs" if pending == 1 else "notifications need"
            raise Conflict(
                f"{pending:,} pending {need} the template {name}: cancel them, or delete it anyway ({FORCE})"
            )

    async def _pending(
        self, tenant: str, template: str, *, latest: bool = False
    ) -> AsyncIterator[tuple[Notification, dict[str, Any]]]:
        """The pending notifications of a template; with `latest` those that are not bound to a version."""
        after: RowPosition | None = None
        looked_at = 0
        while True:
            now = self._clock.now()
            found = await self._tables.find(
                NOTIFICATIONS_BY_TEMPLATE, tenant, (template,), now, after=after, limit=SLICE, newest=True
            )
            for notification, known in await self._with_users(tenant, await self._unsettled(tenant, found)):
                if not latest or notification.version is None:
                    yield notification, known
            looked_at += len(found)
            if len(found) < SLICE:
                return
            if looked_at >= LOOKED_AT_MAX:
                raise Conflict(
                    f"more than {LOOKED_AT_MAX:,} notifications would have to be checked: leave that out ({FORCE})"
                )
            after = found[-1].order, found[-1].key.name

    async def _unsettled(self, tenant: str, found: list[Row]) -> list[Notification]:
        """Those of which something is still to be said: later, after quiet hours, or in another attempt."""
        notifications = [read(row, Notification) for row in found]
        schedules = await asyncio.gather(*(self._schedules.find(tenant, each.id) for each in notifications))
        pairs = list(zip(notifications, schedules, strict=True))
        names = [[] if schedule is None else last_names(each, schedule) for each, schedule in pairs]
        keys = [delivery_key(tenant, name) for several in names for name in several]
        rows = iter(await self._tables.get(keys, self._clock.now()))
        result = []
        for (notification, schedule), several in zip(pairs, names, strict=True):
            deliveries = [read(there, Delivery) for there in (next(rows) for _ in several) if there is not None]
            if schedule is None:
                deliveries = await all_deliveries(self._tables, tenant, notification.id, self._clock.now())
            if await self._is_unsettled(notification, schedule, deliveries):
                result.append(notification)
        return result

    async def _is_unsettled(
        self, notification: Notification, schedule: Schedule | None, last: Sequence[Delivery]
    ) -> bool:
        status = status_of(notification, schedule, last)
        if status is None or status.state == "cancelled" or await self._status.is_over(status, schedule):
            return False
        if status.state in {"pending", "processing"} or not all(each.is_settled for each in last):
            return True
        if status.occurrence <= len({each.due for each in last}):
            return False
        every = await all_deliveries(self._tables, notification.tenant, notification.id, self._clock.now())
        return not all(each.is_settled for each in every)

    async def _with_users(
        self, tenant: str, notifications: list[Notification]
    ) -> list[tuple[Notification, dict[str, Any]]]:
        names = sorted({each.user for each in notifications if each.user is not None})
        rows = await self._tables.get([user_key(tenant, name) for name in names], self._clock.now())
        users = {name: read(there, User) for name, there in zip(names, rows, strict=True) if there is not None}
        return [
            (each, each.variables if each.user not in users else users[each.user].known(each.variables))
            for each in notifications
        ]


def _lost(notification: Notification, gone: set[ChannelName]) -> set[ChannelName]:
    """The channels that it needs and the template no longer has."""
    lost = {channel for channel in notification.channels if channel in gone}
    if len(lost) < len(notification.channels) and notification.spread == "first":
        return set()  # another channel of it is still there
    return lost


def _named(found: set[str]) -> str:
    return ", ".join(sorted(found)[:NAMED_MAX])


def _latest(count: int, verb: str) -> str:
    """How many notifications lack or need something."""
    if count == 1:
        return f"1 pending notification that takes the latest version {verb}s"
    return f"{count:,} pending notifications that take the latest version {verb}"
