"""A line in a person's inbox, and how it is filed."""

import msgspec

KIND = "inbox"
UNREAD = "unread"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """What she is told inside the product, when it came, and when she read it."""

    id: str
    user: str
    title: str
    body: str
    at: int
    read: int | None = None


def line_name(user: str, line: str) -> str:
    """Its name among the documents; a user's id has no slash."""
    return f"{user}/{line}"


def line_tags(line: Line) -> tuple[str, ...]:
    """All of hers, and what she has not read."""
    mine = f"user:{line.user}"
    return (mine,) if line.read is not None else (mine, f"{UNREAD}:{line.user}")
