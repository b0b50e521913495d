"""Server-sent events, as they come over a response."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class ServerEvent(NamedTuple):
    """One event: its kind, its data, and the position to resume from."""

    kind: str
    data: str
    position: str | None


def read_events(lines: Iterable[bytes], position: str | None = None) -> Iterator[ServerEvent]:
    """The events of a stream of lines; an event that is cut off is not one. Comments keep the line alive."""
    kind, data = "message", list[str]()
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield ServerEvent(kind, "\n".join(data), position)
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            position = value
