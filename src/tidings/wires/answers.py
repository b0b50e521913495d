"""The JSON documents of answers: outcomes, schedules, their history, records, topics and calendars."""

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.preview import Shown, fields_of, local_text, swallowed_note, wall_text
from tidings.domain.schedules.command import Outcome, Priority
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.lateness import GRACE_DEFAULT_US, Lateness
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.schedule import (
    DUE_SECONDS,
    Calendar,
    Event,
    Headers,
    Message,
    Moved,
    Record,
    Schedule,
    Topic,
    split,
    unpack,
)
from tidings.domain.schedules.when import SECOND_US, Every, Once, Period, When
from tidings.shapes import admin as admin_shapes
from tidings.shapes import schedule as schedule_shapes
from tidings.shapes import topic as topic_shapes

PRIORITY_WORDS = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}

Document = dict[str, Any]
Given = TypeVar("Given")

encode = msgspec.json.Encoder().encode
encode_lines = msgspec.json.Encoder().encode_lines


class OutcomeDocument(msgspec.Struct, gc=False, omit_defaults=True):
    """The outcome of one command. It is positional because many are built for each batch."""

    id: str
    outcome: str
    due_at: str | None = None
    state: str | None = None
    reason: str | None = None
    in_flight: int | None = None
    remembered_since: str | None = None
    line: int | None = None
    note: str | None = None


def outcome_document(outcome: Outcome, line: int | None = None) -> OutcomeDocument:
    """An outcome with its times as text, and in a batch with the number of its line."""
    due, since = outcome.due, outcome.remembered_since
    return OutcomeDocument(
        outcome.id,
        outcome.outcome,
        None if due is None else format_instant(due),
        outcome.state,
        outcome.reason,
        outcome.in_flight,
        None if since is None else format_instant(since),
        line,
        outcome.note,
    )


def rejected_document(invalid: Invalid, line: int, schedule_id: str | None) -> Document:
    """A line of a batch that was refused: the errors, and the number of the line."""
    document: Document = {} if schedule_id is None else {"id": schedule_id}
    return document | {"outcome": "rejected", "errors": errors_document(invalid), "line": line}


def errors_document(invalid: Invalid) -> list[dict[str, str]]:
    """The errors of a refusal, by field."""
    return [{"field": each.field, "detail": each.detail} for each in invalid.all]


def schedule_document(schedule: Schedule) -> Document:
    """A schedule in its current state; fields without a value are left out."""
    document: Document = {
        "id": schedule.id,
        "topic": split(schedule.topic)[1],
        "bus": split(schedule.topic)[0],
        "state": schedule.state,
        "due_at": format_instant(schedule.due),
        **_local(schedule),
        **_when(schedule.when),
        "occurrence": schedule.occurrence,
        "generation": schedule.generation,
        "accepted_at": format_instant(schedule.accepted),
        "priority": PRIORITY_WORDS[schedule.priority],
    }
    if (note := swallowed_note(schedule.when)) is not None:
        document["note"] = note
    document |= _policy(schedule)  # the order of the fields is part of the ETag
    if schedule.labels is not None:
        document["labels"] = msgspec.Raw(schedule.labels.encode())
    if schedule.message is not None:
        _put_message(document, schedule.message)
    if schedule.finished is not None:
        document["finished_at"] = format_instant(schedule.finished)
    for name in ("reason", "partition", "offset"):
        if (value := getattr(schedule, name)) is not None:
            document[name] = value
    return document


def timing_document(schedule: Schedule) -> Document:
    """When a schedule is due, in the fields of a request, and its lateness policy; nothing once it is finished."""
    return _when(schedule.when) | _policy(schedule)


def _policy(schedule: Schedule) -> Document:
    document: Document = {} if schedule.lateness is None else _lateness(schedule.lateness)
    if schedule.jitter_window_us:
        document["jitter"] = format_iso_duration(schedule.jitter_window_us)
    return document


def event_document(event: Event) -> schedule_shapes.Event:
    """One event of a history; a release says how late it was."""
    return schedule_shapes.Event(
        at=format_instant(event.at),
        event=event.event,
        occurrence=_unset(event.occurrence),
        due_at=UNSET if event.due is None else format_instant(event.due),
        late_ms=(event.at - event.due) / 1000 if event.event == "released" and event.due is not None else UNSET,
        reason=_unset(event.reason),
        count=_unset(event.count),
    )


def record_document(record: Record) -> Document:
    """One released occurrence; bytes are shown as text if they are UTF-8, otherwise as base64."""
    document: Document = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    _put_message(document, record.message)
    document["id"] = record.id
    document["occurrence"] = record.occurrence
    document["due_at"] = format_instant(record.due)
    document["released_at"] = format_instant(record.released)
    if record.final and record.number > 1:
        document["final"] = True
    return document


def kafka_document(topic: str, partition: int, offset: int, timestamp_us: int | None, message: Message) -> Document:
    """A record on Kafka. If Tidings released it, its headers hold its id and due time; its timestamp is Kafka's."""
    document: Document = {"bus": "kafka", "topic": topic, "partition": partition, "offset": offset}
    _put_content(document, message)
    headers = dict(message.headers)
    for name, header in (("id", "tidings-id"), ("occurrence", "tidings-occurrence"), ("due_at", "tidings-due-at")):
        if (content := headers.get(header)) is not None:
            document[name] = content.decode(errors="replace")
    if "tidings-final" in headers:
        document["final"] = True
    if timestamp_us is not None:
        document["released_at"] = format_instant(timestamp_us)
    return document


