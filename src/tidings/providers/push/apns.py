"""Push notifications to Apple devices: APNs' provider API, HTTP/2 and a token signed with ES256.

APNs knows no idempotency id, but a device shows only the latest of those with one collapse id: without a collapse key
of its own a message collapses with its own second attempt.
"""

import hashlib
import logging
import re
import uuid
from typing import Literal

import httpx2 as httpx
import msgspec

from tidings.clock import Clock
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import (
    Accepted,
    Broken,
    BrokenReason,
    Permanent,
    PermanentReason,
    Temporary,
    Verdict,
    built,
)
from tidings.domain.notifications.message import ChannelName, Push, Rendered
from tidings.domain.secret import Secret, shortened
from tidings.ports import Address, ProviderContext, ProviderType
from tidings.providers.http.caller import read_key, retry_after, sign
from tidings.providers.http.client import Response, trusted

URLS = {"production": "https://api.push.apple.com", "sandbox": "https://api.sandbox.push.apple.com"}
PAYLOAD_BYTES_MAX = 4_096
COLLAPSE_BYTES_MAX = 64
STREAMS = 100  # that a connection carries at least (RFC 9113); APNs allows more
TOKEN_LIFE_US = 50 * 60_000_000  # Apple refuses a token after an hour
TOKEN_YOUNGEST_US = 20 * 60_000_000  # ... and more than one new token in 20 minutes
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
ID_SPACE = uuid.UUID("9d3c2a52-9a0b-5d41-8c58-0d6a3c7f1b4e")

# The reasons of "Handling notification responses from APNs", by what they ask of us.
_DEAD = frozenset({"BadDeviceToken", "DeviceTokenNotForTopic", "ExpiredToken", "Unregistered"})
_CONTENT: dict[str, PermanentReason] = {
    "BadCollapseId": "content_refused",
    "BadExpirationDate": "content_refused",
    "BadMessageId": "content_refused",
    "BadPriority": "content_refused",
    "DuplicateHeaders": "content_refused",
    "InvalidPushType": "content_refused",
    "MissingDeviceToken": "address_refused",
    "PayloadEmpty": "content_refused",
    "PayloadTooLarge": "too_large",
}
_OURS: dict[str, BrokenReason] = {
    "BadCertificate": "credentials_refused",
    "BadCertificateEnvironment": "credentials_refused",
    "BadEnvironmentKeyIdInToken": "credentials_refused",
    "ExpiredProviderToken": "credentials_refused",
    "InvalidProviderToken": "credentials_refused",
    "MissingProviderToken": "credentials_refused",
    "UnrelatedKeyIdInToken": "credentials_refused",
    "Forbidden": "account_refused",
    "BadTopic": "sender_refused",
    "MissingTopic": "sender_refused",
    "TopicDisallowed": "sender_refused",
    "BadPath": "misconfigured",
    "MethodNotAllowed": "misconfigured",
}


