"""Records of request topics, what a wire decodes them into, and helpers to read their headers and times.

Header names are matched case-insensitively, and values are UTF-8. A null or empty header counts as absent. Durations
count from the record's own timestamp, so the same record means the same times however often it is read.
"""

from typing import Literal, NamedTuple

import msgspec

from tidings.domain.lateness import Policy
from tidings.domain.message import Headers
from tidings.domain.request import Request

Verb = Literal["add", "replace", "cancel", "pause", "resume", "fire"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a request topic. Headers keep their order, repetitions and nulls; a negative timestamp is none.

    `life` tells a topic that was deleted and created again from the former one. `unreadable` is the reason why the
    headers could not be read.
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
    """A command in a record. `request` is set for `add` and `replace`, with the message exactly as it will be released.

    `reuse` allows a new generation of a finished id; an add with the same content as the finished schedule is still a
    repetition. `keep_count` is for `replace`, `missed` for `resume` of a recurring schedule.
    """

    tenant: str
    verb: Verb
    id: str
    request: Request | None = None
    reuse: bool = False
    keep_count: bool = False
    missed: Policy | None = None


class Tell(msgspec.Struct, frozen=True, gc=False):
    """A notification in a record, as JSON.

    `id` is used unless the JSON has one; durations count from `since`, or from now if it is None.
    """

    tenant: str
    id: str
    value: bytes
    since: int | None = None


class Nothing(msgspec.Struct, frozen=True, gc=False):
    """A record without a request, written by Tidings itself."""

    tenant: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The reasons why a record is refused, each with what to change."""

    tenant: str
    reasons: tuple[str, ...]


class Rejection(NamedTuple):
    """The record that reports a refusal, and its topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
