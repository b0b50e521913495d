"""Erases a user with all their data, in bounded slices. Cut off anywhere, it can be run again."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import SHARED, by_user, read, tags_of_address, user_key
from tidings.delivery.naming import message_id
from tidings.delivery.profile import DEVICES_MAX
from tidings.delivery.schedules import Schedules
from tidings.delivery.suppressions import Suppressions
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.notifications.user import User
from tidings.domain.schedules.command import FINISHED, Cancel
from tidings.ports import DocumentStore, Erasable, Remove

SLICE = 200
IN_APP = "in_app"  # what it keeps are documents
KINDS = ("notification", "delivery", "inbox", "dedupe")


class Erased(msgspec.Struct, frozen=True):
    """What was removed: how many documents of each kind, how many pending schedules were cancelled.

    `suppressions` were reduced to a digest, which names nobody and still suppresses the address. `providers` were
    handed messages to the user: what they store of them is for them to erase.
    """

    user: str
    removed: dict[str, int]
    cancelled: int
    suppressions: int
    providers: tuple[str, ...] = ()


class Erasing:
    """Removes all that is known of a user. `keepers` are those channels of this node that keep messages in reach."""

    def __init__(self, cabinet: DocumentStore, schedules: Schedules, suppressions: Suppressions, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._suppressions = suppressions
        self._clock = clock
        self.keepers: dict[str, Erasable] = {}

    async def erase(self, tenant: str, user_id: str) -> Erased:
        """The user goes last, because their addresses find the rest; what was accepted in the meantime goes after that.

        What went to one of their addresses without naming them is erased too, even if others share the address.
        """
        [there] = await self._cabinet.get([user_key(tenant, user_id)], self._clock.now())
        user = User(user_id) if there is None else read(there, User)
        forgotten = await self._suppressions.forget(tenant, user)
        tally = _Tally()
        await self._clear(tenant, user, tally)
        if there is not None:
            await self._cabinet.change([[Remove(there.key)]], self._clock.now())
            tally.removed["user"] = 1
            await self._clear(tenant, user, tally)
        await self._cabinet.wipe()
        providers = tuple(sorted(tally.providers - self.keepers.keys() - {IN_APP}))
        return Erased(user_id, dict(tally.removed), tally.cancelled, forgotten, providers)

    async def _clear(self, tenant: str, user: User, tally: "_Tally") -> None:
        for tag in (by_user(user.id), *_places(user)):
            for kind in KINDS:
                await self._clear_kind(tenant, kind, tag, tenant, tally)
        await self._clear_kind(SHARED, "sent", by_user(user.id, tenant), tenant, tally)

    async def _clear_kind(self, shelf: str, kind: str, tag: str, tenant: str, tally: "_Tally") -> None:
        while found := await self._cabinet.find(shelf, kind, tag, self._clock.now(), limit=SLICE):
            names: list[str] = []
            if kind == "notification":
                names = [document.key.name for document in found]
            elif kind == "delivery":
                names = await self._let_go(tenant, [read(each, Delivery) for each in found], tally)
            tally.cancelled += await self._cancel(tenant, names)
            await self._cabinet.change([[Remove(document.key)] for document in found], self._clock.now())
            tally.removed[kind] += len(found)
            for name in names if kind == "notification" else ():  # some of its deliveries have no tag of the user
                await self._clear_kind(tenant, "delivery", f"notification:{name}", tenant, tally)

    async def _let_go(self, tenant: str, deliveries: Sequence[Delivery], tally: "_Tally") -> list[str]:
        """Remove what channels of this node keep of them; the names of the turns that may be on the timeline."""
        message_ids = [each for delivery in deliveries for each in _message_ids(tenant, delivery)]
        for name, keeper in self.keepers.items():
            if gone := await keeper.erase(tenant, message_ids):
                tally.removed[name] += gone
        tried = [attempt.provider for delivery in deliveries for attempt in delivery.attempts]
        tally.providers |= {provider for each in tried for provider in each.split("+")}
        return [
            f"{delivery.name}~{number}"
            for delivery in deliveries
            if not delivery.is_settled
            for number in (delivery.turn, delivery.turn + 1)  # it is put there before it is written down
        ]

    async def _cancel(self, tenant: str, names: Sequence[str]) -> int:
        """Nothing of these leaves any more; says how many of them would have."""
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
    """The ids that messages of a delivery can have been sent under: by push it is one for each device."""
    pushed = any(attempt.channel == "push" for attempt in delivery.attempts)
    return [message_id(tenant, delivery.name, number) for number in range(DEVICES_MAX + 1 if pushed else 1)]


def _places(user: User) -> list[str]:
    """The tags of what has one of their addresses instead of their id."""
    channels = [channel for channel in CHANNEL_NAMES if channel != "in_app"]
    return [tag for channel in channels for to in user.addresses(channel) for tag in tags_of_address(channel, to)]
