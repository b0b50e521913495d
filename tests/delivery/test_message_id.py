"""Message ids: providers accept them, no two tenants have the same, and they can be parsed."""

import msgspec
import pytest

from tests.delivery.world import Recorder, World, ada, schedule, started_world, words
from tidings.delivery.rows import (
    ProviderMessage,
    change,
    delivery_key,
    delivery_of,
    message_id,
    notification_put,
    provider_message_key,
    read,
    user_put,
)
from tidings.domain.notifications.delivery import Accepted, Delivery
from tidings.domain.notifications.message import Email
from tidings.testing import eventually

LONG = "x" * 300


@pytest.mark.parametrize("tenant", ["default", "acme", "t" * 229])
@pytest.mark.parametrize("name", ["n-1/1", "n 1/\u00fc~2", LONG, "tea\nbreak", "50%41/1", "a/1@acme", "a@b/1/email"])
def test_message_ids_are_valid_for_providers_and_unique(name: str, tenant: str) -> None:
    ids = [message_id(tenant, name, device) for device in (0, 1, 12)]
    assert [Email(each, "ada@example.com", "s", "t").id for each in ids] == ids
    others = [message_id(tenant, name + "!"), message_id("beta", name), message_id("default", f"{name}@beta")]
    assert len({*ids, *others}) == 6
    if len(name) + len(tenant) < 200:
        assert delivery_of(tenant, ids[0]) == name
        assert delivery_of("beta", ids[0]) is None


def test_an_id_of_the_default_tenant_is_the_name_alone() -> None:
    assert (message_id("default", "n-1/1"), message_id("default", "n-1/1", 2)) == ("n-1/1", "n-1/1/2")
    assert (message_id("acme", "n-1/1"), message_id("acme", "n-1/1", 2)) == ("n-1/1@acme", "n-1/1/2@acme")
    assert delivery_of("default", message_id("acme", "n-1/1")) is None
    assert delivery_of("acme", message_id("default", "n-1/1")) is None


async def notify_ada(world: World, tenant: str, name: str) -> Delivery:
    """Send the same notification to the user `ada` of each tenant; returns the deliveries."""
    now, one = world.clock.now(), msgspec.structs.replace(words(name), tenant=tenant)
    await change(world.store.tables, [[user_put(tenant, ada(), -1)], [notification_put(one, 0)]], now)
    await world.engine.submit([schedule(one, now)])

    async def settled() -> Delivery | None:
        [there] = await world.store.tables.get([delivery_key(tenant, f"{name}/1")], now)
        delivery = None if there is None else read(there, Delivery)
        return delivery if delivery is not None and delivery.is_settled else None

    delivery = await eventually(settled)
    assert delivery is not None
    return delivery


async def owner_of(world: World, provider_id: str) -> ProviderMessage:
    [there] = await world.store.tables.get([provider_message_key("mail", provider_id)], world.clock.now())
    assert there is not None
    return read(there, ProviderMessage)


async def test_deduplicating_providers_distinguish_equal_ids_of_two_tenants() -> None:
    async with started_world() as world:
        mail = Recorder("email")
        world.start(world.worker({"mail": mail}))
        sent = [await notify_ada(world, tenant, "welcome-42") for tenant in ("default", "acme", "beta")]
        assert mail.took == {"welcome-42/1": 1, "welcome-42/1@acme": 1, "welcome-42/1@beta": 1}
        found = [await owner_of(world, each.provider_id or "") for each in sent]
        assert [each.tenant for each in found] == ["default", "acme", "beta"]


async def test_a_provider_id_given_twice_belongs_to_the_first_delivery() -> None:
    async with started_world() as world:
        mail = Recorder("email")
        mail.answer = lambda _: Accepted("one and the same")
        world.start(world.worker({"mail": mail}))
        sent = [await notify_ada(world, tenant, "welcome-42") for tenant in ("acme", "beta")]
        assert ([each.state for each in sent], len(mail.calls)) == (["sent", "sent"], 2)
        assert await owner_of(world, "one and the same") == ProviderMessage("acme", "welcome-42/1")
