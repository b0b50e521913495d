"""Records as Tidings releases them, byte for byte, made beforehand for those who do nothing but produce."""

from collections.abc import Sequence

from bench.requests import TENANT, request
from tidings.bus.kafka.producers import Header, RecordBuilder
from tidings.domain.schedules.schedule import Message, Outgoing, make_id, pack

Record = tuple[bytes | None, bytes | None, list[Header]]


def records_at(moments: Sequence[int], topic: str) -> list[Record]:
    """Key, value and headers of one-shots due at these moments: two headers of their own, and those of Tidings."""
    released = RecordBuilder()
    return [released.record(_outgoing(number, due, topic)) for number, due in enumerate(moments)]


def _outgoing(number: int, due: int, topic: str) -> Outgoing:
    asked = request(due, topic=topic)
    message = pack(Message(asked.key, asked.value, asked.headers))
    return Outgoing(number, TENANT, topic, make_id(number, due, 1), 1, 1, due, due, message, final=True)
