"""A notification as it was accepted, the delivery job that a worker reads, and the topics of the workers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidings.domain.names import Bus, PriorityName
from tidings.domain.names import Priority as Rank
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.user import TRANSACTIONAL

Priority = PriorityName
Spread = Literal["first", "all"]  # the first channel that works, or every channel

TOPIC = "notify"
PREFIX = f"{TOPIC}."
DEAD_TOPIC = "notify.dead"
GROUP = "tidings.deliver"
URGENCIES: tuple[Priority, ...] = ("high", "normal", "low")
PRIORITIES: dict[Priority, Rank] = {"high": Rank.HIGH, "normal": Rank.NORMAL, "low": Rank.LOW}


class InlineContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Content instead of a template, sent as it is. An e-mail without a title has the first line as its subject."""

    text: Annotated[str, Meta(description="The text.", examples=["Tea is ready."])]
    title: Annotated[str, Meta(description="The subject or title.", examples=["Tea"])] = ""
    html: Annotated[str | None, Meta(description="The text as HTML.")] = None
    data: Annotated[dict[str, Any], Meta(description="Values for apps and webhooks.")] = {}


class Notification(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The recipient (a user, or an address with its channel), the content, and how to send it. Its schedule says when.

    `version` pins a version of the template; None uses the latest one at the time of sending. `expires_after_us` counts
    from the due time. `content` is a digest of the request, by which a repeated request is recognized; `cancelled` is
    the time of the cancellation. `is_local` says that its time is local time in the user's time zone, and follows that
    when it changes. `first` is the notification of which this one is a duplicate: a duplicate is stored without its
    content, so that it can be looked up. `generation` is that of its schedule with which it began again: workers pass
    over the records of those before.
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
    is_local: bool = False
    generation: int = 0


class DeliveryJob(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The value of a record on `notify.<channel>`: a notification, by its id or inline, and how far it has come.

    `channel` is an index into the channels of the notification; `delivery` is the name of the delivery to continue, and
    `attempt` its turn.
    """

    notification: str | None = None
    inline: Notification | None = None
    delivery: str | None = None
    channel: int = 0
    attempt: int = 1


def topic(channel: ChannelName, priority: Priority) -> str:
    """The topic of a channel and priority; each priority has its own, so that they do not wait for each other."""
    return f"{TOPIC}.{channel}" if priority == "normal" else f"{TOPIC}.{channel}.{priority}"


# The topics that the consumer group of the workers reads. The log retains what they have not finished.
TOPICS: dict[str, tuple[ChannelName, Priority]] = {
    topic(channel, urgency): (channel, urgency) for channel in CHANNEL_NAMES for urgency in URGENCIES
}


def is_reserved(name: str, bus: Bus) -> bool:
    """Whether only Tidings itself may write to a topic: a record there makes a worker send a notification.

    On Kafka, where no worker reads, only the names of the workers' topics are reserved, not all of the prefix.
    """
    return name.startswith(PREFIX) and (bus == "log" or name in TOPICS or name == DEAD_TOPIC)


def is_retry(schedule_id: str, topic: str) -> bool:
    """Whether a schedule is another attempt at a delivery, or its dead letter: no notification has '~' in its id."""
    return "~" in schedule_id and topic.startswith(PREFIX)
