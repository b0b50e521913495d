"""The requests of every benchmark: bodies of 200 bytes, two headers."""

import random
from collections.abc import Iterator, Sequence

from tidings.domain.schedules.command import Priority
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import Request

TENANT = "default"
TOPIC = "bench"
BODY_BYTES = 200
HEADERS = (
    ("trace", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("content-type", b"text/plain"),
)
BATCH_ROWS = 1_000
SPAN_US = 30 * 86_400 * 1_000_000

_SECOND_US = 1_000_000
_VALUES = tuple(random.randbytes(BODY_BYTES // 2).hex().encode() for _ in range(1_024))
_LINE_END = b'","headers":[%s]}\n' % b",".join(b'["%s","%s"]' % (name.encode(), text) for name, text in HEADERS)


def request(
    at: int, *, topic: str = TOPIC, schedule_id: str | None = None, priority: Priority = Priority.NORMAL
) -> Request:
    """One request, due at a moment."""
    return Request(topic, random.choice(_VALUES), None, HEADERS, schedule_id, at, priority=priority)


def far_moment(now: int) -> int:
    """At random over the next 30 days."""
    return now + _SECOND_US + int(random.random() * SPAN_US)


def random_id() -> str:
    """An id as a caller makes it: the 32 digits of a random UUID."""
    return f"{random.getrandbits(128):032x}"


def far_batches(rows: int, now: int, *, with_ids: bool, topic: str = TOPIC) -> Iterator[list[Request]]:
    """Batches of requests due at random over 30 days, with the caller's random ids or without any."""
    for size in batch_sizes(rows):
        yield [
            request(far_moment(now), topic=topic, schedule_id=random_id() if with_ids else None) for _ in range(size)
        ]


def instant_batches(
    rows: int, due: int, *, topic: str = TOPIC, priority: Priority = Priority.NORMAL
) -> Iterator[list[Request]]:
    """Batches of requests that are all due at one instant."""
    for size in batch_sizes(rows):
        yield [request(due, topic=topic, priority=priority) for _ in range(size)]


def batch_sizes(rows: int) -> Iterator[int]:
    """Full batches, and the rest."""
    for start in range(0, rows, BATCH_ROWS):
        yield min(BATCH_ROWS, rows - start)


def document(at: int, topic: str = TOPIC) -> bytes:
    """The same request as JSON on a line."""
    head = f'{{"topic":"{topic}","at":"{format_instant(at)}","value":"'
    return head.encode() + random.choice(_VALUES) + _LINE_END


def lines(moments: Sequence[int], topic: str = TOPIC) -> bytes:
    """A body of lines, one for each moment."""
    return b"".join(document(at, topic) for at in moments)
