"""API keys, stored as digests."""

from typing import Protocol

import msgspec


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """An API key as stored: never the key itself, only its digest."""

    name: str
    tenant: str
    digest: bytes
    admin: bool
    created: int


class KeyStore(Protocol):
    """Stores API keys."""

    async def keys(self) -> list[ApiKey]: ...

    async def add_key(self, key: ApiKey) -> None: ...

    async def revoke_key(self, name: str) -> bool: ...
