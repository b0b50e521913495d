"""From a template to a message for a channel."""

import pytest

from tidings.delivery.templates import (
    EmailPart,
    InAppPart,
    Parts,
    PushPart,
    SmsPart,
    Template,
    WebhookPart,
    compile_template,
)
from tidings.delivery.templates.renderer import build_message
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import ChannelName, channel_of

PARTS = Parts(
    email={"en": EmailPart("Hi {{ name }}", "<p>{{ name }}</p>")},
    sms={"en": SmsPart("Hi {{ name }}")},
    push={"en": PushPart("Hi", "{{ name }}")},
    webhook={"en": WebhookPart({"name": "{{ name }}"})},
    in_app={"en": InAppPart("Hi", "{{ name }}")},
)
DEVICE = Device("apns", "0f" * 32)


@pytest.mark.parametrize(
    ("channel", "to"),
    [
        ("email", "ada@example.org"),
        ("sms", "+15550100"),
        ("push", DEVICE),
        ("webhook", "https://x.example/in"),
        ("in_app", "ada"),
    ],
)
def test_every_channel_has_its_kind_of_message(channel: ChannelName, to: str | Device) -> None:
    content = compile_template(Template("t", PARTS)).render(channel, {"name": "Ada"})
    message = build_message(content, channel, to, "n-1/1/1", tenant="acme")
    assert channel_of(message) == channel
    assert (message.id, message.to) == ("n-1/1/1", to)
    assert "Ada" in repr(message)


@pytest.mark.parametrize(("channel", "to"), [("push", "0f" * 32), ("email", DEVICE), ("email", "ada"), ("sms", "555")])
def test_an_address_of_another_channel_is_refused(channel: ChannelName, to: str | Device) -> None:
    content = compile_template(Template("t", PARTS)).render(channel, {"name": "Ada"})
    with pytest.raises(Invalid) as refused:
        build_message(content, channel, to, "n-1/1/1", tenant="acme")
    assert refused.value.field == "to"
