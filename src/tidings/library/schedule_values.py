"""Schedules, records and outcomes in Python types, and their conversion from and to those of the engine."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Unpack

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import Past, PriorityName, encoded
from tidings.domain.schedules.command import Outcome as StoredOutcome
from tidings.domain.schedules.command import OutcomeWord, Priority, State
from tidings.domain.schedules.lateness import Lateness, Policy
from tidings.domain.schedules.schedule import Event as StoredEvent
from tidings.domain.schedules.schedule import Headers, Message, Request, unpack
from tidings.domain.schedules.schedule import Record as StoredRecord
from tidings.domain.schedules.schedule import Schedule as StoredSchedule
from tidings.domain.schedules.when import When
from tidings.library.arguments import Times, checked, local_text, timing_of, wrong
from tidings.wires.document import CARRIED

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Text = str | bytes | bytearray | memoryview
HeadersGiven = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]

_PRIORITY_NAMES: dict[Priority, PriorityName] = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}
_PRIORITIES: dict[str, Priority] = {name: priority for priority, name in _PRIORITY_NAMES.items()}

_NO_MESSAGE = Message(None, None)


class Options(Times, total=False):
    """The options of a schedule: the fields of the HTTP API, in Python types."""

    at: str | datetime | timedelta | None
    every: str | timedelta | None
    key: Text | None
    headers: HeadersGiven | None
    priority: PriorityName
    expires_after: str | timedelta | None
    late: Policy | None
    late_grace: str | timedelta | None
    late_max: str | timedelta | None
    jitter: str | timedelta | None
    labels: dict[str, str] | None
    past: Past | None


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """Key, value and headers, byte for byte; those of a finished schedule may be gone."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value as a JSON document."""
        return msgspec.json.decode(self.value or b"null")


class Record(_Content, frozen=True, kw_only=True):
    """One released occurrence, byte for byte as it was scheduled; `final` marks the last of a recurring one."""

    topic: str
    partition: int
    offset: int
    id: str
    occurrence: str
    due_at: datetime
    released_at: datetime
    final: bool = False

    @property
    def late_ms(self) -> float:
        """How long after its due time it was released, in milliseconds."""
        return (self.released_at - self.due_at) / _MICROSECOND / 1_000


