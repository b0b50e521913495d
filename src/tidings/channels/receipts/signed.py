"""The receipt for everybody else: JSON that is signed as Standard Webhooks says.

`{"state": "bounced", "message": "<our id>", "reason": "...", "suppress": true, "at": "2026-11-20T09:00:00Z"}`
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import get_args

import msgspec

from tidings.channels.details import shortened
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt, ReceiptState
from tidings.domain.secret import Secret, read_key, verify

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
        news = msgspec.json.decode(body, type=News)
    except msgspec.DecodeError as error:
        if "`$.state`" in str(error):
            raise Invalid("state", f"is not a known state: use one of {', '.join(get_args(ReceiptState))}") from None
        raise Invalid("body", str(error)) from None
    if not news.message and not news.provider_id:
        raise Invalid("message", "or provider_id is missing: say which message this is about")
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
