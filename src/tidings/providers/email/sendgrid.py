"""E-mail by SendGrid: its API and its delivery receipts."""

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import (
    Accepted,
    Broken,
    DeliveryReceipt,
    Permanent,
    ReceiptState,
    Temporary,
    Verdict,
    built,
)
from tidings.domain.notifications.message import ChannelName, Email, Rendered
from tidings.domain.secret import Secret, shortened
from tidings.ports import Address, ProviderContext, ProviderType
from tidings.ports.provider import Callback, ReceiptType
from tidings.providers.email.mime import Sender, ascii_domain
from tidings.providers.http.caller import SECOND_US, Caller, retry_after
from tidings.providers.http.client import Response, trusted

SIGNATURE = "x-twilio-email-event-webhook-signature"
TIMESTAMP = "x-twilio-email-event-webhook-timestamp"
TOLERANCE_S = 600
BODY_BYTES_MAX = 4 << 20
EVENTS_MAX = 10_000

_STATES: dict[str, ReceiptState] = {
    "delivered": "delivered",
    "bounce": "bounced",
    "dropped": "failed",
    "spamreport": "complained",
    "unsubscribe": "unsubscribed",
    "group_unsubscribe": "unsubscribed",
}
_SUPPRESSING_DROPS = ("bounced address", "unsubscribed address", "spam reporting address", "invalid")


class Event(msgspec.Struct, frozen=True):
    """As far as we read it; there are events of opening and clicking as well, which are none of our business."""

    event: str = ""
    email: str | None = None
    timestamp: int | None = None
    sg_event_id: str = ""
    sg_message_id: str = ""
    reason: str = ""
    type: str = ""
    tidings_id: str | None = None
    tidings_tenant: str | None = None


