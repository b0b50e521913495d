"""The receipt for everybody else: JSON that is signed as Standard Webhooks says.

`{"state": "bounced", "message": "<our id>", "reason": "...", "suppress": true, "at": "2026-11-20T09:00:00Z"}`
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import get_args

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt, ReceiptState
from tidings.domain.secret import Secret, read_key, shortened, verify
from tidings.ports.provider import Callback, ReceiptType
from tidings.shapes.refusal import decode

BODY_BYTES_MAX = 64 * 1024


class News(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be said. One of `message` and `provider_id` says of which message."""

    state: ReceiptState
    message: str | None = None
    provider_id: str = ""
    address: str | None = None
    reason: str = ""
    suppress: bool = False
    at: datetime | None = None


def read(secrets: Iterable[Secret], headers: Mapping[str, str], body: bytes, now_s: int) -> DeliveryReceipt:
    """The receipt, if it was signed with one of the secrets, not long ago."""
    if len(body) > BODY_BYTES_MAX:
        raise Invalid("body", f"has {len(body)} bytes, more than {BODY_BYTES_MAX}")
    event = verify([read_key(secret, "secret") for secret in secrets], headers, body, now_s)
    try:
        news = decode(body, News)
    except Invalid as invalid:
        if invalid.field == "state" and "is missing" not in invalid.detail:
            raise Invalid("state", f"is not a known state: use one of {', '.join(get_args(ReceiptState))}") from None
        raise
    if not news.message and not news.provider_id:
        raise Invalid("message", "is missing, and so is provider_id: give one of them")
    if news.at is not None and news.at.tzinfo is None:
        raise Invalid("at", "has no time zone: write one such as 2026-11-20T09:00:00Z")
    return DeliveryReceipt(
        news.state,
        provider_id=news.provider_id,
        event=event,
        message=news.message,
        address=news.address,
        at=None if news.at is None else int(news.at.timestamp() * 1_000_000),
        reason=shortened(news.reason),
        suppress=news.suppress or news.state in {"complained", "unsubscribed"},
    )


class Settings(msgspec.Struct, frozen=True):
    """The secret that signs receipts, and the older one while it is rotated."""

    secret: Secret
    older_secret: Secret | None = None


class SignedReader:
    """Everybody else: JSON that is signed as Standard Webhooks says. Several secrets, while one replaces another."""

    bytes_max = BODY_BYTES_MAX

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self._secrets = tuple(secrets)
        self._keys = [read_key(secret, "secret") for secret in secrets]

    def verify(self, callback: Callback) -> None:
        verify(self._keys, callback.headers, callback.body, callback.now_s)

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        return [read(self._secrets, callback.headers, callback.body, callback.now_s)]


def _open(settings: Settings, public_url: str | None) -> SignedReader:
    del public_url
    return SignedReader([settings.secret, *([settings.older_secret] if settings.older_secret is not None else [])])


RECEIPTS = ReceiptType(settings=Settings, open=_open)
