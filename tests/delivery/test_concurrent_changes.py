"""Lost answers of the store, and receipts that arrive before the delivery is written."""

from collections.abc import Sequence
from typing import Any, cast

from tests.delivery.services import Services
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, words
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.domain.errors import StoreError
from tidings.domain.notifications.delivery import DeliveryReceipt
from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult, Put, Row, RowChange, RowKey
from tidings.testing import SimulatedClock

EVENTS = ["e1", "e2", "e3"]


class WrappedStore:
    """A store with a wrapper around its tables."""

    def __init__(self, store: Store, tables: "AnswerLosingTables | EarlyReceiptTables") -> None:
        self._store = store
        self.tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class AnswerLosingTables:
    """Writes the first change of a delivery and loses the answer, and those of some reads."""

    def __init__(self, world: World) -> None:
        self._tables = world.store.tables
        self._lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        if self._lost == 1:
            self._lose()
        return await self._tables.get(keys, now)

    async def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        answers = await self._tables.commit(groups, now, urgent=urgent)
        if not self._lost and any(change.key.table == "delivery" for group in groups for change in group.changes):
            self._lose()
        return answers

    def _lose(self) -> None:
        self._lost += 1
        raise StoreError("the answer was lost")


class EarlyReceiptTables:
    """Applies a receipt each time a delivery is about to be written as sent."""

    def __init__(self, world: World) -> None:
        self._tables = world.store.tables
        self._receipts = Services(world.store, cast(SimulatedClock, world.clock)).receipts
        self._events = list(EVENTS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        if self._events and any(_is_sent(change) for group in groups for change in group.changes):
            receipt = DeliveryReceipt("unsubscribed", "?", self._events.pop(0), message="hi/1")
            assert (await self._receipts.apply("mail", receipt, TENANT)).outcome == "applied"
        return await self._tables.commit(groups, now, urgent=urgent)


def _is_sent(change: RowChange) -> bool:
    return isinstance(change, Put) and change.key.table == "delivery" and b'"state":"sent"' in change.body


async def test_receipts_that_arrive_before_the_delivery_is_written_are_kept(world: World) -> None:
    await world.put_user(ada())
    mail = Recorder("email", deduplicates=False)
    world.start(world.worker({"mail": mail}, store=WrappedStore(world.store, EarlyReceiptTables(world))))
    await world.notify(words("hi"))
    [delivery] = await world.settled("hi/1")
    assert (delivery.state, [news.event for news in delivery.news]) == ("sent", EVENTS)
    assert list(mail.accepted.values()) == [1]


async def test_a_claim_whose_answer_was_lost_is_used_by_its_worker(world: World) -> None:
    """A worker does not wait for its own claim to expire."""
    await world.put_user(ada())
    mail = Recorder("email", deduplicates=False)
    patient = changed(QUICK, policy=RetryPolicy(QUICK.policy.backoff, claim_us=3_600 * SECOND))
    world.start(world.worker({"mail": mail}, patient, store=WrappedStore(world.store, AnswerLosingTables(world))))
    await world.notify(words("hi"))
    [delivery] = await world.settled("hi/1")
    assert (delivery.state, len(delivery.attempts)) == ("sent", 1)
    assert list(mail.accepted.values()) == [1]