def read_key(text: str) -> EllipticCurvePublicKey:
    """The verification key as SendGrid shows it: base64 without any frame."""
    try:
        key = load_der_public_key(b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise Invalid("verification_key", "is not the key that SendGrid shows beside its signed event webhook")
    return key


def verify(key: EllipticCurvePublicKey, headers: Mapping[str, str], body: bytes, now_s: int) -> None:
    """Refuse what SendGrid did not sign, or signed long ago. Header names in lower case."""
    signature, at = headers.get(SIGNATURE, ""), headers.get(TIMESTAMP, "")
    if not (at.isascii() and at.isdigit() and len(at) <= 12) or abs(now_s - int(at)) > TOLERANCE_S:
        raise Invalid(TIMESTAMP, f"is missing, or more than {TOLERANCE_S} s away from now")
    try:
        key.verify(b64decode(signature, validate=True), at.encode() + body, ECDSA(SHA256()))
    except (InvalidSignature, ValueError, binascii.Error):
        raise Invalid(SIGNATURE, "is not SendGrid's: check the verification key") from None


def read(body: bytes) -> list[DeliveryReceipt]:
    """The receipts in a request that was verified; what tells nothing of delivery is left out."""
    if len(body) > BODY_BYTES_MAX:
        raise Invalid("body", f"has {len(body)} bytes, more than {BODY_BYTES_MAX}")
    try:
        events = msgspec.json.decode(body, type=list[Event])
    except msgspec.DecodeError as error:
        raise Invalid("body", f"is not a list of events: {error}") from None
    if len(events) > EVENTS_MAX:
        raise Invalid("body", f"has {len(events)} events, more than {EVENTS_MAX}")
    return list(_receipts(events))


def _receipts(events: list[Event]) -> Iterator[DeliveryReceipt]:
    for event in events:
        state = _STATES.get(event.event)
        if state is None:
            continue
        is_soft = event.event == "bounce" and event.type == "blocked"  # refused this time, the mailbox exists
        dropped = event.event == "dropped" and event.reason.lower().startswith(_SUPPRESSING_DROPS)
        yield DeliveryReceipt(
            "failed" if is_soft else state,
            provider_id=event.sg_message_id.partition(".")[0],  # the API's answer has only the first part
            event=event.sg_event_id,
            message=event.tidings_id,
            tenant=event.tidings_tenant,
            address=event.email,
            at=None if event.timestamp is None else event.timestamp * 1_000_000,
            reason=shortened(event.reason or event.type),
            suppress=dropped or (state in {"bounced", "complained", "unsubscribed"} and not is_soft),
        )


class ReceiptSettings(msgspec.Struct, frozen=True):
    """The public key that SendGrid shows for its signed event webhook; it is not a secret."""

    verification_key: str


class SendGridReader:
    """Events of SendGrid, by the public key that it shows beside its signed event webhook."""

    bytes_max = BODY_BYTES_MAX

    def __init__(self, verification_key: str) -> None:
        self._key = read_key(verification_key)

    def verify(self, callback: Callback) -> None:
        verify(self._key, callback.headers, callback.body, callback.now_s)

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        return read(callback.body)


def _open_receipts(settings: ReceiptSettings, public_url: str | None) -> SendGridReader:
    del public_url
    return SendGridReader(settings.verification_key)


RECEIPTS = ReceiptType(settings=ReceiptSettings, open=_open_receipts)


PATH = "/v3/mail/send"
ID_ARGUMENT, TENANT_ARGUMENT = "tidings_id", "tidings_tenant"  # come back with every event


class Settings(msgspec.Struct, frozen=True):
    """The key, who e-mails come from, and where the API is (`https://api.eu.sendgrid.com` for the EU)."""

    api_key: Secret
    sender: str
    sender_name: str = ""
    url: str = "https://api.sendgrid.com"
    ca_file: str | None = None
    sandbox: bool = False
    connections_max: int = 32
    timeout_s: float = 20.0


class SendGrid:
    """Sends e-mail through SendGrid."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._sender = Sender(settings.sender, settings.sender_name)
        self._caller = Caller(
            clock, timeout_s=settings.timeout_s, connections_max=settings.connections_max, tls=trusted(settings.ca_file)
        )

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del address
        return channel == "email"

    def connections(self, address: Address) -> dict[str, int]:
        del address
        return {"": self._settings.connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Email)
        headers = {
            "Authorization": f"Bearer {self._settings.api_key.reveal()}",
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        body = built(lambda: msgspec.json.encode(self._body(message)))
        if isinstance(body, Permanent):
            return body
        reply = await self._caller.post(self._settings.url + PATH, headers, body)
        return self._judge(reply) if isinstance(reply, Response) else reply

    async def close(self) -> None:
        await self._caller.close()

    def _body(self, message: Email) -> dict[str, Any]:
        to = {"email": ascii_domain(message.to)} | ({"name": message.to_name} if message.to_name else {})
        sender = {"email": self._sender.address}
        if self._settings.sender_name:
            sender["name"] = self._settings.sender_name
        ours = {ID_ARGUMENT: message.id, TENANT_ARGUMENT: message.tenant}
        body: dict[str, Any] = {
            "personalizations": [{"to": [to], "custom_args": ours}],
            "from": sender,
            "subject": message.subject or " ",  # an empty one is refused
            "content": [{"type": "text/plain", "value": message.text or " "}],
        }
        if message.html:
            body["content"].append({"type": "text/html", "value": message.html})
        if message.unsubscribe_url:
            body["headers"] = {
                "List-Unsubscribe": f"<{message.unsubscribe_url}>",
                "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
            }
        if self._settings.sandbox:
            body["mail_settings"] = {"sandbox_mode": {"enable": True}}
        return body

    def _judge(self, reply: Response) -> Verdict:
        """By the documented status; what is wrong with the request says the field that it names."""
        if 200 <= reply.status < 300:
            return Accepted(reply.headers.get("x-message-id", ""))
        field, text = _first_error(reply)
        detail = shortened(f"{reply.status} {field} {text}", (self._settings.api_key,))
        match reply.status:
            case 429:
                return Temporary("rate_limited", detail, self._wait(reply))
            case 400 if ".to." in field or field.startswith("personalizations"):
                return Permanent("address_refused", detail)
            case 400 if field == "from" or field.startswith("from."):
                return Broken("sender_refused", detail)
            case 400 | 422 | 431:
                return Permanent("content_refused", detail)
            case 413:
                return Permanent("too_large", detail)
            case 401:
                return Broken("credentials_refused", detail)
            case 403:
                return Broken("sender_refused", detail)
            case status if status >= 500 or status == 408:
                return Temporary("provider_error", detail, retry_after(reply.headers, self._clock.now()))
            case _:
                return Broken("misconfigured", detail)

    def _wait(self, reply: Response) -> int | None:
        """`Retry-After`, or what the limit's own header says: the second at which it begins anew."""
        now = self._clock.now()
        reset = reply.headers.get("x-ratelimit-reset", "")
        if "retry-after" in reply.headers or not (reset.isascii() and reset.isdigit()):
            return retry_after(reply.headers, now)
        return retry_after({"retry-after": str(max(0, -(-(int(reset[:12]) * SECOND_US - now) // SECOND_US)))}, now)


def _first_error(reply: Response) -> tuple[str, str]:
    match reply.json():
        case {"errors": [{"message": str(text), **rest}, *_]}:
            return str(rest.get("field") or ""), text
        case _:
            return "", ""


def _open(settings: Settings, context: ProviderContext) -> SendGrid:
    return SendGrid(settings, context.clock)


PROVIDER = ProviderType(channels=("email",), settings=Settings, open=_open, receipts=RECEIPTS)
