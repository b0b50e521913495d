"""Server-sent events, as they come over a response."""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidings.edges.cli.exits import Exit, Failure


class ServerEvent(NamedTuple):
    """One event: its kind, its data, and the position to resume from."""

    kind: str
    data: str
    position: str | None


def read_events(lines: Iterable[bytes], position: str | None = None) -> Iterator[ServerEvent]:
    """The events of a stream of lines; an event that is cut off is not one. Comments keep the connection alive.

    An event `error` is the last one, and its problem is raised as a `Failure` that may pass.
    """
    kind, data = "message", list[str]()
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data and kind == "error":
                raise _ended(data)
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


def _ended(data: list[str]) -> Failure:
    """The failure that the server's last event tells of."""
    try:
        problem = json.loads("\n".join(data))
    except ValueError:
        problem = None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    return Failure(Exit.UNREACHABLE, f"the server ended the stream: {detail or data[0]}", problem)
