"""Times in the headers of a record. Durations count from the record's own timestamp.

So the same record means the same times however often and however late it is read.
"""

from typing import NamedTuple

from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import format_instant, parse_duration, parse_instant, parse_interval
from tidings.domain.when import LAST_INSTANT, Period, advance
from tidings.wires.record import Record


class Times(NamedTuple):
    """The time fields of a request."""

    at: int | str | None = None
    every: str | None = None
    since: int | None = None


def since_of(record: Record) -> int | None:
    """The start of a rule without one: the record's timestamp; None (the time of acceptance) if it has none."""
    return record.timestamp_us if 0 <= record.timestamp_us <= LAST_INSTANT else None


def once(text: str, since: int, field: str, *, as_written: bool) -> Times:
    """A single time. `as_written` keeps a duration as text, so that a repeated request has the same content."""
    at = moment(text, since, field)
    return Times(text, since=since) if as_written and _is_duration(text) else Times(at)


def again(text: str, since: int, field: str, *, as_written: bool) -> Times:
    """A repeating interval; `as_written` as for `once`."""
    every = interval(text, since, field)
    return Times(every=text, since=since) if as_written else Times(every=every)


def moment(text: str, since: int, field: str) -> int:
    """Parse an instant, or a duration such as PT10M or +5s after `since`."""
    if _is_duration(text):
        return _after(since, parse_duration(text, field), field)
    return parse_instant(text, field)


def interval(text: str, since: int, field: str) -> str:
    """A repeating interval with an explicit start: PT10M starts ten minutes after `since`."""
    head, slash, period = text.partition("/")
    if not slash and not head.startswith("R"):
        head, period = "R", text
    if period and "/" not in period:
        text = f"{head}/{format_instant(_after(since, parse_duration(period, field), field))}/{period}"
    parse_interval(text, 0, field)
    return text


def _is_duration(text: str) -> bool:
    return text[:1] in {"+", "P"} or (text[:1].isdigit() and text[-1:].isalpha() and text[-1:] not in {"Z", "z"})


def _after(since: int, period: Period, field: str) -> int:
    if not 0 <= since <= LAST_INSTANT:
        raise Invalid(field, "is a duration, but the record has no timestamp to count from: write an instant")
    at = advance(since, period)
    if at > LAST_INSTANT:
        raise Invalid(field, "is after the year 9999: write a shorter duration")
    return at
