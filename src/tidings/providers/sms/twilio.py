"""SMS by Twilio: its API, its error codes, and its delivery receipts."""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

import msgspec

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
from tidings.domain.notifications.message import ChannelName, Rendered, Sms
from tidings.domain.secret import Secret, shortened
from tidings.ports import Address, ProviderContext, ProviderType
from tidings.ports.provider import Callback, ReceiptType
from tidings.providers.http.caller import Caller, retry_after
from tidings.providers.http.client import Response, trusted

_LATER = {
    20429: "rate_limited",  # too many requests
    21611: "rate_limited",  # the queue of this sender is full
    30001: "rate_limited",  # queue overflow
    30022: "rate_limited",  # US A2P throughput
    63038: "rate_limited",  # the account's messages of this day
    20500: "provider_error",
    20503: "provider_error",
    21730: "provider_error",  # maintenance
}
_DEAD = frozenset({21211, 21217, 21614, 30005, 30006})  # no such number, or one that takes no text messages
# Not this number, from here, now. 21608 and 21659 depend on the number too: a trial account reaches verified numbers
# alone, and a short code those of its country.
_REFUSED = frozenset({21265, 21408, 21604, 21608, 21612, 21635, 21659, 30003, 30004})
_UNSUBSCRIBED = frozenset({21610})  # they answered STOP
_CONTENT = frozenset({21602, 21617, 21619, 21620, 21623, 30007, 30034})
_TOO_LARGE = 21617
_SENDER = frozenset({21212, 21603, 21606, 21607, 21660, 21661, 21701, 21703, 21705, 21712})
_ACCOUNT = frozenset({20005, 20006, 30002, 90010})  # suspended


def judge_code(code: int, detail: str) -> Temporary | Permanent | Broken | None:
    """What a code of the dictionary means, in an answer as in a status callback; None if it is not in our table."""
    if code in _LATER:
        return Temporary("rate_limited" if _LATER[code] == "rate_limited" else "provider_error", detail)
    if code in _DEAD:
        return Permanent("address_gone", detail, address_is_dead=True)
    if code in _UNSUBSCRIBED:
        return Permanent("unsubscribed", detail, address_is_dead=True)
    if code in _REFUSED:
        return Permanent("address_refused", detail)
    if code in _CONTENT:
        return Permanent("too_large" if code == _TOO_LARGE else "content_refused", detail)
    if code == 20003:
        return Broken("credentials_refused", detail)
    if code in _SENDER:
        return Broken("sender_refused", detail)
    return Broken("account_refused", detail) if code in _ACCOUNT else None


def is_about_message(code: object) -> bool:
    """Whether a code that is not in our table is of those about messages (21xxx, 30xxx), not about the account."""
    return isinstance(code, int) and (21_000 <= code < 22_000 or 30_000 <= code < 31_000)


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


class ReceiptSettings(msgspec.Struct, frozen=True):
    """The token of the account, which signs callbacks; by default the one that the provider sends with."""

    token: Secret


class TwilioReader:
    """Status callbacks of Twilio, by the account's token. They are signed over the URL that Twilio called:
    `public_url` is how it reaches this server, without a path."""

    bytes_max = BODY_BYTES_MAX

    def __init__(self, token: Secret, public_url: str) -> None:
        parts = urlsplit(public_url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise Invalid(
                "public_url",
                "is not a URL: write the one by which Twilio reaches this server, such as https://notify.example.com",
            )
        self._token = token
        self._base = public_url.rstrip("/")

    def verify(self, callback: Callback) -> None:
        form = read_form(callback.body)
        verify(self._token, self._base + callback.target, form, callback.headers)

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        receipt = read(self._base + callback.target, read_form(callback.body))
        return [] if receipt is None else [receipt]


def _open_receipts(settings: ReceiptSettings, public_url: str | None) -> TwilioReader:
    if public_url is None:
        raise Invalid("token", "Twilio's signature includes the URL that it calls: set delivery.public_url too")
    return TwilioReader(settings.token, public_url)


def _defaults(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The provider's token, unless it sends with an API key: callbacks are signed with the token of the account."""
    return {"token": settings["token"]} if "token" in settings and "key" not in settings else {}


RECEIPTS = ReceiptType(settings=ReceiptSettings, open=_open_receipts, defaults=_defaults)


class Settings(msgspec.Struct, frozen=True):
    """The account; its token, or an API key with its secret; and a number or a messaging service to send from."""

    account: str
    token: Secret
    key: str | None = None
    sender: str | None = None
    service: str | None = None
    callback_url: str | None = None
    url: str = "https://api.twilio.com"
    ca_file: str | None = None
    connections_max: int = 32
    timeout_s: float = 20.0


class Twilio:
    """Sends text messages through Twilio."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock, receipts_url: str | None = None) -> None:
        if (settings.sender is None) == (settings.service is None):
            raise Invalid("sender", "or service: give one of them, a number or a messaging service (MG...)")
        self._settings = settings
        self._receipts_url = settings.callback_url or receipts_url
        self._clock = clock
        self._url = f"{settings.url}/2010-04-01/Accounts/{quote(settings.account, safe='')}/Messages.json"
        self._caller = Caller(
            clock, timeout_s=settings.timeout_s, connections_max=settings.connections_max, tls=trusted(settings.ca_file)
        )

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del address
        return channel == "sms"

    def connections(self, address: Address) -> dict[str, int]:
        del address
        return {"": self._settings.connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Sms)
        settings = self._settings
        form = {"To": message.to, "Body": message.text}
        if settings.sender is not None:
            form["From"] = settings.sender
        if settings.service is not None:
            form["MessagingServiceSid"] = settings.service
        if self._receipts_url is not None:
            mark = "&" if "?" in self._receipts_url else "?"
            form["StatusCallback"] = f"{self._receipts_url}{mark}{urlencode({'id': message.id})}"
        login = b64encode(f"{settings.key or settings.account}:{settings.token.reveal()}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/x-www-form-urlencoded"}
        body = built(lambda: urlencode(form).encode())
        if isinstance(body, Permanent):
            return body
        reply = await self._caller.post(self._url, headers, body)
        return self._judge(reply) if isinstance(reply, Response) else reply

    async def close(self) -> None:
        await self._caller.close()

    def _judge(self, reply: Response) -> Verdict:
        content = reply.json()
        content = content if isinstance(content, dict) else {}
        if 200 <= reply.status < 300:
            return Accepted(str(content.get("sid", "")))
        code = content.get("code")
        text = shortened(f"{reply.status} {code or ''} {content.get('message', '')}", (self._settings.token,))
        known = judge_code(code if isinstance(code, int) else 0, text)
        wait = retry_after(reply.headers, self._clock.now())
        if isinstance(known, Temporary) or (known is None and (reply.status == 429 or reply.status >= 500)):
            reason = known.reason if isinstance(known, Temporary) else "provider_error"
            return Temporary("rate_limited" if reply.status == 429 else reason, text, wait)
        if known is not None:
            return known
        if reply.status == 413:
            return Permanent("too_large", text)
        if reply.status in {400, 422} or is_about_message(code):
            return Permanent("content_refused", text)
        return Broken("credentials_refused" if reply.status in {401, 403} else "misconfigured", text)


def _open(settings: Settings, context: ProviderContext) -> Twilio:
    return Twilio(settings, context.clock, context.receipts_url)


PROVIDER = ProviderType(channels=("sms",), settings=Settings, open=_open, receipts=RECEIPTS)
