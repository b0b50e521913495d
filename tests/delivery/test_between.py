"""Stores that are in somebody's way: answers that are lost, and receipts before our own record is written."""

from collections.abc import Sequence
from typing import Any, cast

from tests.delivery.office import Office
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, words
from tidings.delivery.handling import Terms
from tidings.domain.errors import StoreError
from tidings.domain.notifications.delivery import DeliveryReceipt
from tidings.ports import Change, Document, Key, Put, Store
from tidings.testing import SimulatedClock

EVENTS = ["e1", "e2", "e3"]


class Between:
    """A store with another way to its documents."""

    def __init__(self, store: Store, cabinet: "Forgetful | Hasty") -> None:
        self._store = store
        self.documents = cabinet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Forgetful:
    """Writes the first change of a delivery, and then loses the answer, and those of some looks."""

    def __init__(self, world: World) -> None:
        self._cabinet = world.store.documents
        self._lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cabinet, name)

    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        if self._lost == 1:
            self._lose()
        return await self._cabinet.get(keys, now)

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        answers = await self._cabinet.change(groups, now)
        if not self._lost and any(change.key.kind == "delivery" for group in groups for change in group):
            self._lose()
        return answers

    def _lose(self) -> None:
        self._lost += 1
        raise StoreError("the answer was lost")


class Hasty:
    """A provider tells of a delivery each time when it is about to be written down as sent."""

    def __init__(self, world: World) -> None:
        self._cabinet = world.store.documents
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


async def test_early_receipts_are_kept_and_it_is_sent_once(world: World) -> None:
    await world.put_user(ada())
    mail = Recorder("email", deduplicates=False)
    world.start(world.worker({"mail": mail}, store=Between(world.store, Hasty(world))))
    await world.notify(words("hi"))
    [delivery] = await world.settled("hi/1")
    assert (delivery.state, [news.event for news in delivery.news]) == ("sent", EVENTS)
    assert list(mail.accepted.values()) == [1]


async def test_a_claim_whose_answer_was_lost_is_used(world: World) -> None:
    """Nobody waits for the end of his own claim."""
    await world.put_user(ada())
    mail = Recorder("email", deduplicates=False)
    patient = changed(QUICK, terms=Terms(QUICK.terms.backoff, claim_us=3_600 * SECOND))
    world.start(world.worker({"mail": mail}, patient, store=Between(world.store, Forgetful(world))))
    await world.notify(words("hi"))
    [delivery] = await world.settled("hi/1")
    assert (delivery.state, len(delivery.attempts)) == ("sent", 1)
    assert list(mail.accepted.values()) == [1]
