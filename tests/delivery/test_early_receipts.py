"""Receipts that come before our own record of the call is written: it stays ours, and nobody is told twice."""

from collections.abc import Sequence
from typing import Any, cast

from tests.delivery.office import Office
from tests.delivery.world import TENANT, Recorder, World, ada, words
from tidings.domain.delivered import DeliveryReceipt
from tidings.ports import Change, Put, Store
from tidings.testing import SimulatedClock

EVENTS = ["e1", "e2", "e3"]


class Hasty:
    """A store where a provider tells of a delivery each time when it is about to be written down as sent."""

    def __init__(self, world: World) -> None:
        self._store = world.store
        self.cabinet = _Cabinet(world)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Cabinet:
    def __init__(self, world: World) -> None:
        self._cabinet = world.store.cabinet
        self._receiving = Office(world.store, cast(SimulatedClock, world.clock)).receiving
        self._events = list(EVENTS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cabinet, name)

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        if self._events and any(_is_sent(change) for group in groups for change in group):
            receipt = DeliveryReceipt("unsubscribed", "?", self._events.pop(0), message="hi/1")
            assert (await self._receiving.apply("mail", receipt, TENANT)).outcome == "applied"
        return await self._cabinet.change(groups, now)


def _is_sent(change: Change) -> bool:
    return isinstance(change, Put) and change.key.kind == "delivery" and b'"state":"sent"' in change.body


async def test_they_are_kept_and_it_is_sent_once(world: World) -> None:
    await world.put_user(ada())
    mail = Recorder("email", deduplicates=False)
    world.start(world.worker({"mail": mail}, store=cast(Store, Hasty(world))))
    await world.notify(words("hi"))
    [delivery] = await world.settled("hi/1")
    assert (delivery.state, [news.event for news in delivery.news]) == ("sent", EVENTS)
    assert list(mail.accepted.values()) == [1]
