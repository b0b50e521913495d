"""The document store: small documents, found by name or by tag, and changed with compare-and-set.

Users, templates, notifications, deliveries, suppressions and rate limits are stored as documents. Only `delivery` knows
what they mean.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

ANY = -1  # as the expected version of a change: any version, or no document
NAME_BYTES_MAX = 2_400  # of a document's name in UTF-8, so that PostgreSQL can index it


class Key(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The key of a document. `kind` is one of our own; `name` may come from users, up to `NAME_BYTES_MAX`."""

    tenant: str
    kind: str
    name: str


class Document(msgspec.Struct, frozen=True, gc=False):
    """A stored document. `version` grows with each change, and never repeats while the document exists.

    A document is found by each of its `tags`. Under a tag, documents are sorted by `order` (a time, or 0) and then by
    name. After `until` a document is expired: reads do not return it, and it will be deleted.
    """

    key: Key
    body: bytes
    version: int
    tags: tuple[str, ...] = ()
    order: int = 0
    until: int | None = None


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a document if it has the expected version; 0: if it does not exist yet."""

    key: Key
    body: bytes
    expected: int
    tags: tuple[str, ...] = ()
    order: int = 0
    until: int | None = None


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Delete a document if it has the expected version."""

    key: Key
    expected: int = ANY


class Unchanged(msgspec.Struct, frozen=True, gc=False):
    """Require that an existing document has the expected version, without changing it."""

    key: Key
    expected: int


Change = Put | Remove | Unchanged
Place = tuple[int, str]  # order and name: where a search continues


class DocumentStore(Protocol):
    """Stores documents, as durably as the timeline."""

    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        """The document of each key; None where there is none."""
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
        """Documents with this tag after a place, in order; with `newest` in reverse order."""
        ...

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        """Apply each group of changes if all its expected versions match, else none of that group.

        Returns 0 for a group that was not applied. For one that was, returns the version of its last `Put`, or any
        other number if it has none.

        All groups are one durable transaction, and a group sees the changes of those before it. Raises `ValueError`,
        before anything is done, if a group has a key twice, a document has a tag twice, a name is too long, or an
        `Unchanged` expects that there is no document.
        """
        ...

    async def wipe(self) -> None:
        """Overwrite deleted data in the files that this store controls."""
        ...
