"""API keys: stored as digests, with unique names."""

import pytest

from tests.contract.factories import NOW
from tidings.domain.errors import Invalid
from tidings.ports import ApiKey, Store

ONE = ApiKey("one", "acme", b"\x00\xff" * 16, False, NOW)
TWO = ApiKey("two", "globex", b"\x01" * 32, True, NOW + 1)


async def names(store: Store) -> list[str]:
    return sorted(key.name for key in await store.keys())


async def test_keys_are_returned_as_they_were_added(store: Store) -> None:
    assert await store.keys() == []
    await store.add_key(TWO)
    await store.add_key(ONE)
    assert sorted(await store.keys(), key=lambda key: key.name) == [ONE, TWO]


async def test_a_key_name_is_unique(store: Store) -> None:
    await store.add_key(ONE)
    with pytest.raises(Invalid) as refused:
        await store.add_key(ApiKey("one", "globex", b"\x02" * 32, True, NOW + 1))
    assert refused.value.field == "name"
    assert await store.keys() == [ONE]


async def test_a_revoked_key_is_gone_and_its_name_is_free(store: Store) -> None:
    await store.add_key(ONE)
    await store.add_key(TWO)
    assert await store.revoke_key("one")
    assert await names(store) == ["two"]
    assert not await store.revoke_key("one")
    assert not await store.revoke_key("nobody")
    await store.add_key(ONE)
    assert await names(store) == ["one", "two"]
