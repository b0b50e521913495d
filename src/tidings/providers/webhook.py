"""Signed calls of somebody's URL (Standard Webhooks), guarded: only public addresses are ever connected to.

The configured secret signs, so that any library of Standard Webhooks checks it with the same. Whoever serves several
tenants sets `per_receiver`: then each receiver has a key of its own, made from that secret, its tenant and the origin
that is called, so that nobody can forge what is for another, and nothing secret is stored for it. A receiver that
remembers `webhook-id` gets every message once.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import DEFAULT_PORTS
from tidings.domain.notifications.delivery import Accepted, Broken, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import ChannelName, Rendered, Webhook
from tidings.domain.secret import Secret, derive, read_key, shortened, sign, written
from tidings.ports import Address, ProviderContext, ProviderType, WebhookCheck
from tidings.providers.http.caller import Caller, retry_after
from tidings.providers.http.client import Resolve, Response, trusted
from tidings.providers.http.guard import Guard

GONE = 410
RECEIVERS_KEPT = 1_024

_AFTER_HOST = re.compile(r"[/?#]")
_LATER = frozenset({408, 409, 423, 425})
_NEVER = frozenset({501, 505})


class Settings(msgspec.Struct, frozen=True):
    """The secret (an older one beside it while receivers change over), whose it is, and what may be called."""

    secret: Secret
    older_secret: Secret | None = None
    per_receiver: bool = False
    ports: tuple[int, ...] = (443, 8443)
    plain_http: bool = False
    allowed_networks: tuple[str, ...] = ()
    refused_networks: tuple[str, ...] = ()
    ca_file: str | None = None
    connections_max: int = 100
    connections_per_host_max: int = 32
    timeout_s: float = 15.0


class WebhookProvider:
    """Calls webhooks."""

    deduplicates = True

    def __init__(self, settings: Settings, clock: Clock, resolve: Resolve | None = None) -> None:
        self._clock = clock
        secrets = [settings.secret, *([settings.older_secret] if settings.older_secret else [])]
        self._secrets = [read_key(secret, "secret") for secret in secrets]
        self._per_receiver = settings.per_receiver
        self._guard = Guard(
            settings.ports,
            plain_http=settings.plain_http,
            allowed=settings.allowed_networks,
            refused=settings.refused_networks,
        )
        self._connections_max = settings.connections_max
        self._per_host_max = settings.connections_per_host_max
        self._known = lru_cache(RECEIVERS_KEPT)(self._receiver)
        self._caller = Caller(
            clock,
            timeout_s=settings.timeout_s,
            connections_max=settings.connections_max,
            per_origin_max=settings.connections_per_host_max,
            tls=trusted(settings.ca_file),
            guard=self._guard,
            resolve=resolve,
        )

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del address
        return channel == "webhook"

    def connections(self, address: Address) -> dict[str, int]:
        """The receiver's own connections, and those of the whole provider."""
        assert isinstance(address, str)
        return {origin(address): self._per_host_max, "": self._connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Webhook)
        try:
            keys = self._known(message.tenant, message.to)
        except Invalid as refusal:
            return Permanent("address_refused", shortened(str(refusal)), concerns_provider=False)
        headers = sign(keys, message.id, self._clock.now() // 1_000_000, message.body)
        reply = await self._caller.post(message.to, {"Content-Type": "application/json", **headers}, message.body)
        match reply:
            case Response():
                return self._judge(reply, message.id)
            case Broken():  # their certificate, not ours
                return Temporary("unreachable", reply.detail)
            case Temporary() | Permanent():
                return reply

    async def close(self) -> None:
        await self._caller.close()

    def _receiver(self, tenant: str, url: str) -> tuple[bytes, ...]:
        """The keys for a receiver who may be called; kept, because most messages go where others went."""
        self._guard.check_target(url)
        if not self._per_receiver:
            return tuple(self._secrets)
        return tuple(derive(secret, tenant, origin(url)) for secret in self._secrets)

    def _judge(self, reply: Response, message_id: str) -> Verdict:
        if 200 <= reply.status < 300:
            return Accepted(message_id)
        detail = f"the receiver answered {reply.status}"
        wait = retry_after(reply.headers, self._clock.now())
        match reply.status:
            case status if status == GONE:
                return Permanent("address_gone", detail, address_is_dead=True)
            case 413:
                return Permanent("too_large", detail)
            case 429:
                return Temporary("rate_limited", detail, wait)
            case status if status in _LATER or (status >= 500 and status not in _NEVER):
                return Temporary("provider_error", detail, wait)
            case status if 300 <= status < 400:
                return Permanent("address_refused", f"{detail}: redirects are not followed: register the final URL")
            case _:
                return Permanent("content_refused", detail)


def origin(url: str) -> str:
    """Scheme, host and port of a URL, in one form."""
    scheme, _, rest = url.partition("://")
    return _origin(f"{scheme}://{_AFTER_HOST.split(rest, 1)[0]}")


@lru_cache(RECEIVERS_KEPT)
def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{parts.port or DEFAULT_PORTS.get(parts.scheme, 0)}"


def receiver_secret(secret: str, tenant: str, url: str) -> str:
    """What a receiver configures to check our signatures, where `per_receiver` is set."""
    return written(derive(read_key(Secret(secret), "secret"), tenant, origin(url)))


def _open(settings: Settings, context: ProviderContext) -> WebhookProvider:
    return WebhookProvider(settings, context.clock)


def _check(settings: Mapping[str, Any]) -> WebhookCheck:
    """The check of URLs that the provider makes, from the settings as they are written."""
    defaults = Settings(Secret(""))
    names = ("ports", "plain_http", "allowed_networks", "refused_networks")
    ports, plain_http, allowed, refused = (settings.get(name, getattr(defaults, name)) for name in names)
    return Guard(ports, plain_http=plain_http, allowed=allowed, refused=refused).check_target


PROVIDER = ProviderType(channels=("webhook",), settings=Settings, open=_open, webhook_check=_check)
