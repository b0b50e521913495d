"""Text messages through Twilio's Messages API. It honours no idempotency id: an attempt after a lost answer may be
the second.
"""

from base64 import b64encode
from urllib.parse import quote, urlencode

import msgspec

from tidings.channels.details import shortened
from tidings.channels.http import Caller, Reply, retry_after, trusted
from tidings.channels.twilio_codes import is_about_message, judge_code
from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Accepted, Broken, Permanent, Temporary, Verdict, built
from tidings.domain.notifications.message import Rendered, Sms
from tidings.domain.secret import Secret
from tidings.ports import Plugin, ProviderContext


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

    def lines(self, message: Rendered) -> dict[str, int]:
        del message
        return {"": self._settings.connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Sms)
        settings = self._settings
        form = {"To": message.to, "Body": message.text}
        if settings.sender is not None:
            form["From"] = settings.sender
        if settings.service is not None:
            form["MessagingServiceSid"] = settings.service
        if settings.callback_url is not None:
            mark = "&" if "?" in settings.callback_url else "?"
            form["StatusCallback"] = f"{settings.callback_url}{mark}{urlencode({'id': message.id})}"
        login = b64encode(f"{settings.key or settings.account}:{settings.token.reveal()}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/x-www-form-urlencoded"}
        body = built(lambda: urlencode(form).encode())
        if isinstance(body, Permanent):
            return body
        reply = await self._caller.post(self._url, headers, body)
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
        if reply.status == 413:
            return Permanent("too_large", text)
        if reply.status in {400, 422} or is_about_message(code):
            return Permanent("content_refused", text)
        return Broken("credentials_refused" if reply.status in {401, 403} else "misconfigured", text)


def _open(settings: Settings, surroundings: ProviderContext) -> Twilio:
    return Twilio(settings, surroundings.clock)


PLUGIN = Plugin(Settings, _open)
