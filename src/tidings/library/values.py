"""What goes in and comes out of the library, in a Python program's own types."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from tidings.domain.command import Priority
from tidings.domain.errors import Invalid
from tidings.domain.lateness import Policy
from tidings.domain.message import Headers, unpack
from tidings.domain.request import Request
from tidings.domain.schedule import Record as StoredRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Text = str | bytes
HeadersGiven = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]
PriorityName = Literal["high", "normal", "low"]


class Options(TypedDict, total=False):
    """What a schedule may be told beside its topic and value, as in the HTTP API."""

    at: str | datetime | timedelta | None
    every: str | None
    key: Text | None
    headers: HeadersGiven
    priority: PriorityName
    expires_after: str | timedelta | None
    late: Policy | None
    late_grace: str | timedelta | None
    late_max: str | timedelta | None
    jitter: str | timedelta | None
    labels: dict[str, str] | None


class Record(msgspec.Struct, frozen=True):
    """One released occurrence, byte for byte as it was scheduled."""

    topic: str
    partition: int
    offset: int
    id: str
    occurrence: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    due: datetime
    released: datetime

    @property
    def late_ms(self) -> float:
        """How long after its due time it left."""
        return (self.released - self.due) / _MICROSECOND / 1_000

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value as a JSON document."""
        return msgspec.json.decode(self.value or b"null")


def make_request(topic: str, value: Any = None, id: str | None = None, **options: Unpack[Options]) -> Request:
    """A request for `schedule_many`, from the same values that `schedule` takes."""
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise TypeError(f"schedule takes no {unknown[0]!r}: it takes {', '.join(sorted(Options.__annotations__))}")
    return Request(
        topic=topic,
        value=_value(value),
        key=_bytes(options.get("key")),
        headers=_headers(options.get("headers", ())),
        id=id,
        at=_at(options.get("at")),
        every=options.get("every"),
        priority=_priority(options.get("priority", "normal")),
        expires_after=_duration(options.get("expires_after")),
        late=options.get("late"),
        late_grace=_duration(options.get("late_grace")),
        late_max=_duration(options.get("late_max")),
        jitter=_duration(options.get("jitter")),
        labels=options.get("labels"),
    )


def record_of(record: StoredRecord) -> Record:
    """A record of the log as the program sees it."""
    message = unpack(record.message)
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.id,
        record.occurrence,
        message.key,
        message.value,
        message.headers,
        _EPOCH + timedelta(microseconds=record.due),
        _EPOCH + timedelta(microseconds=record.released),
    )


def _value(value: Any) -> bytes | None:
    if value is None or isinstance(value, str | bytes):
        return _bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise Invalid("value", f"is neither bytes, text nor JSON: {error}") from None


def _bytes(text: Text | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _headers(headers: HeadersGiven) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, _bytes(value)) for name, value in pairs)


def _priority(name: PriorityName) -> Priority:
    try:
        return Priority[name.upper()]
    except KeyError:
        raise Invalid("priority", "choose from high, normal and low") from None


def _at(at: str | datetime | timedelta | None) -> int | str | None:
    if isinstance(at, timedelta):
        return _duration(at) if at > timedelta(0) else None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise Invalid("at", "has no time zone: give an aware datetime, such as datetime.now(UTC)")
        return (at - _EPOCH) // _MICROSECOND
    if at is not None and not isinstance(at, str):
        raise Invalid("at", "give a datetime, a timedelta or text such as '+5s'")
    return at


def _duration(length: str | timedelta | None) -> str | None:
    if not isinstance(length, timedelta):
        return length
    return f"PT{length // timedelta(seconds=1)}.{length.microseconds:06}S"
