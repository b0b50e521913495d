"""Maintenance in small slices: the wheel, the id map, and retention."""

from tidings import crash
from tidings.domain.notifications.notification import GROUP, TOPICS
from tidings.timeline.sqlite import id_map, row_writes, tables
from tidings.timeline.sqlite.id_map import RECENT_ENTRIES_MAX
from tidings.timeline.sqlite.pending.wheel import Wheel
from tidings.timeline.sqlite.writer import OFFSET_BITS, OFFSET_MASK, PARTITIONS_MAX, Writer

SLICE_ROWS = 1_000
SLICE_TOPICS = 256
SWEEP_ROWS = 5_000
SWEEP_START = (-1, 0)
SWEEP_END = (1 << 63) - 1, 0
PAUSE_US = 1_000_000
MARGIN_US = 3_600 * 1_000_000

_KEPT = "SELECT partition, first, next FROM partition WHERE partition BETWEEN ? AND ? AND first < next"
_SETTLED = f"""
SELECT partition, first, min(p.next, c.next) FROM partition p JOIN committed c USING (partition)
WHERE partition BETWEEN ? AND ? AND c.name = '{GROUP}' AND first < min(p.next, c.next)
"""


class Retention:
    """Deletes old records, finished schedules, histories, idempotency keys, and expired rows."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._next = 0
        self._swept = self._history_swept = SWEEP_START
        self._trimmed = 0

    def trim(self, now: int) -> bool:
        """Do one slice of each kind, at most once a second; True if there is more to do."""
        if now < self._next <= now + PAUSE_US:
            return False
        with self._writer.transaction() as connection:
            more = self._trim_log(now)
            more = self._sweep_finished(now) or more
            more = self._sweep_history(now) or more
            more = self._trim_idempotency_keys(now) or more
            more = tables.expire(connection, now, SLICE_ROWS) == SLICE_ROWS or more
            row_writes.sweep_unfinished(connection, self._writer.unfinished)
            crash.point("trim.written")
        self._next = now if more else now + PAUSE_US
        return more

    def _trim_log(self, now: int) -> bool:
        """Trim some topics each time, in turn."""
        topics = sorted(self._writer.topic_names.keys() - self._writer.on_kafka)
        due = [topic for topic in topics if topic > self._trimmed][:SLICE_TOPICS]
        self._trimmed = due[-1] if len(due) == SLICE_TOPICS else 0
        more = False
        for topic in due:
            more = self._trim_topic(topic, now) or more
        return more

    def _trim_topic(self, topic: int, now: int) -> bool:
        """Delete the oldest records of a topic if they are too old, or the topic is too large."""
        options, connection = self._writer.options, self._writer.connection
        span = (topic * PARTITIONS_MAX, (topic + 1) * PARTITIONS_MAX - 1)
        more = False
        if options.retention_us is not None:
            more = self._trim_old(self._spare(topic), now - options.retention_us)
        if options.retention_bytes is not None:
            size = connection.execute("SELECT sum(bytes) FROM partition WHERE partition BETWEEN ? AND ?", span).get
            excess = size - options.retention_bytes
            more = (excess > 0 and self._trim_large(self._spare(topic), excess)) or more
        return more

    def _spare(self, topic: int) -> list[tuple[int, int, int]]:
        """The records that may be deleted, as (partition, first offset, end offset).

        Records of notifications stay until a delivery worker has committed them.
        """
        _, name = self._writer.topic_names[topic]
        span = (topic * PARTITIONS_MAX, (topic + 1) * PARTITIONS_MAX - 1)
        return list(self._writer.connection.execute(_SETTLED if name in TOPICS else _KEPT, span))

    def _trim_old(self, spare: list[tuple[int, int, int]], oldest: int) -> bool:
        """Delete the records that were released at `oldest` or before, partition by partition."""
        connection, more = self._writer.connection, False
        for partition, first, end in spare:
            base = partition << OFFSET_BITS
            if self._is_young(base | first, oldest):
                continue
            end = base | min(end, first + SLICE_ROWS)
            young = connection.execute(
                "SELECT min(position) FROM log WHERE position >= ? AND position < ? AND released > ?",
                (base | first, end, oldest),
            ).get
            last = (end if young is None else young) - 1
            sql = "SELECT sum(length(message) + length(id) + 64) FROM log WHERE position >= ? AND position <= ?"
            self._drop(partition, last, connection.execute(sql, (base | first, last)).get)
            more = more or young is None
        return more

    def _is_young(self, position: int, oldest: int) -> bool:
        row = self._writer.connection.execute("SELECT released FROM log WHERE position = ?", (position,)).fetchone()
        return row is not None and row[0] > oldest

    def _trim_large(self, spare: list[tuple[int, int, int]], excess: int) -> bool:
        """Delete the oldest records over all partitions until the topic is small enough."""
        heads = self._heads(spare)
        dropped: dict[int, tuple[int, int]] = {}
        for _, position, record_bytes in sorted(heads):
            if excess <= 0:
                break
            excess -= record_bytes
            partition = position >> OFFSET_BITS
            dropped[partition] = position, dropped.get(partition, (0, 0))[1] + record_bytes
        for partition, (position, total) in dropped.items():
            self._drop(partition, position, total)
        return excess > 0 and bool(dropped)

    def _heads(self, spare: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The first records of each partition, as (released, position, size)."""
        connection, found = self._writer.connection, list[tuple[int, int, int]]()
        for partition, first, end in spare:
            base = partition << OFFSET_BITS
            found += connection.execute(
                "SELECT released, position, length(message) + length(id) + 64 FROM log"
                " WHERE position >= ? AND position < ? ORDER BY position LIMIT ?",
                (base | first, base | end, SLICE_ROWS),
            ).fetchall()
        return found

    def _drop(self, partition: int, last: int, record_bytes: int) -> None:
        connection = self._writer.connection
        connection.execute("DELETE FROM log WHERE position >= ? AND position <= ?", (partition << OFFSET_BITS, last))
        connection.execute(
            "UPDATE partition SET first = ?, bytes = bytes - ? WHERE partition = ?",
            ((last & OFFSET_MASK) + 1, record_bytes, partition),
        )

    def _sweep_finished(self, now: int) -> bool:
        """Delete schedules that finished before the retention of ids."""
        before = now - self._writer.options.id_retention_us
        self._swept, dropped = self._sweep("finished", "due, arrival", self._swept, f"at <= {before}")
        return dropped >= SWEEP_ROWS // 2

    def _sweep_history(self, now: int) -> bool:
        """Delete old lines of histories; those of recurring schedules stay, however old."""
        before = now - self._writer.options.id_retention_us
        recurring = (
            "SELECT 1 FROM standing JOIN stream USING (stream) WHERE id = history.id AND tenant = history.tenant"
        )
        aged = f"at <= {before} AND NOT EXISTS ({recurring})"
        self._history_swept, dropped = self._sweep("history", "hash, entry", self._history_swept, aged)
        return dropped >= SWEEP_ROWS // 2

    def _sweep(self, table: str, key: str, start: tuple[int, int], aged: str) -> tuple[tuple[int, int], int]:
        """Sweep a table in rounds, some rows each time; returns where to continue and how many rows were deleted."""
        connection = self._writer.connection
        end = connection.execute(
            f"SELECT {key} FROM {table} WHERE ({key}) > (?, ?) ORDER BY {key} LIMIT 1 OFFSET ?", (*start, SWEEP_ROWS)
        ).fetchone()
        last = end or SWEEP_END
        connection.execute(
            f"DELETE FROM {table} WHERE ({key}) > (?, ?) AND ({key}) <= (?, ?) AND {aged}", (*start, *last)
        )
        return SWEEP_START if end is None else end, int(connection.changes())

    def _trim_idempotency_keys(self, now: int) -> bool:
        self._writer.connection.execute(
            "DELETE FROM receipt WHERE (tenant, key) IN (SELECT tenant, key FROM receipt WHERE at <= ? LIMIT ?)",
            (now - self._writer.options.idempotency_retention_us, SLICE_ROWS),
        )
        return int(self._writer.connection.changes()) == SLICE_ROWS


