"""What waits for a template: so that nobody takes from it what it needs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tidings.clock import Clock
from tidings.delivery.filing import delivery_key, read, user_key
from tidings.delivery.schedules import Schedules
from tidings.delivery.status import all_deliveries, last_names, status_of
from tidings.delivery.templates import Compiled
from tidings.domain.errors import Conflict
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import User
from tidings.domain.schedules.schedule import Schedule
from tidings.ports import Document, DocumentStore, Place

SLICE = 200
LOOKED_AT_MAX = 20_000
NAMED_MAX = 10


class Waiting:
    """Looks through the notifications of a template, newest first and within bounds. It is done rarely."""

    def __init__(self, cabinet: DocumentStore, schedules: Schedules, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._clock = clock

    async def check(self, tenant: str, before: Compiled, after: Compiled) -> None:
        """`Conflict` if the new version needs variables that a pending notification, which takes the latest, lacks."""
        added = set(after.needs()) - set(before.needs())
        gone = set(before.channels) - set(after.channels)
        if not added and not gone:
            return
        name, lacking, missing = after.template.name, 0, set[str]()
        async for notification, known in self._pending(tenant, f"latest:{name}"):
            lacks = _lacks(after, notification, known, added, gone)
            lacking += bool(lacks)
            missing |= lacks
        if lacking:
            told = ", ".join(sorted(missing)[:NAMED_MAX])
            raise Conflict(
                f"version {after.template.version} needs {told}, which {lacking:,} pending notifications that take "
                f"the latest version lack: make it optional with a default, wait for them, or use force"
            )

    async def check_unused(self, tenant: str, name: str) -> None:
        """`Conflict` if something that is not settled takes a template, whichever version."""
        pending = 0
        async for _ in self._pending(tenant, f"template:{name}"):
            pending += 1
        if pending:
            raise Conflict(f"{pending:,} pending notifications need the template {name}: cancel them, or use force")

    async def _pending(self, tenant: str, tag: str) -> AsyncIterator[tuple[Notification, dict[str, Any]]]:
        after: Place | None = None
        looked_at = 0
        while True:
            now = self._clock.now()
            found = await self._cabinet.find(tenant, "notification", tag, now, after=after, limit=SLICE, newest=True)
            for notification, known in await self._with_users(tenant, await self._unsettled(tenant, found)):
                yield notification, known
            looked_at += len(found)
            if len(found) < SLICE:
                return
            if looked_at >= LOOKED_AT_MAX:
                raise Conflict(f"more than {LOOKED_AT_MAX:,} notifications would have to be checked: use force")
            after = found[-1].order, found[-1].key.name

    async def _unsettled(self, tenant: str, found: list[Document]) -> list[Notification]:
        """Those of which something is still to be said: later, after quiet hours, or in another attempt."""
        notifications = [read(document, Notification) for document in found]
        schedules = await asyncio.gather(*(self._schedules.find(tenant, each.id) for each in notifications))
        pairs = list(zip(notifications, schedules, strict=True))
        names = [[] if schedule is None else last_names(each, schedule) for each, schedule in pairs]
        keys = [delivery_key(tenant, name) for several in names for name in several]
        documents = iter(await self._cabinet.get(keys, self._clock.now()))
        result = []
        for (notification, schedule), several in zip(pairs, names, strict=True):
            deliveries = [read(there, Delivery) for there in (next(documents) for _ in several) if there is not None]
            if schedule is None:
                deliveries = await all_deliveries(self._cabinet, tenant, notification.id, self._clock.now())
            if await self._is_unsettled(notification, schedule, deliveries):
                result.append(notification)
        return result

    async def _is_unsettled(
        self, notification: Notification, schedule: Schedule | None, last: Sequence[Delivery]
    ) -> bool:
        status = status_of(notification, schedule, last)
        if status is None or status.state == "cancelled":
            return False
        if status.state in {"pending", "processing"} or not all(each.is_settled for each in last):
            return True
        if status.occurrence <= len({each.due for each in last}):
            return False
        every = await all_deliveries(self._cabinet, notification.tenant, notification.id, self._clock.now())
        return not all(each.is_settled for each in every)

    async def _with_users(
        self, tenant: str, notifications: list[Notification]
    ) -> list[tuple[Notification, dict[str, Any]]]:
        names = sorted({each.user for each in notifications if each.user is not None})
        documents = await self._cabinet.get([user_key(tenant, name) for name in names], self._clock.now())
        users = {name: read(there, User) for name, there in zip(names, documents, strict=True) if there is not None}
        return [
            (each, each.variables if each.user not in users else users[each.user].known(each.variables))
            for each in notifications
        ]


def _lacks(
    after: Compiled, notification: Notification, known: dict[str, Any], added: set[str], gone: set[ChannelName]
) -> set[str]:
    lost = {f"a part for {channel}" for channel in notification.channels if channel in gone}
    if len(lost) < len(notification.channels) and notification.spread == "first":
        lost = set()  # another channel of it is still there
    return lost | (after.missing(known, notification.channels) & added)
