"""Where a list goes on, as a text that callers hand back."""

from tidings.domain.errors import Invalid
from tidings.ports import Document, Place


def place_of(document: Document) -> Place:
    """Where a document lies under its tags."""
    return document.order, document.key.name


def write_cursor(place: Place) -> str:
    """The text for a place."""
    return f"{place[0]}.{place[1]}"


def read_cursor(cursor: str) -> Place:
    """The place that a cursor stands for."""
    order, dot, name = cursor.partition(".")
    if not dot or not order.isdigit() or not order.isascii() or len(order) > 18:
        raise Invalid("cursor", "is not valid: leave it out to start from the beginning")
    return int(order), name
