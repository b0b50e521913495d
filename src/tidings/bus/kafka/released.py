"""Producers of released records, and the records as they are written to Kafka.

A record keeps its key, value and headers, followed by the headers that identify the occurrence. `TransactionalProducer`
publishes a batch of the outbox in one transaction with a progress marker. `IdempotentProducer` works without
transactions, and may send some records again after a crash.

A batch is durable in the outbox before anything of it is published. The outbox has one order, and no record in it can
be cancelled. So the marker needs to hold only the next offset, and the next owner of the lane continues from there.
"""

from tidings.domain.iso8601 import format_instant
from tidings.domain.message import DUE_SECONDS, ORIGIN, Message, unpack
from tidings.domain.schedule import Outgoing
from tidings.domain.when import SECOND_US

Header = tuple[str, str | bytes | None]

ID = "tidings-id"
OCCURRENCE = "tidings-occurrence"
DUE_AT = "tidings-due-at"
ATTEMPT = ("tidings-attempt", b"1")
FINAL = ("tidings-final", b"true")
# Headers of these names in the message are dropped: they may come from an earlier release, or be forged.
OURS = frozenset({ID, OCCURRENCE, DUE_AT, ATTEMPT[0], FINAL[0], ORIGIN})
# On rejection topics, which only Tidings writes, a refused request keeps its id so that it can be sent again.
REFUSED = "tidings.rejections."
_OF_THE_REFUSAL = OURS - {ID}


class Released:
    """Builds Kafka records; caches the header of the last due time."""

    def __init__(self) -> None:
        self._due = -1
        self._due_header: Header = (DUE_AT, b"")

    def record(self, outgoing: Outgoing) -> tuple[bytes | None, bytes | None, list[Header]]:
        """The key, value and headers of a released record."""
        message = unpack(outgoing.message)
        if DUE_SECONDS in outgoing.message:
            message = _timed(message, outgoing.due)
        if outgoing.due != self._due:
            self._due, self._due_header = outgoing.due, (DUE_AT, format_instant(outgoing.due).encode())
        refused = outgoing.topic.startswith(REFUSED)
        ours = _OF_THE_REFUSAL if refused else OURS
        headers: list[Header] = [
            *(header for header in message.headers if header[0] not in ours),
            *(() if refused else ((ID, outgoing.id.encode()),)),
            (OCCURRENCE, outgoing.occurrence.encode()),
            self._due_header,
            ATTEMPT,
        ]
        if outgoing.final and outgoing.number > 1:
            headers.append(FINAL)
        return message.key, message.value, headers


def _timed(message: Message, due: int) -> Message:
    """Put the due time into headers that ask for it."""
    seconds = str(due // SECOND_US).encode()
    headers = [(name, seconds if value == DUE_SECONDS else value) for name, value in message.headers]
    return Message(message.key, message.value, tuple(headers))
