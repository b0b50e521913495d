"""The tables of channels, and how a mistake in one is told."""

import contextlib
from collections.abc import Iterator

from tidings.domain.errors import Invalid


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Say in whose table it is that something is wrong."""
    try:
        yield
    except Invalid as invalid:
        first, *others = (Invalid(f"channels.{name}.{each.field}", each.detail) for each in invalid.all)
        raise Invalid(first.field, first.detail, tuple(others)) from None
