"""Puts what a template says into a message for one address."""

from typing import assert_never

from tidings.delivery.templates.template import Content
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import ChannelName, Email, InApp, Push, Rendered, Sms, Urgency, Webhook


def put(
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