def topic_document(topic: Topic) -> topic_shapes.Topic:
    """The size of a topic, and the offsets of its partitions."""
    partitions = [
        topic_shapes.Partition(partition=partition, first=first, next=following)
        for partition, (first, following) in enumerate(zip(topic.first, topic.next, strict=True))
    ]
    records = sum(topic.next) - sum(topic.first)
    return topic_shapes.Topic(name=topic.name, records=records, bytes=topic.bytes, partitions=partitions)


def format_iso_duration(us: int, months: int = 0) -> str:
    """A duration in ISO 8601: `P1M`, `PT1H30M`, `PT0.25S`."""
    minutes, rest = divmod(us, 60 * SECOND_US)
    days, minutes = divmod(minutes, 1_440)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest // SECOND_US}.{rest % SECOND_US:06}".rstrip("0").rstrip(".")
    date = "".join(f"{amount}{unit}" for amount, unit in ((months, "M"), (days, "D")) if amount)
    time = "".join(f"{amount}{unit}" for amount, unit in ((hours, "H"), (minutes, "M")) if amount)
    time += f"{seconds}S" if rest or not (date or time) else ""
    return f"P{date}T{time}" if time else f"P{date}"


def _local(schedule: Schedule) -> Document:
    """The local due time and the tzdata version, if the schedule has a time zone."""
    zone = zone_of(schedule.when)
    if zone is None:
        return {}
    return {"due_at_local": local_text(zone, schedule.due), "tzdata": schedule.tzdata}


def moment_document(shown: Shown) -> schedule_shapes.Moment:
    """One occurrence of a preview; one that a DST gap skips has no number and no instant."""
    return schedule_shapes.Moment(
        occurrence=_unset(shown.number),
        due_at=UNSET if shown.at is None else format_instant(shown.at),
        due_at_local=shown.wall,
        mark=_unset(shown.mark),
    )


def calendar_document(calendar: Calendar, *, whole: bool = True) -> admin_shapes.Calendar:
    """A calendar with its dates, or only with their number."""
    return admin_shapes.Calendar(
        name=calendar.name,
        days=len(calendar.days),
        changed_at=format_instant(calendar.changed),
        dates=tuple(wall_text(day * 86_400)[:10] for day in calendar.days) if whole else UNSET,
    )


def moved_document(moved: Moved, zone: str | None = None) -> admin_shapes.Moved:
    """A pending occurrence that was moved; with a zone, also the local time of the new due time."""
    return admin_shapes.Moved(
        at=format_instant(moved.at),
        cause=moved.cause,
        id=moved.id,
        occurrence=moved.occurrence,
        before=format_instant(moved.before),
        after=None if moved.after is None else format_instant(moved.after),
        zone=UNSET if zone is None or moved.after is None else zone,
        after_local=UNSET if zone is None or moved.after is None else local_text(zone, moved.after),
    )


def _unset(value: Given | None) -> Given | UnsetType:
    """The value of an optional field of an answer."""
    return UNSET if value is None else value


def _when(when: When | None) -> Document:
    """The fields that say when it is due, as they could be sent again."""
    if when is None:
        return {}
    if isinstance(when, Once):
        return {"at": format_instant(when.at)}
    if not isinstance(when, Every):
        return fields_of(when)
    count = "R" if when.count is None else f"R{when.count}"
    period = _period(when.period)
    if when.offset == 0:
        end = "" if when.end is None else f"/{format_instant(when.end)}"
        return {"every": f"{count}/{format_instant(when.start)}/{period}{end}"}
    if when.end is not None:
        return {"every": f"{count}/{period}/{format_instant(when.end)}"}
    # ISO 8601 cannot express months counted from an anchor that is not itself an occurrence.
    return {"every": f"{count}/{period}", "anchor_at": format_instant(when.start)}


def _period(period: Period) -> str:
    return format_iso_duration(period.us, period.months)


def _lateness(lateness: Lateness) -> dict[str, str]:
    document: dict[str, str] = {"late": lateness.policy}
    if lateness.grace_us != GRACE_DEFAULT_US:
        document["late_grace"] = format_iso_duration(lateness.grace_us)
    if lateness.max_us is not None:
        document["late_max"] = format_iso_duration(lateness.max_us)
    if lateness.expires_after_us is not None:
        document["expires_after"] = format_iso_duration(lateness.expires_after_us)
    return document


def _put_message(document: Document, packed: bytes) -> None:
    _put_content(document, unpack(packed))


def _put_content(document: Document, message: Message) -> None:
    _put_bytes(document, "key", message.key)
    _put_bytes(document, "value", message.value)
    document["headers"] = _headers(message.headers)


def _put_bytes(document: Document, name: str, content: bytes | None) -> None:
    try:
        document[name] = None if content is None else content.decode()
    except UnicodeDecodeError:
        document[f"{name}_base64"] = _base64(content)


def _headers(headers: Headers) -> Sequence[tuple[str, str | dict[str, str] | None]]:
    """Headers as text, without the placeholder that is replaced by the due time at the release."""
    known = (pair for pair in headers if pair[1] != DUE_SECONDS)
    return [(name, None if value is None else _text_or_base64(value)) for name, value in known]


def _text_or_base64(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(content)}


def _base64(content: bytes | None) -> str:
    return b2a_base64(content or b"", newline=False).decode()
