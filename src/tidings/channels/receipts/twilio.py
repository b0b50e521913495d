"""Twilio's status callbacks: a form, signed with HMAC-SHA1 over the URL and the form's fields in order."""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, parse_qsl, urlsplit

from tidings.channels.twilio_codes import judge_code
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt, Permanent, ReceiptState
from tidings.domain.secret import Secret

SIGNATURE = "x-twilio-signature"
FIELDS_MAX = 200
BODY_BYTES_MAX = 64 * 1024

_STATES: dict[str, ReceiptState] = {
    "delivered": "delivered",
    "read": "delivered",
    "undelivered": "bounced",
    "failed": "failed",
}
_DEFAULT = {"https": 443, "http": 80}


def read_form(body: bytes) -> list[tuple[str, str]]:
    """The fields of a callback, empty ones too: they are signed as well."""
    if len(body) > BODY_BYTES_MAX:
        raise Invalid("body", f"has {len(body)} bytes, more than {BODY_BYTES_MAX}")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Invalid("body", "is not a form as sent by Twilio") from None


def verify(token: Secret, url: str, form: Sequence[tuple[str, str]], headers: Mapping[str, str]) -> None:
    """Refuse what was not signed with the account's token. `url` is the one that Twilio called, query included."""
    given = headers.get(SIGNATURE, "").encode()
    expected = [_signature(token, one, form) for one in _spellings(url)]
    if not any(hmac.compare_digest(given, signature) for signature in expected):
        raise Invalid(SIGNATURE, "is not Twilio's: check the token, and the public URL of this server")


def read(url: str, form: Sequence[tuple[str, str]]) -> DeliveryReceipt | None:
    """The receipt in a callback that was verified; None while the message is still on its way."""
    fields = dict(form)
    state = _STATES.get(fields.get("MessageStatus", ""))
    if state is None:
        return None
    code = fields.get("ErrorCode", "")
    meaning = judge_code(int(code), "") if code.isascii() and code.isdigit() and len(code) < 9 else None
    is_dead = isinstance(meaning, Permanent) and meaning.address_is_dead
    unsubscribed = isinstance(meaning, Permanent) and meaning.reason == "unsubscribed"
    sid = fields.get("MessageSid", "")
    return DeliveryReceipt(
        "unsubscribed" if unsubscribed else state,
        provider_id=sid,
        event=f"{sid}/{fields['MessageStatus']}",
        message=next(iter(parse_qs(urlsplit(url).query).get("id", [])), None),
        address=fields.get("To"),
        reason=f"Twilio {code}" if code else "",
        suppress=is_dead,
    )


def _signature(token: Secret, url: str, form: Sequence[tuple[str, str]]) -> bytes:
    """Over the URL, then each name and value, by name; a value that comes twice counts once."""
    signed = url + "".join(name + value for name, value in sorted(set(form)))
    return b64encode(hmac.digest(token.reveal().encode(), signed.encode(), hashlib.sha1))


def _spellings(url: str) -> list[str]:
    """The URL with and without its port: Twilio signs the one or the other."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
    port = parts.port or _DEFAULT.get(parts.scheme, 443)
    return [parts._replace(netloc=host).geturl(), parts._replace(netloc=f"{host}:{port}").geturl()]