# These log every header, our token among them, and every URL with its device token: neither belongs in a log.
for _name in ("hpack", "httpcore2", "httpx2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class Settings(msgspec.Struct, frozen=True):
    """The signing key (.p8) with its id, the team, and the app's bundle id."""

    key: Secret
    key_id: str
    team_id: str
    topic: str
    environment: Literal["production", "sandbox"] = "production"
    url: str | None = None
    ca_file: str | None = None
    connections_max: int = 4
    timeout_s: float = 20.0


class Apns:
    """Sends push notifications to Apple devices."""

    deduplicates = True

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._url = settings.url or URLS[settings.environment]
        self._token = ProviderToken(settings, clock)
        self._session: _Session | None = None

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        return channel == "push" and isinstance(address, Device) and address.platform == "apns"

    def connections(self, address: Address) -> dict[str, int]:
        del address
        return {"": self._settings.connections_max * STREAMS}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Push)
        body = built(lambda: payload(message))
        if isinstance(body, Permanent):
            return body
        if len(body) > PAYLOAD_BYTES_MAX:
            told = f"the payload has {len(body)} bytes, APNs takes {PAYLOAD_BYTES_MAX}"
            return Permanent("too_large", told, concerns_provider=False)
        verdict = await self._call(message, body)
        if isinstance(verdict, Broken) and "ExpiredProviderToken" in verdict.detail and self._token.renew():
            verdict = await self._call(message, body)
        return verdict

    async def close(self) -> None:
        if self._session is not None:
            await self._session.client.aclose()

    async def _call(self, message: Push, body: bytes) -> Verdict:
        url = f"{self._url}/3/device/{message.to.token}"
        if self._session is None or self._session.is_left:
            self._session = _Session(self._settings)
        session = self._session
        try:
            async with session:
                answer = await session.client.post(url, content=body, headers=self._headers(message))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            detail = shortened(str(error))
            distrust = "certificate verify failed" in detail.lower()
            return Broken("misconfigured", detail) if distrust else Temporary("unreachable", detail)
        except httpx.TimeoutException:
            return Temporary("timeout", "no answer in time", may_have_arrived=True)
        except (httpx.HTTPError, OSError) as error:
            return Temporary("connection_lost", shortened(str(error) or type(error).__name__), may_have_arrived=True)
        return self._judge(Response(answer.status_code, dict(answer.headers), answer.content))

    def _headers(self, message: Push) -> dict[str, str]:
        headers = {
            "authorization": f"bearer {self._token.text()}",
            "apns-id": str(uuid.uuid5(ID_SPACE, message.id)),
            "apns-topic": self._settings.topic,
            "apns-push-type": "alert",
            "apns-priority": "10" if message.urgency == "high" else "5",
            "apns-collapse-id": collapse_id(message),
        }
        if message.expires is not None:
            headers["apns-expiration"] = str(max(0, message.expires // 1_000_000))
        return headers

    def _judge(self, reply: Response) -> Verdict:
        if reply.status == 200:
            return Accepted(reply.headers.get("apns-id", ""))
        content = reply.json()
        reason = str(content.get("reason", "")) if isinstance(content, dict) else ""
        detail = shortened(f"{reply.status} {reason}")
        if reason in _DEAD or reply.status == 410:
            return Permanent("address_gone", detail, address_is_dead=True)
        if reason == "IdleTimeout":
            return Temporary("connection_lost", detail)
        if reason in _OURS:
            return Broken(_OURS[reason], detail)
        if reply.status == 429 or reply.status >= 500:
            wait = retry_after(reply.headers, self._clock.now())
            return Temporary("rate_limited" if reply.status == 429 else "provider_error", detail, wait)
        if reply.status == 403:
            return Broken("credentials_refused", detail)
        return Permanent(_CONTENT.get(reason, "content_refused"), detail)


class _Session:
    """Connections to APNs. One that does not answer may be dead without a word: it is left for new ones, and closed
    by the last who waits for it.
    """

    def __init__(self, settings: Settings) -> None:
        self.is_left = False
        self._users = 0
        self.client = httpx.AsyncClient(
            http1=False,
            http2=True,
            verify=trusted(settings.ca_file),
            timeout=settings.timeout_s,
            limits=httpx.Limits(max_connections=settings.connections_max, keepalive_expiry=None),
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> None:
        self._users += 1

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._users -= 1
        self.is_left |= kind is not None and issubclass(kind, httpx.ReadTimeout | httpx.WriteTimeout)
        if self.is_left and not self._users:
            await self.client.aclose()


class ProviderToken:
    """The token that says who we are: made anew before it is too old, and never more often than Apple allows."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._key = read_key(settings.key, "key")
        self._head = {"kid": settings.key_id}
        self._team = settings.team_id
        self._clock = clock
        self._made = 0
        self._text = ""

    def text(self) -> str:
        """The token of this time."""
        now = self._clock.now()
        if not self._text or not 0 <= now - self._made < TOKEN_LIFE_US:
            self._made = now
            self._text = sign(self._key, self._head, {"iss": self._team, "iat": now // 1_000_000})
        return self._text

    def renew(self) -> bool:
        """Have a new one made, if the last is old enough for it."""
        if self._clock.now() - self._made < TOKEN_YOUNGEST_US:
            return False
        self._text = ""
        return True


def payload(message: Push) -> bytes:
    """What the device gets; our own data beside Apple's dictionary."""
    alert = {"title": message.title, "body": message.body}
    return msgspec.json.encode({**message.data, "aps": {"alert": alert, "sound": "default"}})


def collapse_id(message: Push) -> str:
    """The key under which a device shows one notification: the message's own, or one made of its id."""
    wanted = message.collapse or message.id
    if len(wanted) <= COLLAPSE_BYTES_MAX and _HEADER_VALUE.fullmatch(wanted):
        return wanted
    return hashlib.sha256(wanted.encode()).hexdigest()


def _open(settings: Settings, context: ProviderContext) -> Apns:
    return Apns(settings, context.clock)


PROVIDER = ProviderType(channels=("push",), settings=Settings, open=_open, platforms=("apns",))
