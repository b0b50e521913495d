"""Suppressed addresses, and the unsubscribe pages that people open from a message."""

import html
from email.message import Message
from email.parser import BytesParser
from urllib.parse import parse_qsl

import msgspec

from tidings.delivery.people.suppressions import check_suppressible
from tidings.delivery.people.unsubscribe import Unsubscription, is_one_click
from tidings.delivery.receipts import Unsubscribed
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.user import TRANSACTIONAL, check_category
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, decode, query_of, read_body
from tidings.edges.http.notifications.documents import suppression_document
from tidings.edges.http.notifications.notifications import channel_in_path, channel_of, limit_of, unknown
from tidings.edges.http.routes import Answer, Call, Edge, Handler, Reply, json_answer
from tidings.shapes.user import NewSuppression

SUPPRESSIONS = "/v1/suppressions"


_decoder = msgspec.json.Decoder(NewSuppression)

BODY_BYTES_MAX = 8 * 1024
FIELD, VALUE = "List-Unsubscribe", "One-Click"

_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-robots-tag", b"noindex"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", _POLICY),
]
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto 0; padding: 0 1rem; }}
button {{ font: inherit; padding: .5rem 1.2rem; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #eee; }} }}
</style>
<h1>{title}</h1>
<p>{text}</p>
{rest}</html>
"""
_BUTTON = f"""<form method="post">
<input type="hidden" name="{FIELD}" value="{VALUE}">
<button>Unsubscribe</button>
</form>
"""
_NAMES = {"email": "e-mails", "sms": "text messages"}


class Suppressions:
    """The resource `/v1/suppressions`."""

    def __init__(self, edge: Edge) -> None:
        self._suppressions = edge.services.suppressions

    async def index(self, call: Call) -> Reply:
        """A page of suppressions, the latest first."""
        query = query_of(call.scope, "channel", "cursor", "limit")
        page = await self._suppressions.page(
            call.caller.tenant, channel_of(query), query.get("cursor"), limit_of(query)
        )
        return json_answer({"suppressions": [*map(suppression_document, page.suppressions)], "cursor": page.cursor})

    async def put(self, call: Call) -> Reply:
        """Suppress an address: nothing is sent there from now on."""
        query_of(call.scope)
        channel, address = channel_in_path(call), _address(call)
        body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
        asked = decode(_decoder, body or b"{}", NewSuppression)  # all of its fields may be left out
        _check_category(asked.category)
        added = await self._suppressions.add(
            call.caller.tenant, channel, address, asked.reason, category=asked.category
        )
        document = {"channel": channel, "address": call.text("address")}
        if added:
            return json_answer(document | {"outcome": "suppressed"}, 201)
        return json_answer(document | {"outcome": "unchanged"})

    async def delete(self, call: Call) -> Reply:
        """Remove a suppression: messages are sent there again."""
        category = query_of(call.scope, "category").get("category")
        channel, address = channel_in_path(call), _address(call)
        _check_category(category)
        if not await self._suppressions.remove(call.caller.tenant, channel, address, category):
            raise unknown(f"suppression of {channel}", call.text("address"), SUPPRESSIONS)
        return json_answer({"channel": channel, "address": call.text("address"), "outcome": "removed"})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            SUPPRESSIONS: {"GET": self.index},
            f"{SUPPRESSIONS}/{{channel}}/{{address}}": {"PUT": self.put, "DELETE": self.delete},
        }


def _check_category(category: str | None) -> None:
    if category is None:
        return
    check_category(category)
    if category == TRANSACTIONAL:
        raise Invalid(
            "category", "transactional messages cannot be suppressed on their own: leave it out to suppress everything"
        )


def _address(call: Call) -> str | Device:
    """The address in a path; a device is written as its platform, a colon, and its token."""
    channel, text = channel_in_path(call), call.text("address")
    address: str | Device = text
    if channel == "push":
        platform, _, token = text.partition(":")
        if platform not in {"apns", "fcm"}:
            raise Invalid("address", "is not a device: write apns:<token> or fcm:<token>")
        address = Device("apns" if platform == "apns" else "fcm", token)
    if channel != "in_app":
        check_suppressible(channel, address)
    return address


class UnsubscribePages:
    """The resource `/unsubscribe/{token}`. It answers with HTML pages, for people in a browser."""

    def __init__(self, edge: Edge) -> None:
        self._receipts = edge.services.receipts

    async def show(self, call: Call) -> Reply:
        """Ask for confirmation. A GET changes nothing, because mail scanners open every link."""
        try:
            asked = self._receipts.unsubscription(call.text("token"))
        except Invalid:
            return _not_ours()
        if asked.category == TRANSACTIONAL:
            return _needed()
        return _page("Unsubscribe?", f"{_about(asked)} will no longer be sent.", _BUTTON)

    async def unsubscribe(self, call: Call) -> Reply:
        """Unsubscribe, if the body is the one-click form."""
        body = await read_body(call.headers, call.receive, BODY_BYTES_MAX)
        try:
            asked = self._receipts.unsubscription(call.text("token"))
            if asked.category == TRANSACTIONAL:
                return _needed()
            if not says_one_click(call.headers.get(b"content-type", b""), body):
                return _page(
                    "Not done", f"{_about(asked)} are still sent. Press the button to unsubscribe.", _BUTTON, 400
                )
            done: Unsubscribed = await self._receipts.unsubscribe(call.text("token"))
        except Invalid:
            return _not_ours()
        text = (
            f"{_about(Unsubscription(done.tenant, done.channel, done.address, done.category))} will no longer be sent."
        )
        return _page("Unsubscribed", text)

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/unsubscribe/{token}": {"GET": self.show, "POST": self.unsubscribe}}


def says_one_click(media: bytes, body: bytes) -> bool:
    """Whether a body is `List-Unsubscribe=One-Click`, as a form of either kind that RFC 8058 names."""
    if is_one_click(body):
        return True
    kind = media.partition(b";")[0].strip().lower()
    if kind == b"application/x-www-form-urlencoded":
        return (FIELD, VALUE) in parse_qsl(body.decode("latin-1"))
    if kind != b"multipart/form-data" or b"\n" in media or b"\r" in media:
        return False
    whole = BytesParser().parsebytes(b"Content-Type: " + media + b"\r\n\r\n" + body)
    return any(_is_click(part) for part in whole.walk() if part is not whole)


def _is_click(part: Message) -> bool:
    content = part.get_payload(decode=True)
    named = part.get_param("name", header="content-disposition") == FIELD
    return named and isinstance(content, bytes) and content.strip() == VALUE.encode()


def _about(unsubscription: Unsubscription) -> str:
    what = _NAMES.get(unsubscription.channel, "messages")
    return (
        f"The {what} of the category “{html.escape(unsubscription.category)}” to {html.escape(unsubscription.address)}"
    )


def _not_ours() -> Answer:
    text = "The link is invalid or incomplete: use the link from the message unchanged."
    return _page("This link does not work", text, status=404)


def _needed() -> Answer:
    text = "Receipts, password resets and the like are sent because you asked for something."
    return _page("These messages cannot be unsubscribed from", text, status=400)


def _page(title: str, text: str, rest: str = "", status: int = 200) -> Answer:
    body = _PAGE.format(title=title, text=text, rest=rest).encode()
    return Answer(body, status, _HEADERS, b"text/html; charset=utf-8")
