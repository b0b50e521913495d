"""Management of API keys in a store, without a running server."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidings.clock import SystemClock
from tidings.config import load
from tidings.domain.errors import NotFound
from tidings.domain.names import check_name
from tidings.edges.cli.program import program
from tidings.node.stores import address_of, is_there, open_store
from tidings.ports import ApiKey, Keys

T = TypeVar("T")


def create_key(store: str, schema: str | None, name: str, tenant: str, admin: bool) -> str:
    """Create a key and return it; the store keeps only its digest."""
    from tidings.edges.http.auth import make_key

    check_name(name, "name")
    check_name(tenant, "tenant")
    key, stored = make_key(name, tenant, admin=admin, now=SystemClock().now())

    async def add(keys: Keys) -> None:
        await keys.add_key(stored)

    _with_keys(address_of(store), schema, add)
    return key


def list_keys(store: str, schema: str | None) -> list[ApiKey]:
    """The keys of a store, by name."""

    async def read(keys: Keys) -> list[ApiKey]:
        return await keys.keys()

    return _with_keys(_existing(store), schema, read)


def revoke_key(store: str, schema: str | None, name: str) -> bool:
    """Delete a key; False if there is none of that name."""

    async def revoke(keys: Keys) -> bool:
        return await keys.revoke_key(name)

    return _with_keys(_existing(store), schema, revoke)


def _with_keys(path: str, schema: str | None, act: Callable[[Keys], Awaitable[T]]) -> T:
    """Open the store with the schema and lanes of the settings; the flag takes precedence."""
    config = load(None, os.environ, {} if schema is None else {"store.schema": ("--schema", schema)}).config

    async def run() -> T:
        store = await open_store(path, config, SystemClock())
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _existing(store: str) -> str:
    path = address_of(store)
    if not is_there(path):
        name = program()
        raise NotFound(f"there is no store {path}: create it with `{name} serve` or `{name} keys create`")
    return path
