"""A Kafka record as it was read, and what a wire makes of it: what it asks for, or why it is refused."""

from typing import Literal, NamedTuple

import msgspec

from tidings.domain.lateness import Policy
from tidings.domain.message import Headers
from tidings.domain.request import Request

Verb = Literal["add", "replace", "cancel", "pause", "resume", "fire"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a request topic. Headers keep their order, repeats and nulls; no timestamp is a negative one.

    `life` tells a topic that was made anew from the one of its name before. `unreadable` says why there are no headers,
    if they could not be read.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    life: str = ""
    unreadable: str = ""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What a record asks for. `request` is there to add and to replace: the message exactly as it is to leave.

    `reuse` says that an id that is finished may be used anew. An add whose content is that of the finished one is a
    repeat all the same. `keep_count` is for replacing, `missed` for resuming a recurring schedule.
    """

    tenant: str
    verb: Verb
    id: str
    request: Request | None = None
    reuse: bool = False
    keep_count: bool = False
    missed: Policy | None = None


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Somebody is to be told something: the notification as JSON, which those who accept notifications read.

    `id` is its id unless it says another; `since` is what durations in it count from, None if that is now.
    """

    tenant: str
    id: str
    value: bytes
    since: int | None = None


class Nothing(msgspec.Struct, frozen=True, gc=False):
    """A record that asks for nothing, because Tidings itself wrote it."""

    tenant: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a record cannot be taken, in sentences that say what to change."""

    tenant: str
    reasons: tuple[str, ...]


class Rejection(NamedTuple):
    """The record that tells of a refusal, and where it goes."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
