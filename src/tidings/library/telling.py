"""From the options of a notification to a request."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from tidings.delivery.asking import Notify
from tidings.delivery.reading import convert
from tidings.domain.address import Device
from tidings.domain.errors import Invalid
from tidings.domain.lateness import Policy
from tidings.domain.notification import InlineContent, Priority, Spread
from tidings.domain.rendered import ChannelName
from tidings.domain.vocabulary import Past
from tidings.library.timing import Times, timing_of
from tidings.library.values import at_of, duration_of
from tidings.shapes.fields import fields_of, names_of
from tidings.shapes.notification import NewNotification

_DURATIONS = ("every", *(name for name, field in fields_of(NewNotification).items() if field.is_duration))
_CONTENT = names_of(InlineContent)


class NotifyOptions(Times, total=False):
    """The options of a notification: the fields of the HTTP API, in a Python program's own types.

    A naive `at` is in the user's time zone, as is text such as `tomorrow 09:00`. Give a `template` with its
    `variables`, or content of your own as `text`, `title`, `html` and `data`.
    """

    id: str | None
    channel: ChannelName | None
    channels: Sequence[ChannelName] | Literal["all"]
    spread: Spread | None
    template: str | None
    version: int | Literal["current"] | None
    variables: Mapping[str, Any]
    text: str | None
    title: str | None
    html: str | None
    data: Mapping[str, Any] | None
    at: str | datetime | timedelta | None
    every: str | timedelta | None
    late: Policy | None
    late_grace: str | timedelta | None
    late_max: str | timedelta | None
    jitter: str | timedelta | None
    priority: Priority
    category: str
    dedupe_key: str | None
    dedupe_window: str | timedelta | None
    expires_after: str | timedelta | None
    locale: str | None
    collapse: str | None
    batch: str | None
    past: Past | None


def ask_of(whom: Mapping[str, str | Device | Sequence[str] | None], options: NotifyOptions) -> Notify:
    """The request; raises `Invalid` by field."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(given.keys() - NotifyOptions.__optional_keys__):
        raise TypeError(
            f"notify takes no {unknown[0]!r}: it takes {', '.join(sorted(NotifyOptions.__optional_keys__))}"
        )
    document = {name: value for name, value in given.items() if name not in {*Times.__optional_keys__, *_CONTENT}}
    if content := {name: given[name] for name in _CONTENT if name in given}:
        if "text" not in content:
            raise Invalid("text", "is missing: title, html and data go beside it")
        document["content"] = content
    document |= {name: duration_of(document[name]) for name in _DURATIONS if name in document}
    if "at" in document:
        document["at"] = at_of(document["at"], zoned=True)
    if (timing := timing_of(options)) is not None:
        document |= {name: value for name, value in msgspec.structs.asdict(timing).items() if value}
    document |= {name: value for name, value in whom.items() if value}
    return convert(document, Notify)
