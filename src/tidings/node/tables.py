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
        raise Invalid(f"channels.{name}.{invalid.field}", invalid.detail) from None
