"""What waits for a template: so that nobody takes from it what it needs."""

from collections.abc import AsyncIterator, Collection
from typing import Any

from tidings.clock import Clock
from tidings.delivery.filing import read, user_key
from tidings.delivery.schedules import Schedules
from tidings.delivery.templates import Compiled
from tidings.domain.command import FINISHED
from tidings.domain.errors import Conflict
from tidings.domain.notification import Notification
from tidings.domain.user import User
from tidings.ports import Cabinet, Document, Place

SLICE = 200
LOOKED_AT_MAX = 20_000
NAMED_MAX = 10


class Waiting:
    """Looks through the notifications of a template, newest first and within bounds. It is done rarely."""

    def __init__(self, cabinet: Cabinet, schedules: Schedules, clock: Clock) -> None:
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
                f"the latest version do not have: make it optional with a default, wait for them, or force it"
            )

    async def check_unused(self, tenant: str, name: str) -> None:
        """`Conflict` if something pending takes a template, whichever version."""
        pending = 0
        async for _ in self._pending(tenant, f"template:{name}"):
            pending += 1
        if pending:
            raise Conflict(f"{pending:,} pending notifications need the template {name}: cancel them, or force it")

    async def _pending(self, tenant: str, tag: str) -> AsyncIterator[tuple[Notification, dict[str, Any]]]:
        after: Place | None = None
        looked_at = 0
        while True:
            now = self._clock.now()
            found = await self._cabinet.find(tenant, "notification", tag, now, after=after, limit=SLICE, newest=True)
            for notification, known in await self._with_users(tenant, found):
                if await self._is_pending(tenant, notification):
                    yield notification, known
            looked_at += len(found)
            if len(found) < SLICE:
                return
            if looked_at >= LOOKED_AT_MAX:
                raise Conflict(f"more than {LOOKED_AT_MAX:,} notifications would have to be looked at: force it")
            after = found[-1].order, found[-1].key.name

    async def _with_users(self, tenant: str, found: list[Document]) -> list[tuple[Notification, dict[str, Any]]]:
        notifications = [read(document, Notification) for document in found]
        names = sorted({each.user for each in notifications if each.user is not None})
        documents = await self._cabinet.get([user_key(tenant, name) for name in names], self._clock.now())
        users = {name: read(there, User) for name, there in zip(names, documents, strict=True) if there is not None}
        return [
            (each, each.variables if each.user not in users else users[each.user].known(each.variables))
            for each in notifications
        ]

    async def _is_pending(self, tenant: str, notification: Notification) -> bool:
        schedule = await self._schedules.find(tenant, notification.id)
        return schedule is not None and schedule.state not in FINISHED


def _lacks(
    after: Compiled, notification: Notification, known: dict[str, Any], added: Collection[str], gone: Collection[str]
) -> set[str]:
    lost = {f"a part for {channel}" for channel in notification.channels if channel in gone}
    if len(lost) < len(notification.channels) and notification.spread == "first":
        lost = set()  # another channel of it is still there
    lacks = {name for name in added if name in after.needs(notification.channels) and not _has(known, name)}
    return lost | lacks


def _has(known: dict[str, Any], name: str) -> bool:
    value: Any = known
    for key in name.split("."):
        if isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return False
    return True
