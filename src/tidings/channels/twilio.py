"""Text messages through Twilio's Messages API. It honours no idempotency id: an attempt after a lost answer may be
the second.
"""

from base64 import b64encode
from urllib.parse import quote, urlencode

import msgspec

from tidings.channels.details import shortened
from tidings.channels.http import Caller, Reply, retry_after, trusted
from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.rendered import Rendered, Sms
from tidings.domain.secret import Secret
from tidings.domain.verdict import Accepted, Broken, Permanent, Temporary, Verdict
from tidings.ports import Plugin, Surroundings

# Twilio's error dictionary, as far as creating a message can meet it (https://www.twilio.com/docs/api/errors).
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
_REFUSED = frozenset({21265, 21408, 21604, 21612, 21635, 30003, 30004})  # not this number, from here, now
_UNSUBSCRIBED = frozenset({21610})  # they answered STOP
_CONTENT = frozenset({21602, 21617, 21619, 21620, 21623, 30007, 30034})
_TOO_LARGE = 21617
_SENDER = frozenset({21212, 21603, 21606, 21607, 21659, 21660, 21661, 21701, 21703, 21705, 21712})
_ACCOUNT = frozenset({20005, 20006, 21608, 30002, 90010})  # suspended, or a trial that may not


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
    """A channel for text messages."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock) -> None:
        if (settings.sender is None) == (settings.service is None):
            raise Invalid("sender", "or service: give one of them, a number or a messaging service (MG...)")
        self._settings = settings
        self._clock = clock
        self._url = f"{settings.url}/2010-04-01/Accounts/{quote(settings.account, safe='')}/Messages.json"
        self._caller = Caller(
            timeout_s=settings.timeout_s, connections_max=settings.connections_max, tls=trusted(settings.ca_file)
        )

    def takes(self, message: Rendered) -> bool:
        return isinstance(message, Sms)

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Sms)
        settings = self._settings
        form = {"To": message.to, "Body": message.text}
        if settings.sender is not None:
            form["From"] = settings.sender
        if settings.service is not None:
            form["MessagingServiceSid"] = settings.service
        if settings.callback_url is not None:
            form["StatusCallback"] = f"{settings.callback_url}?{urlencode({'id': message.id})}"
        login = b64encode(f"{settings.key or settings.account}:{settings.token.reveal()}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/x-www-form-urlencoded"}
        reply = await self._caller.post(self._url, headers, urlencode(form).encode())
        return self._judge(reply) if isinstance(reply, Reply) else reply

    async def close(self) -> None:
        await self._caller.close()

    def _judge(self, reply: Reply) -> Verdict:
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
        if reply.status in {401, 403}:
            return Broken("credentials_refused", text)
        return Permanent("content_refused", text) if reply.status == 400 else Broken("misconfigured", text)


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


def _open(settings: Settings, surroundings: Surroundings) -> Twilio:
    return Twilio(settings, surroundings.clock)


PLUGIN = Plugin(Settings, _open)
