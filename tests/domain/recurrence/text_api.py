"""Helpers of the recurrence tests: rules and times from text, occurrences as lists."""

from datetime import UTC, datetime, timedelta

from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.rule import Cron, Gap, Overlap, Recurrence, Rule

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 wall time has no zone
EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)


def wall(text: str) -> int:
    """Seconds of a wall time such as 19970902T090000."""
    return seconds(datetime.strptime(text, "%Y%m%dT%H%M%S"))  # noqa: DTZ007 wall time has no zone


def seconds(moment: datetime) -> int:
    """Seconds of a wall time or an instant."""
    return (moment - (EPOCH if moment.tzinfo is None else EPOCH_UTC)) // timedelta(seconds=1)


def shown(second: int) -> str:
    """The wall time (or instant) of a second, as `wall` reads it."""
    return (EPOCH + timedelta(seconds=second)).strftime("%Y%m%dT%H%M%S")


def rule(
    text: str, start: str, zone: str = "UTC", gap: Gap = "forward", overlap: Overlap = "first", fold: int = 0
) -> Rule:
    """A rule with its start as wall time."""
    return Rule(rrule=text, start=wall(start), zone=zone, fold=fold, gap=gap, overlap=overlap)


def first(recurrence: Recurrence, count: int) -> list[int]:
    """The first instants of a recurrence."""
    moments = compiled(recurrence)
    found = (moments.at(number) for number in range(1, count + 1))
    return [at for at in found if at is not None]


def between(recurrence: Recurrence, begin: int, end: int) -> list[int]:
    """The instants from one second to another, both included."""
    moments = compiled(recurrence)
    numbers = range(moments.through(begin - 1) + 1, moments.through(end) + 1)
    return [at for number in numbers if (at := moments.at(number)) is not None]


def cron(text: str, since: datetime, zone: str = "UTC") -> Cron:
    """A cron expression from an instant on."""
    return Cron(expression=text, since=seconds(since) * 1_000_000, zone=zone)
