"""A record as it leaves: its own key, value and headers, and after them the headers that say what it is."""

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
# Whoever passes on what was released before says nothing about this one, and nobody can claim to be another.
OURS = frozenset({ID, OCCURRENCE, DUE_AT, ATTEMPT[0], FINAL[0], ORIGIN})
# Where only Tidings writes: a request that was refused keeps the id that it came with, so that it can be sent again.
REFUSED = "tidings.rejections."
_OF_THE_REFUSAL = OURS - {ID}


class Released:
    """Makes records; remembers how the last due time is written."""

    def __init__(self) -> None:
        self._due = -1
        self._due_header: Header = (DUE_AT, b"")

    def record(self, outgoing: Outgoing) -> tuple[bytes | None, bytes | None, list[Header]]:
        """Key, value and headers."""
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
    """With the due time where a header asks for it."""
    seconds = str(due // SECOND_US).encode()
    headers = [(name, seconds if value == DUE_SECONDS else value) for name, value in message.headers]
    return Message(message.key, message.value, tuple(headers))
