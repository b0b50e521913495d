"""E-mail through SendGrid's Mail Send API, v3. It honours no idempotency id: an attempt after a lost answer may be
the second. Our id travels as a custom argument, so that events name it.
"""

from typing import Any

import msgspec

from tidings.channels.details import shortened
from tidings.channels.http import SECOND_US, Caller, Reply, retry_after, trusted
from tidings.channels.mime import Sender, ascii_domain
from tidings.clock import Clock
from tidings.domain.notifications.delivery import Accepted, Broken, Permanent, Temporary, Verdict, built
from tidings.domain.notifications.message import Email, Rendered
from tidings.domain.secret import Secret
from tidings.ports import Plugin, ProviderContext

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
    """A channel for e-mail."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._sender = Sender(settings.sender, settings.sender_name)
        self._caller = Caller(
            timeout_s=settings.timeout_s, connections_max=settings.connections_max, tls=trusted(settings.ca_file)
        )

    def takes(self, message: Rendered) -> bool:
        return isinstance(message, Email)

    def lines(self, message: Rendered) -> dict[str, int]:
        del message
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
        return self._judge(reply) if isinstance(reply, Reply) else reply

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

    def _judge(self, reply: Reply) -> Verdict:
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

    def _wait(self, reply: Reply) -> int | None:
        """`Retry-After`, or what the limit's own header says: the second at which it begins anew."""
        now = self._clock.now()
        reset = reply.headers.get("x-ratelimit-reset", "")
        if "retry-after" in reply.headers or not (reset.isascii() and reset.isdigit()):
            return retry_after(reply.headers, now)
        return retry_after({"retry-after": str(max(0, -(-(int(reset[:12]) * SECOND_US - now) // SECOND_US)))}, now)


def _first_error(reply: Reply) -> tuple[str, str]:
    match reply.json():
        case {"errors": [{"message": str(text), **rest}, *_]}:
            return str(rest.get("field") or ""), text
        case _:
            return "", ""


def _open(settings: Settings, surroundings: ProviderContext) -> SendGrid:
    return SendGrid(settings, surroundings.clock)


PLUGIN = Plugin(Settings, _open)
