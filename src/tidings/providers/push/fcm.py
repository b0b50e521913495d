"""Push notifications through Firebase Cloud Messaging: the HTTP v1 API, as a service account.

FCM knows no idempotency id; a collapse key makes a device that was away keep only the latest of a message's attempts.
"""

import asyncio
import hashlib
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import (
    Accepted,
    Broken,
    Permanent,
    PermanentReason,
    Temporary,
    Verdict,
    built,
)
from tidings.domain.notifications.message import ChannelName, Push, Rendered
from tidings.domain.secret import Secret, shortened
from tidings.ports import Address, ProviderContext, ProviderType
from tidings.providers.http.caller import SECOND_US, Caller, read_key, retry_after, sign
from tidings.providers.http.client import Response, trusted

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
PAYLOAD_BYTES_MAX = 4_096
ASSERTION_LIFE_S = 3_600
SPARE_US = 300 * SECOND_US  # an access token is renewed so long before its end
QUOTA_WAIT_US = 60 * SECOND_US  # what FCM asks for where it gives no Retry-After
TTL_S_MAX = 2_419_200
_NOT_DATA = ("google", "gcm.")  # prefixes that FCM keeps to itself


class Account(msgspec.Struct, frozen=True):
    """The file of a service account, as far as it matters. The key in it is a secret as well."""

    client_email: str
    private_key: str
    project_id: str
    private_key_id: str = ""
    token_uri: str = "https://oauth2.googleapis.com/token"  # an address, no secret

    def __repr__(self) -> str:
        return f"Account({self.client_email})"


class Settings(msgspec.Struct, frozen=True):
    """The service account's JSON file, and where the API is."""

    account: Secret
    url: str = "https://fcm.googleapis.com"
    token_url: str | None = None
    ca_file: str | None = None
    connections_max: int = 32
    timeout_s: float = 20.0


