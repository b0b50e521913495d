"""The document store in memory: the reference for the other stores."""

import bisect
from collections.abc import Iterable, Sequence
from itertools import islice

from tidings.ports import ANY, Change, Document, Key, Place, Put, Unchanged
from tidings.timeline.store_rules import check_changes

TagKey = tuple[str, str, str]  # tenant, kind, tag


class MemoryDocuments:
    """Documents by key, and for every tag the sorted places of its documents."""

    def __init__(self) -> None:
        self._documents: dict[Key, Document] = {}
        self._by_tag: dict[TagKey, list[Place]] = {}
        self._last_version = 0

    async def get(self, keys: Sequence[Key], now: int) -> list[Document | None]:
        return [self._find(key, now) for key in keys]

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
        places = self._by_tag.get((tenant, kind, tag), [])
        if newest:
            places = places[: len(places) if after is None else bisect.bisect_left(places, after)][::-1]
        elif after is not None:
            places = places[bisect.bisect_right(places, after) :]
        found = (self._find(Key(tenant, kind, name), now) for _, name in places)
        return list(islice((document for document in found if document is not None), limit))

    async def change(self, groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        check_changes(groups)
        return [self._change(group, now) for group in groups]

    async def wipe(self) -> None:
        """Nothing to do: memory is not written to files."""

    def tend(self, now: int) -> None:
        """Delete expired documents."""
        for key in [key for key in self._documents if self._find(key, now) is None]:
            self._remove(key)

    def _change(self, group: Sequence[Change], now: int) -> int:
        if not all(self._is_expected(change, now) for change in group):
            return 0
        answer = 1
        for change in group:
            if isinstance(change, Unchanged):
                continue
            self._remove(change.key)
            if isinstance(change, Put):
                answer = self._put(change)
        return answer

    def _is_expected(self, change: Change, now: int) -> bool:
        there = self._find(change.key, now)
        return change.expected in {ANY, 0 if there is None else there.version}

    def _find(self, key: Key, now: int) -> Document | None:
        document = self._documents.get(key)
        return None if document is None or (document.until is not None and document.until <= now) else document

    def _put(self, change: Put) -> int:
        self._last_version += 1
        document = Document(change.key, change.body, self._last_version, change.tags, change.order, change.until)
        self._documents[change.key] = document
        for tag in _tag_keys(document):
            bisect.insort(self._by_tag.setdefault(tag, []), (document.order, document.key.name))
        return document.version

    def _remove(self, key: Key) -> None:
        document = self._documents.pop(key, None)
        if document is not None:
            for tag in _tag_keys(document):
                places = self._by_tag[tag]
                del places[bisect.bisect_left(places, (document.order, key.name))]
                if not places:
                    del self._by_tag[tag]


def _tag_keys(document: Document) -> Iterable[TagKey]:
    return ((document.key.tenant, document.key.kind, tag) for tag in document.tags)
