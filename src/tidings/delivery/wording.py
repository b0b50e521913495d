"""What a notification says to a person on a channel, from its template or in its own words."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidings.delivery.deciding import Address, Case
from tidings.delivery.envelope import put
from tidings.delivery.templates import Compiled, Content
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import ChannelName, Rendered
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.notifications.user import TRANSACTIONAL

Link = Callable[[str, ChannelName, str, str], str | None]  # tenant, channel, address, category: its one-click link

SUBJECT_CHARS = 78  # RFC 5322: what a line should not exceed


class Templates(Protocol):
    """Where templates come from."""

    async def compiled(self, tenant: str, name: str, version: int | None = None) -> Compiled | None:
        """A version ready to be rendered, the latest without a number; None if there is none."""
        ...


def no_link(tenant: str, channel: ChannelName, address: str, category: str) -> str | None:
    """For those who offer no link."""
    del tenant, channel, address, category
    return None


class Wording:
    """Renders, and puts what was rendered into messages."""

    def __init__(self, templates: Templates, link: Link = no_link) -> None:
        self._templates = templates
        self._link = link

    async def content(self, case: Case) -> Content:
        """What it says; `Invalid` if that cannot be said there."""
        notification = case.notification
        if notification.words is not None:
            return in_words(notification.words, case.channel)
        if notification.template is None:
            raise Invalid("template", "is missing, and so are the words")
        compiled = await self._templates.compiled(case.tenant, notification.template, notification.version)
        if compiled is None:
            raise Invalid("template", f"{notification.template} no longer exists")
        variables, locale = notification.variables, notification.locale
        if case.user is not None:
            variables, locale = case.user.known(variables), locale or case.user.locale
        return compiled.render(case.channel, variables, locale)

    def message(self, case: Case, content: Content, to: Address, message_id: str) -> Rendered:
        """The message for one address. Transactional messages have no unsubscribe link."""
        notification, channel = case.notification, case.channel
        expires = None
        if notification.expires_after_us is not None:
            expires = case.delivery.due + notification.expires_after_us
        link = None
        if channel == "email" and not isinstance(to, Device) and notification.category != TRANSACTIONAL:
            link = self._link(case.tenant, channel, to, notification.category)
        return put(
            content,
            channel,
            to,
            message_id,
            tenant=case.tenant,
            to_name=case.user.name if case.user is not None else None,
            unsubscribe_url=link,
            urgency="normal" if notification.priority == "low" else "high",
            collapse=notification.collapse,
            expires=expires,
        )


def in_words(words: InlineContent, channel: ChannelName) -> Content:
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
