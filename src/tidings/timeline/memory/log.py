"""The log and the outbox in memory: topics, partitions, offsets and committed positions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from tidings.domain.changes import latest_in_flight
from tidings.domain.notifications.notification import GROUP, TOPICS
from tidings.domain.schedules.lateness import deadline
from tidings.domain.schedules.schedule import Outgoing, Record, Topic, is_kafka, split
from tidings.timeline.memory.rows import Row


@dataclass(slots=True)
class _Partition:
    """The stored records of a partition; the first one has the offset `first`."""

    first: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def next(self) -> int:
        return self.first + len(self.records)

    def drop_first(self) -> None:
        del self.records[0]
        self.first += 1


class MemoryLog:
    """Every topic of every tenant, and the outbox."""

    def __init__(self, partitions: int, retention_us: int, retention_bytes: int | None) -> None:
        self.partitions = partitions
        self._retention_us = retention_us
        self._retention_bytes = retention_bytes
        self._topics: dict[tuple[str, str], list[_Partition]] = {}
        self._groups: dict[tuple[str, str, str], dict[int, int]] = {}
        self._outbox: list[Outgoing] = []
        self._settled = self._next = 0
        self.held: dict[int, str] = {}
        self._held_records: dict[int, Outgoing] = {}

    def hand(self, row: Row, number: int, due: int, now: int, final: bool) -> int:
        """Put one occurrence into the outbox; returns its offset."""
        add, offset = row.add, self._next
        bound = None if row.terms.recurs or number < 0 else deadline(due, row.terms.lateness)
        expires = bound[0] if bound is not None and bound[1] == "expired" else None
        self._next += 1
        topic = split(add.topic)[1]
        self._outbox.append(
            Outgoing(
                offset=offset,
                tenant=add.tenant,
                topic=topic,
                id=row.id,
                generation=row.generation,
                number=number,
                due=due,
                released=now,
                message=add.message,
                final=final,
                expires=expires,
            )
        )
        return offset

    def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        """Records of the outbox from an offset on, without those that are held back."""
        found = [record for record in self._outbox if record.offset >= offset and record.offset not in self.held]
        return found[:limit]

    def leaving(self, tenant: str, schedule_id: str, arrived: int) -> int | None:
        """The number of the latest record of a schedule that is not known to be on Kafka."""
        records = (*self._held_records.values(), *self._outbox)
        found = [one for one in records if (one.tenant, one.id) == (tenant, schedule_id)]
        left = [one for one in found if one.offset >= arrived or one.offset in self.held]
        return latest_in_flight((one.generation, one.number) for one in left)

    def held_topics(self) -> set[str]:
        """The topics that have records held back."""
        return {record.topic for record in self._held_records.values()}

    def held_records(self, topic: str, limit: int) -> list[Outgoing]:
        """Records of a topic that are held back."""
        return [record for record in self._held_records.values() if record.topic == topic][:limit]

    def hold(self, offsets: Sequence[int], reason: str) -> None:
        """Hold records back."""
        self.held.update(dict.fromkeys(offsets, reason))
        found = {record.offset: record for record in self._outbox if record.offset in self.held}
        self._held_records = dict(sorted((self._held_records | found).items()))

    def free(self, offsets: Sequence[int]) -> None:
        """Delete records that were held back."""
        for offset in offsets:
            self.held.pop(offset, None)
            self._held_records.pop(offset, None)
            self._outbox = [record for record in self._outbox if record.offset != offset]

    def outbox(self) -> tuple[int, int]:
        """The first stored offset, and the next offset to be assigned."""
        return self._settled, self._next

    def settle(self, offset: int) -> None:
        """Delete the records before an offset."""
        self._settled = max(self._settled, min(offset, self._next))
        self._outbox = [record for record in self._outbox if record.offset >= self._settled]

    def append(self, row: Row, number: int, due: int, partition: int, now: int, final: bool) -> int:
        """Append one occurrence to its partition; returns its offset."""
        add = row.add
        partitions = self._topics.setdefault((add.tenant, add.topic), [_Partition() for _ in range(self.partitions)])
        offset = partitions[partition].next
        record = Record(
            topic=add.topic,
            partition=partition,
            offset=offset,
            id=row.id,
            generation=row.generation,
            number=number,
            due=due,
            released=now,
            message=add.message,
            final=final,
        )
        partitions[partition].records.append(record)
        return offset

    def topics(self, tenant: str) -> list[Topic]:
        """Every topic of a tenant, by name."""
        return [_topic(name, parts) for (owner, name), parts in sorted(self._topics.items()) if owner == tenant]

    def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        """The topics of all tenants whose names start with a prefix."""
        found = [key for key in self._topics if key[1].startswith(prefix)]
        return [(tenant, _topic(name, self._topics[tenant, name])) for tenant, name in sorted(found)]

    def topic(self, tenant: str, name: str) -> Topic | None:
        """One topic, None if nothing was ever released to it."""
        partitions = self._topics.get((tenant, name))
        return None if partitions is None else _topic(name, partitions)

    def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        """Records of one partition from an offset on, or from the first one still stored."""
        partitions = self._topics.get((tenant, topic))
        if partitions is None or not 0 <= partition < self.partitions:
            return []
        start = max(0, offset - partitions[partition].first)
        found = partitions[partition].records[start : start + limit]
        if bytes_max is None:
            return found
        sizes = accumulate(len(record.message) for record in found)
        fitting = sum(1 for _ in takewhile(lambda size: size <= bytes_max, sizes))
        return found[: max(1, fitting)]

    def message(self, row: Row) -> bytes | None:
        """The message of a released one-shot, while its record is stored."""
        if is_kafka(row.add.topic):
            waiting = (*self._outbox, *self._held_records.values())
            return next((record.message for record in waiting if record.offset == row.offset), None)
        if row.partition is None or row.offset is None:
            return None
        found = self.read(row.add.tenant, row.add.topic, row.partition, row.offset, 1)
        return found[0].message if found and found[0].offset == row.offset else None

    def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]:
        """The committed offset of each partition."""
        return dict(self._groups.get((tenant, topic, group), {}))

    def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Store the committed offsets of a group."""
        self._groups.setdefault((tenant, topic, group), {}).update(offsets)

    def trim(self, now: int) -> None:
        """Delete the records that are too old, then the oldest of a topic that is too large.

        Records of notifications stay until a delivery worker has committed them.
        """
        for (tenant, name), partitions in self._topics.items():
            settled = self.committed(tenant, name, GROUP) if name in TOPICS else None
            while (oldest := _oldest(partitions, settled)) and self._is_surplus(oldest, partitions, now):
                oldest.drop_first()

    def _is_surplus(self, oldest: _Partition, partitions: list[_Partition], now: int) -> bool:
        if oldest.records[0].released < now - self._retention_us:
            return True
        return self._retention_bytes is not None and _bytes(partitions) > self._retention_bytes


def _oldest(partitions: list[_Partition], settled: dict[int, int] | None) -> _Partition | None:
    """The partition with the oldest record; if `settled` is given, only records before those offsets count."""
    kept = [
        partition
        for number, partition in enumerate(partitions)
        if partition.records and (settled is None or partition.first < settled.get(number, 0))
    ]
    return min(kept, key=lambda partition: partition.records[0].released, default=None)


def _topic(name: str, partitions: list[_Partition]) -> Topic:
    return Topic(
        name,
        tuple(partition.first for partition in partitions),
        tuple(partition.next for partition in partitions),
        _bytes(partitions),
    )


def _bytes(partitions: list[_Partition]) -> int:
    return sum(len(record.message) for partition in partitions for record in partition.records)
