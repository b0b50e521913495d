"""Erases a user with all their data, in bounded slices. Interrupted anywhere, it can be run again."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.people.profile import DEVICES_MAX
from tidings.delivery.people.suppressions import Suppressions
from tidings.delivery.rows import address_digests, change, message_id, read, user_key, user_tag
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.notifications.tables import (
    DEDUPE_KEYS_BY_USER,
    DELIVERIES_BY_ADDRESS,
    DELIVERIES_BY_NOTIFICATION,
    DELIVERIES_BY_USER,
    INBOX_BY_USER,
    NOTIFICATIONS_BY_ADDRESS,
    NOTIFICATIONS_BY_USER,
    PROVIDER_MESSAGES_BY_USER,
    SHARED,
    Index,
)
from tidings.domain.notifications.user import User
from tidings.domain.schedules.command import FINISHED, Cancel
from tidings.ports import Erasable
from tidings.ports.tables import Remove, Tables

SLICE = 200
IN_APP = "in_app"  # its messages are rows of the inbox
REMOVED_NAMES = {"app_user": "user", "dedupe_key": "dedupe", "provider_message": "sent"}  # as answers call them


class Erased(msgspec.Struct, frozen=True):
    """What was removed: how many rows of each kind, and how many pending schedules were cancelled.

    `suppressions` were reduced to a digest, which names nobody and still suppresses the address. `providers` were
    given messages to the user: what they store of them is theirs to erase.
    """

    user: str
    removed: dict[str, int]
    cancelled: int
    suppressions: int
    providers: tuple[str, ...] = ()


class Erasure:
    """Removes everything about a user. `erasable` are the providers of this node that store messages."""

    def __init__(self, tables: Tables, schedules: NotificationEngine, suppressions: Suppressions, clock: Clock) -> None:
        self._tables = tables
        self._schedules = schedules
        self._suppressions = suppressions
        self._clock = clock
        self.erasable: dict[str, Erasable] = {}

    async def erase(self, tenant: str, user_id: str) -> Erased:
        """Remove the user last, because their addresses find the rest; what was accepted meanwhile goes after that.

        What was sent to one of their addresses without naming them is erased too, even if others share the address.
        """
        [row] = await self._tables.get([user_key(tenant, user_id)], self._clock.now())
        user = User(user_id) if row is None else read(row, User)
        redacted = await self._suppressions.redact(tenant, user)
        tally = _Tally()
        await self._clear(tenant, user, tally)
        if row is not None:
            await change(self._tables, [[Remove(row.key)]], self._clock.now())
            tally.removed["user"] = 1
            await self._clear(tenant, user, tally)
        await self._tables.wipe()
        providers = tuple(sorted(tally.providers - self.erasable.keys() - {IN_APP}))
        return Erased(user_id, dict(tally.removed), tally.cancelled, redacted, providers)

    async def _clear(self, tenant: str, user: User, tally: "_Tally") -> None:
        for index in (NOTIFICATIONS_BY_USER, DELIVERIES_BY_USER, INBOX_BY_USER, DEDUPE_KEYS_BY_USER):
            await self._clear_index(index, tenant, user.id, tenant, tally)
        for digest in _digests(user):
            for index in (NOTIFICATIONS_BY_ADDRESS, DELIVERIES_BY_ADDRESS):
                await self._clear_index(index, tenant, digest, tenant, tally)
        await self._clear_index(PROVIDER_MESSAGES_BY_USER, SHARED, user_tag(tenant, user.id), tenant, tally)

    async def _clear_index(self, index: Index, owner: str, value: str, tenant: str, tally: "_Tally") -> None:
        while found := await self._tables.find(index, owner, (value,), self._clock.now(), limit=SLICE):
            names: list[str] = []
            if index.table == "notification":
                names = [row.key.name for row in found]
            elif index.table == "delivery":
                names = await self._erase_messages(tenant, [read(each, Delivery) for each in found], tally)
            tally.cancelled += await self._cancel(tenant, names)
            await change(self._tables, [[Remove(row.key)] for row in found], self._clock.now())
            tally.removed[REMOVED_NAMES.get(index.table, index.table)] += len(found)
            for name in names if index.table == "notification" else ():  # some deliveries do not name the user
                await self._clear_index(DELIVERIES_BY_NOTIFICATION, tenant, name, tenant, tally)

    async def _erase_messages(self, tenant: str, deliveries: Sequence[Delivery], tally: "_Tally") -> list[str]:
        """Delete what providers of this node store of them; the ids of retries that may be on the timeline."""
        message_ids = [each for delivery in deliveries for each in _message_ids(tenant, delivery)]
        for name, provider in self.erasable.items():
            if gone := await provider.erase(tenant, message_ids):
                tally.removed[name] += gone
        tried = [attempt.provider for delivery in deliveries for attempt in delivery.attempts]
        tally.providers |= {provider for each in tried for provider in each.split("+")}
        return [
            f"{delivery.name}~{number}"
            for delivery in deliveries
            if not delivery.is_settled
            for number in (delivery.turn, delivery.turn + 1)  # a worker may commit its next turn at this moment
        ]

    async def _cancel(self, tenant: str, names: Sequence[str]) -> int:
        """Cancel schedules; how many of them were pending."""
        if not names:
            return 0
        before = await asyncio.gather(*(self._schedules.find(tenant, name) for name in names))
        outcomes = await self._schedules.submit([Cancel(tenant, name, with_deliveries=True) for name in names])
        return sum(
            1
            for schedule, outcome in zip(before, outcomes, strict=True)
            if outcome.outcome == "cancelled" and schedule is not None and schedule.state not in FINISHED
        )


class _Tally:
    """What has been done so far."""

    def __init__(self) -> None:
        self.removed: Counter[str] = Counter()
        self.cancelled = 0
        self.providers: set[str] = set()


def _message_ids(tenant: str, delivery: Delivery) -> list[str]:
    """The ids under which messages of a delivery may have been sent: of a push one for each device."""
    pushed = any(attempt.channel == "push" for attempt in delivery.attempts)
    return [message_id(tenant, delivery.name, number) for number in range(DEVICES_MAX + 1 if pushed else 1)]


def _digests(user: User) -> list[str]:
    """The digests by which rows with one of their addresses instead of their id are found."""
    channels = [channel for channel in CHANNEL_NAMES if channel != "in_app"]
    return [each for channel in channels for to in user.addresses(channel) for each in address_digests(channel, to)]
