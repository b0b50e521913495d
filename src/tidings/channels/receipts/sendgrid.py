"""SendGrid's event webhook: signed with ECDSA over the timestamp and the raw body, a list of events inside."""

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from tidings.channels.details import shortened
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt, ReceiptState

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