class Maintenance:
    """Turns the wheel, flushes and merges the id map, and applies retention."""

    def __init__(self, writer: Writer, wheel: Wheel) -> None:
        self._writer = writer
        self._wheel = wheel
        self._retention = Retention(writer)
        self._merge: id_map.Merge | None = None
        self._garbage = True

    def begin(self) -> None:
        """This process has become the owner: look for work that an earlier owner left unfinished."""
        self._merge, self._garbage = None, True
        self._wheel.begin()

    def tend(self, now: int) -> bool:
        """Do one slice; True if there is more to do."""
        self._writer.refresh()
        if self.flush() or self._wheel.turn(now):
            return True
        try:
            if self._tend_map(now):
                return True
        except BaseException:  # the merge in memory may be ahead of the file: restart it
            self._merge, self._garbage = None, True
            raise
        return self._retention.trim(now)

    def flush(self) -> bool:
        """Flush the recent entries of the id map if there are many. It comes before other work, to keep them few."""
        idmap = self._writer.idmap
        if idmap.recent_count < RECENT_ENTRIES_MAX:
            return False
        with self._writer.transaction() as connection:
            idmap.flush(connection)
        idmap.swap_flushed()
        return True

    def _tend_map(self, now: int) -> bool:
        if self._garbage:
            with self._writer.transaction() as connection:
                garbage = id_map.sweep(connection, self._merge is not None)
            self._garbage = garbage
            return True
        return self._tend_merge(now)

    def _tend_merge(self, now: int) -> bool:
        idmap = self._writer.idmap
        if self._merge is None:
            sources = id_map.choose(idmap)
            if sources is None:
                return False
            with self._writer.transaction() as connection:
                merge = id_map.Merge(connection, sources)
            self._merge = merge
            return True
        with self._writer.transaction() as connection:
            merged = self._merge.step(connection, self._forget_before(now))
        crash.point("map.merging")
        if merged is not None:
            idmap.swap_merged({run.number for run in self._merge.sources}, merged)
            self._merge, self._garbage = None, True
        return True

    def _forget_before(self, now: int) -> int:
        """Ids that were due before this time are forgotten, unless a table still has them."""
        horizon = now - self._writer.options.id_retention_us - MARGIN_US
        first = self._writer.first_due
        return horizon if first is None else min(horizon, first)
