"""The arguments of the library: values of the wrong type are refused by field, times become those of a request."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import encoded, half_character
from tidings.domain.recurrence.preview import PREVIEW_MAX, Mark, preview
from tidings.domain.recurrence.rule import Gap, OnExcluded, Overlap
from tidings.domain.schedules.schedule import Timing
from tidings.domain.schedules.when import Cron, Local, Rule, When, first_index_at_or_after, occurrence
from tidings.shapes.fields import fields_of
from tidings.shapes.schedule import NewSchedule

_DURATION = "a timedelta, or text such as 'PT1H' or '90s'"
# What fields accept if that differs from JSON, in Python types; that of the others follows from the shape.
TAKES = {
    "topic": "text, such as 'greetings'",
    "id": "text, such as 'order-42'",
    "value": "bytes, text, None, or a value that can be encoded as JSON",
    "key": "text, bytes or None",
    "headers": "a mapping of names to text, bytes or None, or pairs of these, such as [('trace', 'abc')]",
    "at": "an aware datetime, a timedelta, or text such as '+5s'",
    "every": "a timedelta, or text such as 'PT10M' or 'R5/2026-11-20T09:00:00Z/PT1H'",
    "labels": "a dictionary of texts, such as {'campaign': 'autumn'}",
    "state": "'pending', 'paused', 'in_flight', 'released', 'missed', 'cancelled' or 'ended'",
    "prefix": "text, such as 'order-'",
    "label": "a pair of texts, such as ('campaign', 'autumn')",
    "start": "'beginning', 'latest' or a cursor",
    "requests": "what tidings.make_request returns",
}

_FIELD = re.compile(r"`\$\.(\w+)")

Struct = TypeVar("Struct", bound=msgspec.Struct)

Moment = str | datetime | date

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TIME = "a datetime, a date, or text such as '2026-11-20T09:00:00'"
# The same for the fields about time.
_TIME_TYPES = {
    "zone": "a ZoneInfo, or a name such as 'Europe/Berlin'",
    **dict.fromkeys(("start", "until"), _TIME),
    **dict.fromkeys(("rdates", "exdates"), f"a list, each {_TIME}"),
}


def wrong(field: str) -> Invalid:
    """The refusal of a value whose type the field does not accept."""
    return Invalid(field, f"give {TAKES.get(field) or takes(NewSchedule, field)}")


def takes(shape: type[msgspec.Struct], name: str) -> str:
    """What a field accepts, as a Python program writes it."""
    field = fields_of(shape)[name]
    if field.is_duration:
        return _DURATION
    if field.choices:
        *others, last = map(repr, field.choices)
        return f"{', '.join(others)} or {last}"
    return field.send.partition(", for example")[0] + (f", such as {field.examples[0]!r}" if field.examples else "")


def check_text(text: object, field: str) -> None:
    """Raise `Invalid` for a value that is not text, or cannot be encoded as UTF-8."""
    if not isinstance(text, str):
        raise wrong(field)
    encoded(text, field)


def checked(struct: Struct) -> Struct:
    """The struct with every field of its declared type, by encoding and decoding it; raises `Invalid` by field."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(struct), type=type(struct))
    except msgspec.ValidationError as error:
        raise wrong(_FIELD.findall(str(error))[0]) from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        for field, value in msgspec.structs.asdict(struct).items():
            _check_encodes(value, field)
        raise


def _check_encodes(value: object, field: str) -> None:
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        raise half_character(field) from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise wrong(field) from None


TIME_TAKES = {name: _TIME_TYPES.get(name) or takes(NewSchedule, name) for name in Timing.__struct_fields__}


class Times(TypedDict, total=False):
    """The options about time beside `at` and `every`."""

    rrule: str | None
    cron: str | None
    zone: str | ZoneInfo | None
    start: Moment | None
    until: Moment | None
    count: int | None
    rdates: Sequence[Moment]
    exdates: Sequence[Moment]
    gap: Gap | None
    overlap: Overlap | None
    calendar: str | None
    on_excluded: OnExcluded | None


class Previewed(msgspec.Struct, frozen=True):
    """One moment of a preview. One that falls into a DST gap and is skipped has no number and no instant.

    `local` is the local time with its offset, if there is a time zone.
    """

    occurrence: int | None
    due_at: datetime | None
    local: str | None = None
    mark: Mark | Literal[""] = ""


class Preview(list[Previewed]):
    """The moments of a preview; `more` says whether others follow.

    `passed` is how many are past, and `note` a remark on them or on local times.
    """

    def __init__(self, shown: Iterable[Previewed], *, more: bool, passed: int, note: str | None) -> None:
        super().__init__(shown)
        self.more = more
        self.passed = passed
        self.note = note


def check_when(options: Mapping[str, object]) -> None:
    """Raise `Invalid` for options that do not affect when it is due, as a preview over HTTP does."""
    for name, value in options.items():
        if value is not None and name not in {"at", "every", *TIME_TAKES}:
            raise Invalid(
                name,
                "does not affect when it is due: a preview takes only what does, 'after' and 'limit'",
            )


def timing_of(options: Times) -> Timing | None:
    """The timing of a request from its options; None if none is given."""
    given: dict[str, Any] = {name: options[name] for name in TIME_TAKES if options.get(name) is not None}  # type: ignore[literal-required]
    if not given:
        return None
    if isinstance(given.get("zone"), ZoneInfo):
        given["zone"] = given["zone"].key
    for name in ("start", "until"):
        if name in given:
            given[name] = _text(given[name], name)
    for name in ("rdates", "exdates"):
        if name in given:
            given[name] = _texts(given[name], name)
    for name, value in given.items():
        _check(name, value)
    return Timing(**given)


def local_text(at: datetime) -> str:
    """A naive datetime as a local time."""
    return at.isoformat(timespec="seconds" if not at.microsecond else "microseconds")


def moments(when: When, start: int, count: object) -> tuple[list[Previewed], bool]:
    """The moments from `start` on, each with its number, and whether more follow."""
    if not isinstance(count, int) or not 1 <= count <= PREVIEW_MAX:
        raise Invalid("limit", f"give a whole number from 1 to {PREVIEW_MAX:,}: how many moments to show")
    if isinstance(when, Local | Rule | Cron):
        lines = preview(when, start - 1, count)
        shown = [Previewed(line.number, _moment(line.at), line.wall, line.mark or "") for line in lines]
    else:
        first = first_index_at_or_after(when, start) or 1
        found = ((n, occurrence(when, n)) for n in range(first, first + count))
        shown = [Previewed(n, _moment(at)) for n, at in found if at is not None and at >= start]
    numbers = [one.occurrence for one in shown if one.occurrence is not None]
    return shown, len(numbers) == count and occurrence(when, numbers[-1] + 1) is not None


def _moment(at: int | None) -> datetime | None:
    return None if at is None else _EPOCH + timedelta(microseconds=at)


def _check(name: str, value: object) -> None:
    kind = int if name == "count" else tuple if name in {"rdates", "exdates"} else str
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Invalid(name, f"give {TIME_TAKES[name]}")


def _texts(values: object, name: str) -> tuple[str, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise Invalid(name, f"give {TIME_TAKES[name]}")
    return tuple(_text(value, name) for value in values)


def _text(value: object, name: str) -> str:
    match value:
        case datetime():
            if value.microsecond:
                raise Invalid(name, "has a fraction of a second: rules have whole seconds, leave the fraction out")
            return value.isoformat(timespec="seconds")
        case date():
            return value.isoformat()
        case str():
            return value
        case _:
            raise Invalid(name, f"give {TIME_TAKES[name]}")