class Fcm:
    """Sends push notifications to devices that are registered with Firebase."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock) -> None:
        account = _account(settings.account)
        self._clock = clock
        self._connections_max = settings.connections_max
        self._url = f"{settings.url}/v1/projects/{quote(account.project_id, safe='')}/messages:send"
        self._caller = Caller(
            clock, timeout_s=settings.timeout_s, connections_max=settings.connections_max, tls=trusted(settings.ca_file)
        )
        self._access = Access(account, settings.token_url or account.token_uri, self._caller, clock)

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        return channel == "push" and isinstance(address, Device) and address.platform == "fcm"

    def connections(self, address: Address) -> dict[str, int]:
        del address
        return {"": self._connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Push)
        body = built(lambda: msgspec.json.encode(self._body(message)))
        if isinstance(body, Permanent):
            return body
        size = len(message.title.encode()) + len(message.body.encode()) + len(msgspec.json.encode(message.data))
        if size > PAYLOAD_BYTES_MAX:
            return _unsent("too_large", f"the payload has {size} bytes, FCM takes {PAYLOAD_BYTES_MAX}")
        reserved = [name for name in message.data if name == "from" or name.startswith(_NOT_DATA)]
        if reserved:
            return _unsent("content_refused", shortened(f"the data key {reserved[0]!r} is reserved by FCM"))
        verdict, token = await self._call(body)
        if token is not None and isinstance(verdict, Broken) and verdict.reason == "credentials_refused":
            self._access.forget(token)
            verdict, _ = await self._call(body)
        return verdict

    async def close(self) -> None:
        await self._caller.close()

    async def _call(self, body: bytes) -> tuple[Verdict, Secret | None]:
        """The verdict, and the access token that it was called with."""
        token = await self._access.token()
        if not isinstance(token, Secret):
            return token, None
        headers = {"Authorization": f"Bearer {token.reveal()}", "Content-Type": "application/json"}
        reply = await self._caller.post(self._url, headers, body)
        return (self._judge(reply, token) if isinstance(reply, Response) else reply), token

    def _body(self, message: Push) -> dict[str, Any]:
        collapse = message.collapse or hashlib.sha256(message.id.encode()).hexdigest()[:32]
        android: dict[str, Any] = {"priority": message.urgency.upper(), "collapse_key": collapse}
        if message.expires is not None:
            left_s = (message.expires - self._clock.now()) // SECOND_US
            android["ttl"] = f"{min(max(0, left_s), TTL_S_MAX)}s"
        return {
            "message": {
                "token": message.to.token,
                "notification": {"title": message.title, "body": message.body},
                "data": message.data,
                "android": android,
            }
        }

    def _judge(self, reply: Response, token: Secret) -> Verdict:
        if reply.status == 200:
            content = reply.json()
            return Accepted(str(content.get("name", "")) if isinstance(content, dict) else "")
        code, text, names_token = _error(reply)
        detail = shortened(f"{reply.status} {code} {text}", (token,))
        wait = retry_after(reply.headers, self._clock.now())
        match code, reply.status:
            case ("UNREGISTERED", _):
                return Permanent("address_gone", detail, address_is_dead=True)
            case ("SENDER_ID_MISMATCH", _):
                return Permanent("address_refused", detail, address_is_dead=True)
            case ("QUOTA_EXCEEDED", _) | (_, 429):
                return Temporary("rate_limited", detail, QUOTA_WAIT_US if wait is None else wait)
            case ("THIRD_PARTY_AUTH_ERROR", _):
                # Firebase has no key for the service behind this token (APNs, web push): others are not concerned.
                return Temporary("address_deferred", detail, wait)
            case (_, 401):
                return Broken("credentials_refused", detail)
            case (_, 403):
                return Broken("account_refused", detail)
            case ("INVALID_ARGUMENT", _) | (_, 400):
                return Permanent("address_refused" if names_token else "content_refused", detail, names_token)
            case ("NOT_FOUND", 404):
                return Permanent("address_gone", detail)
            case (_, 413):
                return Permanent("too_large", detail)
            case (_, status) if status >= 500 or status == 408:
                return Temporary("provider_error", detail, wait)
            case _:
                return Broken("misconfigured", detail)


class Access:
    """The access token of a service account (RFC 7523): asked for once, shared, renewed before its end."""

    def __init__(self, account: Account, url: str, caller: Caller, clock: Clock) -> None:
        self._key = read_key(Secret(account.private_key), "account")
        self._account, self._url = account, url
        self._caller, self._clock = caller, clock
        self._asking = asyncio.Lock()
        self._token: Secret | None = None
        self._until = 0

    async def token(self) -> Secret | Verdict:
        """The token of this time, or why there is none."""
        async with self._asking:
            if self._token is None or self._clock.now() >= self._until:
                return await self._ask()
            return self._token

    def forget(self, token: Secret) -> None:
        """Have a new one asked for, unless somebody did so already."""
        if self._token is token:
            self._token = None

    async def _ask(self) -> Secret | Verdict:
        now_s = self._clock.now() // SECOND_US
        claims = {
            "iss": self._account.client_email,
            "scope": SCOPE,
            "aud": self._account.token_uri,
            "iat": now_s,
            "exp": now_s + ASSERTION_LIFE_S,
        }
        assertion = sign(self._key, {"typ": "JWT", "kid": self._account.private_key_id}, claims)
        form = urlencode({"grant_type": GRANT, "assertion": assertion}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        reply = await self._caller.post(self._url, headers, form)
        if not isinstance(reply, Response):
            # what was lost on this way is only the token: the message itself was not sent
            return Temporary(reply.reason, reply.detail) if isinstance(reply, Temporary) else reply
        match reply.status, reply.json():
            case 200, {"access_token": str(text), "expires_in": int(life_s)}:
                self._token = Secret(text)
                self._until = self._clock.now() + max(0, life_s * SECOND_US - SPARE_US)
                return self._token
            case status, content:
                code = content.get("error", "") if isinstance(content, dict) else ""
                detail = shortened(f"{status} {code} from {self._url}")
                if status == 429 or status >= 500:
                    return Temporary("provider_error", detail, retry_after(reply.headers, self._clock.now()))
                return Broken("credentials_refused", detail)


def _error(reply: Response) -> tuple[str, str, bool]:
    """FCM's own code where there is one, else the general status; the text; whether it is the token that is wrong."""
    match reply.json():
        case {"error": {"status": str(status), **rest}}:
            items = rest.get("details")
            details = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            codes = [str(item["errorCode"]) for item in details if "errorCode" in item]
            fields = [str(violation) for item in details for violation in item.get("fieldViolations") or ()]
            text = str(rest.get("message", ""))
            code = codes[0] if codes else status
            names_token = any("message.token" in field for field in fields) or (
                code == "INVALID_ARGUMENT" and "registration token" in text
            )
            return code, text, names_token
        case _:
            return "", "", False


def _unsent(reason: PermanentReason, detail: str) -> Permanent:
    """Refused here: FCM was not called."""
    return Permanent(reason, detail, concerns_provider=False)


def _account(secret: Secret) -> Account:
    try:
        return msgspec.json.decode(secret.reveal(), type=Account)
    except msgspec.DecodeError:
        raise Invalid("account", "is not the JSON file of a service account: download it from the console") from None


def _open(settings: Settings, context: ProviderContext) -> Fcm:
    return Fcm(settings, context.clock)


PROVIDER = ProviderType(channels=("push",), settings=Settings, open=_open, platforms=("fcm",))
