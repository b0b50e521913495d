"""One-shots on their way into the tables, column by column."""

from collections.abc import Sequence
from hashlib import sha256
from operator import attrgetter
from zlib import crc32

import numpy as np

from tidings.domain.command import Add, Outcome
from tidings.domain.destination import is_kafka
from tidings.domain.lateness import Lateness, deadline
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.changes import new_id
from tidings.timeline.postgres.names import TO_KAFKA
from tidings.timeline.postgres.rows import KEY_BYTES, REASONS
from tidings.timeline.postgres.shared import Arrivals, Shared

_PLAIN = Lateness()
_kind = attrgetter("tenant", "topic", "priority")


class Batch:
    """Rows are sorted by lane and due time: what leaves together lies together. Keys are sorted by themselves."""

    def __init__(self, shared: Shared, given: Sequence[Add], arrivals: Arrivals) -> None:
        self._shared = shared
        numbers = [arrivals.take() for _ in given]
        adds = [new_id(number, add) if add.id is None else add for number, add in zip(numbers, given, strict=True)]
        self._adds = adds
        self._kinds = _Kinds(shared, adds)
        self._ids = [add.id.encode() for add in adds if add.id is not None]
        self._keys = self._kinds.keys(self._ids)
        words = np.frombuffer(b"".join(self._keys), dtype=">u8").reshape(-1, 2)
        self._lanes = (words[:, 0] >> np.uint64(56)).astype(np.int64) & (shared.lanes - 1)
        self._ways = np.where(self._kinds.to_kafka, ~self._lanes, self._lanes)
        self._dues = np.array([add.due for add in adds], dtype=np.int64)
        self._arrivals = np.array(numbers, dtype=np.int64)
        self._by_key = np.argsort(words[:, 0])
        self._order = np.lexsort((self._arrivals, self._dues, self._lanes))

    def dues_by_way(self) -> dict[int, int]:
        """The first due time on each lane, for the log and for Kafka."""
        ways = self._ways
        firsts = np.full(2 * self._shared.lanes, np.iinfo(np.int64).max)
        np.minimum.at(firsts, ways, self._dues)  # those of Kafka count from the end
        return {int(way): int(firsts[way]) for way in np.unique(ways)}

    def outcomes(self) -> list[Outcome]:
        return [Outcome(add.id or "", "scheduled", add.due) for add in self._adds]

    def columns(self) -> list[object]:
        """What `tidings.schedule` takes after the time."""
        streams, topics, parts = self._kinds.streams, self._kinds.topics, self._parts()
        by_key, order = self._by_key, self._order
        adds = [self._adds[index] for index in order]
        deadlines, reasons = _bounds(adds)
        return [
            arrays.uuids([self._keys[index] for index in by_key]),
            arrays.int8s(self._dues[by_key]),
            arrays.int8s(self._arrivals[by_key]),
            arrays.int4s(streams[by_key]),
            arrays.int8s(self._dues[order]),
            arrays.int8s(self._arrivals[order]),
            arrays.uuids([add.content for add in adds]),
            arrays.int4s(streams[order]),
            arrays.int4s(topics[order]),
            arrays.int2s(self._lanes[order]),
            arrays.int2s(parts[order]),
            arrays.int2s(reasons),
            arrays.texts([self._ids[index] for index in order]),
            arrays.byteas([add.message for add in adds]),
            arrays.maybe_int8s(deadlines),
            arrays.maybe_texts([add.labels for add in adds]),
        ]

    def _parts(self) -> arrays.Numbers:
        """Partitions."""
        each = self._shared.parts
        parts = self._lanes * each
        if each > 1:
            hashes = [
                crc32(name) if add.key_hash is None else add.key_hash
                for add, name in zip(self._adds, self._ids, strict=True)
            ]
            parts = parts + np.array(hashes, dtype=np.int64) % each
        return np.where(self._kinds.to_kafka, TO_KAFKA, parts)


class _Kinds:
    """What rows of one tenant, topic and priority have in common; mostly a batch has only one kind of them."""

    def __init__(self, shared: Shared, adds: Sequence[Add]) -> None:
        names = shared.names
        kinds = list(map(_kind, adds))
        distinct = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        self._prefixes = [f"{tenant}\0".encode() for tenant, _, _ in distinct]
        self._numbers = [] if len(distinct) == 1 else [distinct[kind] for kind in kinds]
        which = np.array(self._numbers, dtype=np.int64) if self._numbers else np.zeros(len(kinds), dtype=np.int64)
        self.streams = np.array([names.stream(tenant, priority, topic) for tenant, topic, priority in distinct])[which]
        self.topics = np.array([names.topic(tenant, topic) for tenant, topic, _ in distinct])[which]
        self.to_kafka = np.array([is_kafka(topic) for _, topic, _ in distinct])[which]

    def keys(self, ids: Sequence[bytes]) -> list[bytes]:
        """Under which keys ids are known; `rows.key_of` says the same of one."""
        if not self._numbers:
            (prefix,) = self._prefixes
            return [sha256(prefix + name).digest()[:KEY_BYTES] for name in ids]
        prefixes = self._prefixes
        named = zip(self._numbers, ids, strict=True)
        return [sha256(prefixes[number] + name).digest()[:KEY_BYTES] for number, name in named]


def _bounds(adds: list[Add]) -> tuple[list[int | None], list[int]]:
    """When each may leave at the latest, and the number of the reason for which it is missed then."""
    if [add.lateness for add in adds].count(_PLAIN) == len(adds):
        return [None] * len(adds), [0] * len(adds)
    bounds = [deadline(add.due, add.lateness) for add in adds]
    return (
        [None if bound is None else bound[0] for bound in bounds],
        [0 if bound is None else REASONS.index(bound[1]) for bound in bounds],
    )
