"""What delivery asks of a store: small documents, found by name or by tag, changed only as the changer saw them.

Users, templates, notifications, deliveries, suppressed addresses and limits are all kept in this one way. What they
mean is decided in `delivery`; a store knows nothing of it.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

ANY = -1  # as the version that a change expects: whatever is there, or nothing
NAME_BYTES_MAX = 2_400  # of a document's name, in UTF-8: what PostgreSQL can keep in order


class Key(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The name of a document. `kind` is ours, `name` may be anybody's, as long as it is not longer than the bound."""

    tenant: str
    kind: str
    name: str


class Document(msgspec.Struct, frozen=True, gc=False):
    """What is kept under a key. `version` grows with each change, and never repeats while the document is there.

    Each of its `tags` finds it; under a tag documents lie in the order of `order`, a moment or 0, and then of their
    names. After `until` it is as if it were not there, and will be removed.
    """

    key: Key
    body: bytes
    version: int
    tags: tuple[str, ...] = ()
    order: int = 0
    until: int | None = None


class Put(msgspec.Struct, frozen=True, gc=False):
    """Keep a document, if it has the version that is expected: 0 if it must not be there yet."""

    key: Key
    body: bytes
    expected: int
    tags: tuple[str, ...] = ()
    order: int = 0
    until: int | None = None


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Remove a document, if it has the version that is expected."""

    key: Key
    expected: int = ANY


class Unchanged(msgspec.Struct, frozen=True, gc=False):
    """Leave a document that is there as it is; its group is done only if it has the version that is expected."""

    key: Key
    expected: int


Change = Put | Remove | Unchanged
Place = tuple[int, str]  # order and name: where a search goes on


class DocumentStore(Protocol):
    """Documents, kept as durably as the timeline beside them."""

    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        """What is there under each of these keys."""
        ...

    async def find(
        self,
        tenant: str,
        kind: str,
        tag: str,
        now: int,
        *,
        after: Place | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Document]:
        """Those that have this tag, in order or with the last one first, from behind a place on."""
        ...

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        """Make the changes of each group if all that it expects is so, and nothing of it otherwise; says which it was.

        The answer to a group that was not made is 0; to one that was, the version of what it put last, or just
        something else than 0 where it put nothing.

        All groups are one durable transaction. Groups see what those before them did. `ValueError`, before anything is
        done, if a key is in a group twice, a tag on a document twice, a name too long, or
        what is to be left unchanged is expected not to be there.
        """
        ...

    async def wipe(self) -> None:
        """Leave nothing of what was removed in files that this store can overwrite."""
        ...
