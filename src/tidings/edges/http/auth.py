"""Authentication: API keys by their digest; without any keys, callers on loopback."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.edges.advice import SEND_KEY, wrong_tenant
from tidings.edges.http.problems import Refusal
from tidings.ports import ApiKey, KeyStore

TENANT_HEADER = "Tidings-Tenant"
KEY_PREFIX = "tdk_"
KEY_BYTES = 32
REFRESH_US = 2_000_000
REFRESH_UNKNOWN_US = 250_000  # so that a key just created by another process is found soon

_CHALLENGE = {"www-authenticate": 'Bearer realm="tidings"'}

_TENANT_HEADER = TENANT_HEADER.lower().encode()


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant that a request acts for, whether it may manage keys, and the name of its key (empty without one)."""

    tenant: str
    admin: bool = False
    key: str = ""


def digest_of(key: str) -> bytes:
    """What is stored of a key: it is random, so a plain hash is enough."""
    return sha256(key.encode()).digest()


def make_key(name: str, tenant: str, *, admin: bool, now: int) -> tuple[str, ApiKey]:
    """A new key, which is shown once, and what is stored of it."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return key, ApiKey(name, tenant, digest_of(key), admin, now)


class KeyRing:
    """The API keys of the store, cached and read again every few seconds."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._by_digest: dict[bytes, Caller] = {}
        self._refreshed: int | None = None

    async def refresh(self) -> None:
        """Read the keys again, at once."""
        self._refreshed = self._clock.elapsed()
        self._by_digest = {key.digest: Caller(key.tenant, key.admin, key.name) for key in await self._keys.keys()}

    async def is_empty(self) -> bool:
        """Whether the store has no keys at all."""
        await self._refresh_after(REFRESH_US)
        return not self._by_digest

    async def find(self, key: str) -> Caller | None:
        """The caller that a key belongs to; None if it is unknown."""
        await self._refresh_after(REFRESH_US)
        digest = digest_of(key)
        caller = self._by_digest.get(digest)
        if caller is None:
            await self._refresh_after(REFRESH_UNKNOWN_US)
            caller = self._by_digest.get(digest)
        return caller

    async def _refresh_after(self, us: int) -> None:
        if self._refreshed is None or self._clock.elapsed() - self._refreshed > us:
            await self.refresh()


async def authenticate(ring: KeyRing | None, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Caller:
    """The caller of a request; raises a refusal that says how to authenticate."""
    authorization = headers.get(b"authorization")
    if authorization is not None and ring is not None:
        scheme, _, key = authorization.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not key:
            detail = f"the Authorization header is not a Bearer key: {SEND_KEY}"
            raise Refusal("unauthorized", detail, headers=_CHALLENGE)
        if caller := await ring.find(key.strip()):
            return caller
        if not await ring.is_empty():
            challenge = {"www-authenticate": f'{_CHALLENGE["www-authenticate"]}, error="invalid_token"'}
            raise Refusal("unauthorized", f"this key is not known or was revoked: {SEND_KEY}", headers=challenge)
    if ring is not None and not await ring.is_empty():
        raise Refusal("unauthorized", f"this server requires an API key: {SEND_KEY}", headers=_CHALLENGE)
    _check_loopback(scope, headers)
    return _LOOPBACK


_LOOPBACK = Caller(DEFAULT_TENANT, admin=True)


def acting_for(caller: Caller, headers: Mapping[bytes, bytes]) -> Caller:
    """The caller as the tenant that the request names; only admin keys, and callers on loopback, may name another."""
    named = headers.get(_TENANT_HEADER)
    if named is None:
        return caller
    tenant = named.decode("latin-1").strip()
    if wrong := wrong_tenant(tenant):
        raise Invalid(TENANT_HEADER, wrong)
    if tenant == caller.tenant:
        return caller
    if not caller.admin:
        detail = f"this key acts for {caller.tenant} only: leave {TENANT_HEADER} out, or use an admin key"
        raise Refusal("forbidden", detail)
    return Caller(tenant, True, caller.key)


def _check_loopback(scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> None:
    """Without keys, serve only clients on this machine, and no web page of another site in a browser on it."""
    client = scope.get("client")
    if client is not None and not is_loopback(client[0]):
        raise Refusal(
            "unauthorized", f"without API keys only clients on this machine are served: {SEND_KEY}", headers=_CHALLENGE
        )
    host = headers.get(b"host")
    if host is not None and not _is_local_origin(b"//" + host):
        detail = "without API keys the Host must be localhost or a loopback address: use one of them in the URL"
        raise Refusal("forbidden", detail)
    origin = headers.get(b"origin")
    if origin is not None and not _is_local_origin(origin):
        detail = "without API keys, pages of other sites are not served: create a key with `tidings keys create`"
        raise Refusal("forbidden", detail)


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is on loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


@lru_cache(maxsize=256)
def _is_local_origin(origin: bytes) -> bool:
    try:
        host = urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)
