"""What a notification says to a person on a channel, from its template or in its own words."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, assert_never

import msgspec

from tidings.delivery.templates import Compiled
from tidings.delivery.templates.template import Content
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName, Email, InApp, Push, Rendered, Sms, Urgency, Webhook
from tidings.domain.notifications.notification import InlineContent, Notification
from tidings.domain.notifications.user import TRANSACTIONAL, User


def build_message(
    content: Content,
    channel: ChannelName,
    to: str | Device,
    message_id: str,
    *,
    tenant: str,
    to_name: str | None = None,
    unsubscribe_url: str | None = None,
    urgency: Urgency = "high",
    collapse: str | None = None,
    expires: int | None = None,
) -> Rendered:
    """The message, ready for a channel; `Invalid` if the address or the content is not fit for it."""
    if isinstance(to, Device):
        if channel != "push":
            raise Invalid("to", f"is a device, which cannot receive {channel}")
        return Push(message_id, to, content.title, content.text, content.data, collapse, urgency, expires, tenant)
    match channel:
        case "email":
            return Email(message_id, to, content.title, content.text, content.html, to_name, unsubscribe_url, tenant)
        case "sms":
            return Sms(message_id, to, content.text, tenant)
        case "webhook":
            return Webhook(message_id, to, tenant, content.json)
        case "in_app":
            return InApp(message_id, to, tenant, content.title, content.text)
        case "push":
            raise Invalid("to", "is not a device: give its platform and its token")
        case _:
            assert_never(channel)


Link = Callable[[str, ChannelName, str, str], str | None]  # tenant, channel, address, category: its one-click link

SUBJECT_CHARS = 78  # RFC 5322: what a line should not exceed


Address = str | Device


class RenderContext(Protocol):
    """What rendering needs to know of a delivery."""

    @property
    def tenant(self) -> str: ...

    @property
    def channel(self) -> ChannelName: ...

    @property
    def notification(self) -> Notification: ...

    @property
    def delivery(self) -> Delivery: ...

    @property
    def user(self) -> User | None: ...


class TemplateSource(Protocol):
    """Where templates come from."""

    async def compiled(self, tenant: str, name: str, version: int | None = None) -> Compiled | None:
        """A version ready to be rendered, the latest without a number; None if there is none."""
        ...


_TemplateKey = tuple[str, str | None, int | None]  # tenant, name, version
Templates = Mapping[_TemplateKey, Compiled | Invalid | None]


def no_link(tenant: str, channel: ChannelName, address: str, category: str) -> str | None:
    """For those who offer no link."""
    del tenant, channel, address, category
    return None


class Renderer:
    """Renders, and puts what was rendered into messages."""

    def __init__(self, templates: TemplateSource, link: Link = no_link) -> None:
        self._templates = templates
        self._link = link

    async def templates(self, contexts: Iterable[RenderContext]) -> Templates:
        """The templates of a batch, each once. One that cannot be compiled any more concerns only its own messages."""
        found: dict[_TemplateKey, Compiled | Invalid | None] = {}
        for context in contexts:
            notification = context.notification
            key = context.tenant, notification.template, notification.version
            if notification.template is None or key in found:
                continue
            try:
                found[key] = await self._templates.compiled(context.tenant, notification.template, notification.version)
            except Invalid as invalid:
                found[key] = invalid
        return found

    def content(self, context: RenderContext, templates: Templates) -> Content:
        """What it says, with one of the `templates` of its batch; `Invalid` if that cannot be said there."""
        notification = context.notification
        if notification.words is not None:
            return inline_content(notification.words, context.channel)
        if notification.template is None:
            raise Invalid("template", "is missing, and so are the words")
        compiled = templates[context.tenant, notification.template, notification.version]
        if compiled is None:
            raise Invalid("template", f"{notification.template} no longer exists")
        if isinstance(compiled, Invalid):
            raise compiled
        variables, locale = notification.variables, notification.locale
        if context.user is not None:
            variables, locale = context.user.known(variables), locale or context.user.locale
        return compiled.render(context.channel, variables, locale)

    def message(self, context: RenderContext, content: Content, to: Address, message_id: str) -> Rendered:
        """The message for one address. Transactional messages have no unsubscribe link."""
        notification, channel = context.notification, context.channel
        expires = None
        if notification.expires_after_us is not None:
            expires = context.delivery.due + notification.expires_after_us
        link = None
        if channel == "email" and not isinstance(to, Device) and notification.category != TRANSACTIONAL:
            link = self._link(context.tenant, channel, to, notification.category)
        return build_message(
            content,
            channel,
            to,
            message_id,
            tenant=context.tenant,
            to_name=context.user.name if context.user is not None else None,
            unsubscribe_url=link,
            urgency="normal" if notification.priority == "low" else "high",
            collapse=notification.collapse,
            expires=expires,
        )


def inline_content(words: InlineContent, channel: ChannelName) -> Content:
    """Words as they are; a webhook gets them as a document."""
    if channel == "webhook":
        given = {"title": words.title, "text": words.text, "data": words.data}
        return Content("", json=msgspec.json.encode({name: value for name, value in given.items() if value}))
    data = {name: value if isinstance(value, str) else _json(value) for name, value in words.data.items()}
    title = words.title
    if channel == "email" and not title.strip():
        title = _first_line(words.text)
    return Content("", words.text, title, words.html, data)


def _first_line(text: str) -> str:
    """A subject for who gave none: a blank one looks like a fault, and some servers take it for spam."""
    line = "".join(each for each in " ".join(text.strip().splitlines()[0].split()) if each.isprintable())
    return line if len(line) <= SUBJECT_CHARS else line[: SUBJECT_CHARS - 3] + "..."


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
