"""What somebody wants a person to be told, as it was accepted."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidings.domain.names import Priority as Rank
from tidings.domain.names import PriorityName
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.user import TRANSACTIONAL

Priority = PriorityName
Spread = Literal["first", "all"]  # the first channel that works, or each of them

TOPIC = "notify"
PREFIX = f"{TOPIC}."
DEAD_TOPIC = "notify.dead"
GROUP = "tidings.deliver"
URGENCIES: tuple[Priority, ...] = ("high", "normal", "low")
PRIORITIES: dict[Priority, Rank] = {"high": Rank.HIGH, "normal": Rank.NORMAL, "low": Rank.LOW}


class InlineContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content instead of a template, sent as it is. An e-mail without a title has the first line as its subject."""

    text: Annotated[str, Meta(description="The text.", examples=["Tea is ready."])]
    title: Annotated[str, Meta(description="The subject or title.", examples=["Tea"])] = ""
    html: Annotated[str | None, Meta(description="The text as HTML.")] = None
    data: Annotated[dict[str, Any], Meta(description="Values for apps and webhooks.")] = {}


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """To whom (a user, or a bare address with its channel), what, and how. When it leaves is its schedule's matter.

    `version` is that of its template, pinned; None takes the latest when it is sent. `expires_after_us` counts from
    its due time. `content` is a digest of what was asked, so that a repeat is known; `cancelled` is when that was.
    `first` is the one that this would have repeated: then it is kept to be looked up, without what it says.
    """

    id: str
    tenant: str
    channels: tuple[ChannelName, ...]
    user: str | None = None
    to: str | Device | None = None
    template: str | None = None
    version: int | None = None
    variables: dict[str, Any] = {}
    words: InlineContent | None = None
    spread: Spread = "first"
    priority: Priority = "normal"
    category: str = TRANSACTIONAL
    expires_after_us: int | None = None
    locale: str | None = None
    collapse: str | None = None
    batch: str | None = None
    created: int = 0
    content: str = ""
    cancelled: int | None = None
    first: str | None = None


class DeliveryJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record on `notify.<channel>` says: a notification by its id, or all of it; and how far it has come.

    `channel` is an index into its channels; `delivery` is the name of the delivery that goes on, `attempt` its turn.
    """

    notification: str | None = None
    inline: Notification | None = None
    delivery: str | None = None
    channel: int = 0
    attempt: int = 1


def topic(channel: ChannelName, priority: Priority) -> str:
    """Where it is released to: high, normal and low do not wait for each other."""
    return f"{TOPIC}.{channel}" if priority == "normal" else f"{TOPIC}.{channel}.{priority}"


# What the group of the workers reads. The log keeps what they have not settled yet, whatever its age.
TOPICS: dict[str, tuple[ChannelName, Priority]] = {
    topic(channel, urgency): (channel, urgency) for channel in CHANNEL_NAMES for urgency in URGENCIES
}
