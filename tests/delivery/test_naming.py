"""Ids under which deliveries are sent: providers take them, no two tenants have the same, and they can be read back."""

import msgspec
import pytest

from tests.delivery.world import Recorder, World, ada, living, schedule, words
from tidings.delivery.filing import Sent, delivery_key, notification_put, read, sent_key, user_put
from tidings.delivery.naming import message_id, named_by
from tidings.domain.notifications.delivery import Accepted, Delivery
from tidings.domain.notifications.message import Email
from tidings.testing import eventually

LONG = "x" * 300


@pytest.mark.parametrize("tenant", ["default", "acme", "t" * 229])
@pytest.mark.parametrize("name", ["n-1/1", "n 1/\u00fc~2", LONG, "tea\nbreak", "50%41/1", "a/1@acme", "a@b/1/email"])
def test_providers_take_every_id_and_each_is_its_own(name: str, tenant: str) -> None:
    ids = [message_id(tenant, name, device) for device in (0, 1, 12)]
    assert [Email(each, "ada@example.com", "s", "t").id for each in ids] == ids
    others = [message_id(tenant, name + "!"), message_id("beta", name), message_id("default", f"{name}@beta")]
    assert len({*ids, *others}) == 6
    if len(name) + len(tenant) < 200:
        assert named_by(tenant, ids[0]) == name
        assert named_by("beta", ids[0]) is None


def test_an_id_of_the_default_tenant_is_the_name_alone() -> None:
    assert (message_id("default", "n-1/1"), message_id("default", "n-1/1", 2)) == ("n-1/1", "n-1/1/2")
    assert (message_id("acme", "n-1/1"), message_id("acme", "n-1/1", 2)) == ("n-1/1@acme", "n-1/1/2@acme")
    assert named_by("default", message_id("acme", "n-1/1")) is None
    assert named_by("acme", message_id("default", "n-1/1")) is None


async def tell(world: World, tenant: str, name: str) -> Delivery:
    """The same notification for the person whom each tenant calls Ada, and what became of it."""
    now, one = world.clock.now(), msgspec.structs.replace(words(name), tenant=tenant)
    await world.store.documents.change([[user_put(tenant, ada(), -1)], [notification_put(one, 0)]], now)
    await world.engine.submit([schedule(one, now)])

    async def settled() -> Delivery | None:
        [there] = await world.store.documents.get([delivery_key(tenant, f"{name}/1")], now)
        delivery = None if there is None else read(there, Delivery)
        return delivery if delivery is not None and delivery.is_settled else None

    delivery = await eventually(settled)
    assert delivery is not None
    return delivery


async def whose(world: World, provider_id: str) -> Sent:
    [there] = await world.store.documents.get([sent_key("mail", provider_id)], world.clock.now())
    assert there is not None
    return read(there, Sent)


async def test_two_tenants_with_one_id_are_told_apart_by_who_knows_ids_again() -> None:
    async with living() as world:
        mail = Recorder("email")
        world.start(world.worker({"mail": mail}))
        sent = [await tell(world, tenant, "welcome-42") for tenant in ("default", "acme", "beta")]
        assert mail.took == {"welcome-42/1": 1, "welcome-42/1@acme": 1, "welcome-42/1@beta": 1}
        found = [await whose(world, each.provider_id or "") for each in sent]
        assert [each.tenant for each in found] == ["default", "acme", "beta"]


async def test_an_id_that_a_provider_gives_twice_stays_the_first_ones() -> None:
    async with living() as world:
        mail = Recorder("email")
        mail.answer = lambda _: Accepted("one and the same")
        world.start(world.worker({"mail": mail}))
        sent = [await tell(world, tenant, "welcome-42") for tenant in ("acme", "beta")]
        assert ([each.state for each in sent], len(mail.calls)) == (["sent", "sent"], 2)
        assert await whose(world, "one and the same") == Sent("acme", "welcome-42/1")