class Schedule(_Content, frozen=True, kw_only=True):
    """A schedule and its state: pending, paused, or finished and still remembered.

    `due_at` is when the pending occurrence is due, or the last one was; `occurrence` is its number.
    """

    id: str
    topic: str
    state: State
    due_at: datetime
    occurrence: int
    generation: int
    accepted_at: datetime
    finished_at: datetime | None
    reason: str | None
    priority: PriorityName
    labels: dict[str, str]
    when: When | None
    lateness: Lateness | None
    partition: int | None
    offset: int | None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a schedule's history: what happened, when, and to which occurrence (the first of `count`)."""

    at: datetime
    event: str
    occurrence: int | None
    due_at: datetime | None
    reason: str | None
    count: int | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did. `field` is the field at fault if the request itself was refused."""

    id: str
    outcome: OutcomeWord
    due_at: datetime | None
    state: State | None
    reason: str | None
    in_flight: int | None
    remembered_since: datetime | None
    field: str | None
    note: str | None


def make_request(topic: str, value: Any = None, id: str | None = None, **options: Unpack[Options]) -> Request:
    """A request for `schedule_many`, from the same values that `schedule` takes."""
    taken = Options.__required_keys__ | Options.__optional_keys__
    if unknown := sorted(options.keys() - taken):
        raise TypeError(f"schedule takes no {unknown[0]!r}: it takes {', '.join(sorted(taken))}")
    carried: dict[str, Any] = {name: value for name, value in options.items() if name in CARRIED}
    request = Request(
        topic=topic,
        value=_value(value),
        key=_bytes(options.get("key"), "key"),
        headers=_headers(options.get("headers")),
        id=id,
        at=at_of(options.get("at"), zoned=options.get("zone") is not None),
        priority=_priority(options.get("priority", "normal")),
        timing=timing_of(options),
        **{name: duration_of(value) for name, value in carried.items()},
    )
    return checked(request)


def outcome_of(outcome: StoredOutcome) -> Outcome:
    """The outcome of a change, in Python types."""
    since = outcome.remembered_since
    return Outcome(
        id=outcome.id,
        outcome=outcome.outcome,
        due_at=None if outcome.due is None else moment_of(outcome.due),
        state=outcome.state,
        reason=outcome.reason,
        in_flight=outcome.in_flight,
        remembered_since=None if since is None else moment_of(since),
        field=outcome.field,
        note=outcome.note,
    )


def record_of(record: StoredRecord) -> Record:
    """A record, in Python types."""
    message = unpack(record.message)
    return Record(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        id=record.id,
        occurrence=record.occurrence,
        due_at=moment_of(record.due),
        released_at=moment_of(record.released),
        final=record.final and record.number > 1,
        key=message.key,
        value=message.value,
        headers=message.headers,
    )


def schedule_of(schedule: StoredSchedule) -> Schedule:
    """A schedule, in Python types."""
    message = _NO_MESSAGE if schedule.message is None else unpack(schedule.message)
    return Schedule(
        id=schedule.id,
        topic=schedule.topic,
        state=schedule.state,
        due_at=moment_of(schedule.due),
        occurrence=schedule.occurrence,
        generation=schedule.generation,
        accepted_at=moment_of(schedule.accepted),
        finished_at=None if schedule.finished is None else moment_of(schedule.finished),
        reason=schedule.reason,
        priority=_PRIORITY_NAMES[schedule.priority],
        labels=msgspec.json.decode(schedule.labels or "{}"),
        when=schedule.when,
        lateness=schedule.lateness,
        partition=schedule.partition,
        offset=schedule.offset,
        key=message.key,
        value=message.value,
        headers=message.headers,
    )


def event_of(event: StoredEvent) -> Event:
    """A line of a history, in Python types."""
    return Event(
        at=moment_of(event.at),
        event=event.event,
        occurrence=event.occurrence,
        due_at=None if event.due is None else moment_of(event.due),
        reason=event.reason,
        count=event.count,
    )


def moment_of(at: int) -> datetime:
    """A moment in microseconds as an aware datetime."""
    return _EPOCH + timedelta(microseconds=at)


def instant_of(at: datetime) -> int:
    """An aware datetime in microseconds."""
    if not isinstance(at, datetime):
        raise Invalid("after", "give an aware datetime, such as datetime.now(UTC)")
    if at.tzinfo is None:
        raise Invalid("after", "has no time zone: give an aware datetime, such as datetime.now(UTC)")
    return (at - _EPOCH) // _MICROSECOND


def _value(value: Any) -> bytes | None:
    if value is None or isinstance(value, Text):
        return _bytes(value, "value")
    try:
        content = msgspec.json.encode(value)
        # NaN and infinities are encoded as null: search for them if there is a null.
        if b"null" in content and _has_non_finite(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))):
            raise ValueError("it contains NaN or an infinity, which JSON cannot represent")
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("value", f"is neither bytes, text nor JSON: {error}") from None
    return content


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_non_finite, items))


def _bytes(text: object, field: str) -> bytes | None:
    match text:
        case None:
            return None
        case str():
            return encoded(text, field)
        case bytes() | bytearray() | memoryview():
            return bytes(text)
        case _:
            raise wrong(field)


def _headers(headers: object) -> Headers:
    if headers is None:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable) or isinstance(pairs, Text):
        raise wrong("headers")
    made: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise wrong("headers")
        made.append((pair[0], _bytes(pair[1], "headers")))
    return tuple(made)


def _priority(name: object) -> Priority:
    found = _PRIORITIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise wrong("priority")
    return found


def at_of(at: str | datetime | timedelta | None, *, zoned: bool = False) -> int | str | None:
    """The due time, as a request accepts it; `zoned`: a naive datetime is a local time."""
    if isinstance(at, timedelta):
        if at < timedelta(0):
            raise Invalid(
                "at", "lies in the past: give a past moment as a datetime, so that 'past' and 'late' apply to it"
            )
        return duration_of(at) if at else None
    if isinstance(at, datetime):
        if at.tzinfo is None and zoned:
            return local_text(at)
        if at.tzinfo is None:
            raise Invalid("at", "has no time zone: give an aware datetime, such as datetime.now(UTC)")
        return (at - _EPOCH) // _MICROSECOND
    if at is not None and not isinstance(at, str):
        raise wrong("at")
    return at


def duration_of(length: Any) -> Any:
    """A duration, as a request accepts it; other values are returned unchanged, and checked with the request."""
    if not isinstance(length, timedelta):
        return length
    return f"PT{length // timedelta(seconds=1)}.{length.microseconds:06}S"
