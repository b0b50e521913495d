"""Erases a person: everything that is hers, in bounded slices. Cut off anywhere, it can be run again."""

import asyncio
from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import SHARED, by_address, by_user, read, user_key
from tidings.delivery.schedules import Schedules
from tidings.delivery.suppressions import Suppressions
from tidings.domain.command import FINISHED, Cancel
from tidings.domain.delivery import Delivery
from tidings.domain.rendered import CHANNEL_NAMES
from tidings.domain.user import User
from tidings.ports import Cabinet, Document, Remove

SLICE = 200
KINDS = ("notification", "delivery", "inbox", "dedupe")


class Erased(msgspec.Struct, frozen=True):
    """What was removed: how many documents of each kind, how many pending schedules were cancelled.

    `suppressions` were reduced to a digest: they say nothing of her, and still keep messages from her addresses.
    """

    user: str
    removed: dict[str, int]
    cancelled: int
    suppressions: int


class Erasing:
    """Removes all that is known of a user."""

    def __init__(self, cabinet: Cabinet, schedules: Schedules, suppressions: Suppressions, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._suppressions = suppressions
        self._clock = clock

    async def erase(self, tenant: str, user_id: str) -> Erased:
        """The user goes last, for her addresses find the rest; and what was accepted meanwhile goes after her.

        What went to one of her addresses without naming her is hers too, also if somebody else shares the address.
        """
        [there] = await self._cabinet.get([user_key(tenant, user_id)], self._clock.now())
        user = User(user_id) if there is None else read(there, User)
        forgotten = await self._suppressions.forget(tenant, user)
        removed: dict[str, int] = {}
        cancelled = await self._clear(tenant, user, removed)
        if there is not None:
            await self._cabinet.change([[Remove(there.key)]], self._clock.now())
            removed["user"] = 1
            cancelled += await self._clear(tenant, user, removed)
        await self._cabinet.wipe()
        return Erased(user_id, removed, cancelled, forgotten)

    async def _clear(self, tenant: str, user: User, removed: dict[str, int]) -> int:
        cancelled = 0
        for tag in (by_user(user.id), *_places(user)):
            for kind in KINDS:
                cancelled += await self._clear_kind(tenant, kind, tag, tenant, removed)
        return cancelled + await self._clear_kind(SHARED, "sent", by_user(user.id, tenant), tenant, removed)

    async def _clear_kind(self, shelf: str, kind: str, tag: str, tenant: str, removed: dict[str, int]) -> int:
        cancelled = 0
        while found := await self._cabinet.find(shelf, kind, tag, self._clock.now(), limit=SLICE):
            cancelled += await self._cancel(tenant, kind, found)
            await self._cabinet.change([[Remove(document.key)] for document in found], self._clock.now())
            removed[kind] = removed.get(kind, 0) + len(found)
            for gone in found if kind == "notification" else ():  # some have no tag that is hers
                tag = f"notification:{gone.key.name}"
                cancelled += await self._clear_kind(tenant, "delivery", tag, tenant, removed)
        return cancelled

    async def _cancel(self, tenant: str, kind: str, found: Sequence[Document]) -> int:
        """Nothing of these leaves any more: neither the notifications nor another try of a delivery."""
        names: list[str] = []
        if kind == "notification":
            names = [document.key.name for document in found]
        elif kind == "delivery":
            waiting = [delivery for delivery in (read(each, Delivery) for each in found) if not delivery.is_settled]
            names = [
                f"{delivery.name}~{number}"
                for delivery in waiting
                for number in (delivery.turn, delivery.turn + 1)  # it is put there before it is written down
            ]
        if not names:
            return 0
        before = await asyncio.gather(*(self._schedules.find(tenant, name) for name in names))
        outcomes = await self._schedules.submit([Cancel(tenant, name) for name in names])
        return sum(
            1
            for schedule, outcome in zip(before, outcomes, strict=True)
            if outcome.outcome == "cancelled" and schedule is not None and schedule.state not in FINISHED
        )


def _places(user: User) -> list[str]:
    """The tags of what has one of her addresses instead of her id."""
    channels = [channel for channel in CHANNEL_NAMES if channel != "in_app"]
    return [by_address(channel, to) for channel in channels for to in user.addresses(channel)]
