"""Receipts that come before the worker has stored the provider's id of their message."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.contract.stores import Served
from tests.delivery.services import ACME, Services
from tests.delivery.test_receipts import receipt
from tests.delivery.world import TENANT, Recorder, World, ada, started_world, states, words
from tidings.clock import SystemClock
from tidings.delivery import receipts as module
from tidings.delivery.people.suppressions import Recipient, Suppressions
from tidings.delivery.people.users import Users
from tidings.delivery.receipts import ReceiptHandler
from tidings.delivery.rows import KEPT_RECEIPTS_US, provider_message_key
from tidings.domain.notifications.delivery import Accepted
from tidings.domain.notifications.message import Rendered
from tidings.domain.notifications.tables import PROVIDER_MESSAGES_KEPT, SHARED
from tidings.ports import Store
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

COUNT = 60


def handler(world: World, store: Store | None = None) -> ReceiptHandler:
    """What a node handles receipts with."""
    tables, clock = (store or world.store).tables, world.clock
    return ReceiptHandler(tables, Users(tables, world.engine, clock), Suppressions(tables, clock), clock)


def mail_with_own_ids() -> Recorder:
    """A provider that gives messages ids of its own: `id-n-1` for the notification n-1."""
    mail = Recorder("email")
    mail.answer = lambda message: Accepted(id_of(message))
    return mail


def id_of(message: Rendered) -> str:
    return f"id-{message.id.partition('/')[0]}"


async def kept_rows(services: Services, kept_for: str = "smtp") -> list[str]:
    found = await services.tables.find(PROVIDER_MESSAGES_KEPT, SHARED, (kept_for,), services.clock.now(), limit=10_000)
    return [row.key.name for row in found]


async def test_a_receipt_is_applied_when_its_message_settles(world_on_each_store: World) -> None:
    world, mail = world_on_each_store, mail_with_own_ids()
    await world.put_user(ada())
    receipts, mail.gate = handler(world), asyncio.Event()
    world.start(world.worker({"mail": mail}))
    await world.notify(words("n-1"))
    news = receipt("delivered", "e1", "id-n-1", reason="250 ok")
    assert (await receipts.apply("mail", news)).outcome == "kept"
    assert (await receipts.apply("mail", news)).outcome == "kept"
    mail.gate.set()
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason, delivery.provider_id) == ("delivered", "250 ok", "id-n-1")
    assert [each.event for each in delivery.news] == ["e1"]
    assert (await receipts.apply("mail", news)).outcome == "unchanged"
    assert (await receipts.apply("mail", receipt("complained", "e2", "id-n-1"))).state == "complained"


async def test_an_early_bounce_suppresses_the_address(world_on_each_store: World) -> None:
    """Until its message is known it does not say whom it is about: an erasure could not find it."""
    world, mail = world_on_each_store, mail_with_own_ids()
    await world.put_user(ada())
    receipts, mail.gate = handler(world), asyncio.Event()
    world.start(world.worker({"mail": mail}))
    await world.notify(words("n-1"))
    reason = "550 <Ada@example.com> unknown"
    news = receipt("bounced", "e1", "id-n-1", reason=reason, suppress=True, address="ada@example.com")
    assert (await receipts.apply("mail", news)).outcome == "kept"
    [row] = await world.store.tables.get([provider_message_key("mail", "id-n-1")], world.clock.now())
    assert row is not None
    assert b"ada" not in row.body.lower()
    mail.gate.set()
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason) == ("bounced", "550 <<address>> unknown")
    suppressions = Suppressions(world.store.tables, world.clock)
    [found] = await suppressions.of(TENANT, [Recipient("email", "ada@example.com")])
    assert found is not None
    assert (found.reason, found.user) == ("bounced: 550 <<address>> unknown", "ada")


async def test_no_receipt_is_lost_whenever_it_comes(world_on_each_store: World) -> None:
    """Receipts at every moment around the settlement; some deliveries get two at once."""
    world, mail, tasks = world_on_each_store, mail_with_own_ids(), list[asyncio.Task[object]]()
    await world.put_user(ada())
    handlers, dice = [handler(world), handler(world)], random.Random(7)

    async def tell(state: str, event: str, provider_id: str, reads: int) -> None:
        for _ in range(reads):  # the later it comes
            await world.delivery("n-1/1")
        await dice.choice(handlers).apply("mail", receipt(state, event, provider_id))

    def answer(message: Rendered) -> Accepted:
        for event in range(dice.randint(1, 2)):
            reads = dice.choice((0, 0, 1, 3, 10, 30))
            tasks.append(asyncio.create_task(tell("delivered", f"e{event}", id_of(message), reads)))
        return Accepted(id_of(message))

    mail.answer = answer
    world.start(world.worker({"mail": mail}))
    names = [f"n-{number}" for number in range(COUNT)]
    await world.notify(*(words(name) for name in names))
    found = await world.settled(*(f"{name}/1" for name in names), timeout_s=30)
    await asyncio.gather(*tasks)
    found = await world.settled(*(f"{name}/1" for name in names))
    assert states(found) == {"delivered": COUNT}
    assert sum(len(each.news) for each in found) == len(tasks)


async def test_a_receipt_of_another_tenant_is_not_applied(world_on_each_store: World) -> None:
    world, mail = world_on_each_store, mail_with_own_ids()
    await world.put_user(ada())
    receipts, mail.gate = handler(world), asyncio.Event()
    world.start(world.worker({"mail": mail}))
    await world.notify(words("n-1"))
    assert (await receipts.apply("mail", receipt("bounced", "e1", "id-n-1"), "beta")).outcome == "kept"
    assert (await receipts.apply("mail", receipt("delivered", "e2", "id-n-1"), TENANT)).outcome == "kept"
    mail.gate.set()
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, [each.event for each in delivery.news]) == ("delivered", ["e2"])


async def test_a_kept_receipt_survives_a_restart(tmp_path: Path) -> None:
    async with started_world(await SqliteStore.open(tmp_path / "t.db")) as before:
        assert (await handler(before).apply("mail", receipt("delivered", "e1", "id-n-1"))).outcome == "kept"
    async with started_world(await SqliteStore.open(tmp_path / "t.db")) as world:
        await world.put_user(ada())
        world.start(world.worker({"mail": mail_with_own_ids()}))
        await world.notify(words("n-1"))
        assert states(await world.settled("n-1/1")) == {"delivered": 1}


@pytest.mark.slow
async def test_the_node_that_settles_need_not_be_the_one_that_was_told() -> None:
    stores = [await PostgresStore.open(Served.dsn(), SystemClock(), schema="early_receipts") for _ in range(2)]
    async with started_world(stores[0]) as world:
        await world.put_user(ada())
        told = await handler(world, stores[1]).apply("mail", receipt("delivered", "e1", "id-n-1"))
        assert told.outcome == "kept"
        world.start(world.worker({"mail": mail_with_own_ids()}))
        await world.notify(words("n-1"))
        assert states(await world.settled("n-1/1")) == {"delivered": 1}
    await stores[1].close()


async def test_kept_receipts_expire(services: Services) -> None:
    assert (await services.receipts.apply("smtp", receipt("delivered", "e1", "other"))).outcome == "kept"
    services.clock.advance(KEPT_RECEIPTS_US - 1)
    assert await kept_rows(services) == ["smtp/other"]
    services.clock.advance(1)
    assert await kept_rows(services) == []
    assert (await services.receipts.apply("smtp", receipt("delivered", "e1", "other"))).outcome == "kept"


async def test_only_so_many_are_kept_and_the_latest_stay(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS_MAX", 40)
    await services.receipts.apply("text", receipt("delivered", "e", "x"))
    for number in range(130):
        services.clock.advance(1)
        await services.receipts.apply("smtp", receipt("delivered", "e", f"id-{number}"))
    kept = await kept_rows(services)
    assert 40 <= len(kept) <= 44
    assert kept == [f"smtp/id-{number}" for number in range(130 - len(kept), 130)]
    assert await kept_rows(services, "text") == ["text/x"], "providers are apart"
    assert (await services.receipts.apply("smtp", receipt("delivered", "e", "y"), ACME)).outcome == "kept"
    assert await kept_rows(services, f"smtp/{ACME}") == ["smtp/y"], "and tenants"


async def test_only_so_many_bytes_are_kept(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS_MAX", 40)
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 10_000)
    for number in range(61):
        services.clock.advance(1)
        await services.receipts.apply("smtp", receipt("delivered", "e" * 1_000, f"id-{number}"))
    assert len(await kept_rows(services)) < 13
    long = receipt("delivered", "e" * module.KEPT_ROW_BYTES_MAX, "long")
    assert (await services.receipts.apply("smtp", long)).outcome == "unknown"


async def test_what_cannot_be_kept_is_unknown(services: Services) -> None:
    """Ids of our own have a delivery before they are sent: without one, its recipient was erased."""
    own = ("ada-invoice/1", "ada-invoice/1@acme", "ada-invoice/2/email", "a/2.1", "fired/-1", "fired/2.-1@acme")
    for provider_id in ("", "a\0b", "x" * 1_001, *own):
        told = await services.receipts.apply("smtp", receipt("delivered", "e1", provider_id))
        assert told.outcome == "unknown", provider_id
    assert (
        await services.receipts.apply("smtp", receipt("delivered", "e1", "projects/a/messages/0:1"))
    ).outcome == "kept"
