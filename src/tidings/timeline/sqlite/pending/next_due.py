"""The lookahead: for each stream with rows near, when its first one is due."""

import heapq
from collections.abc import Container


class Lookahead:
    """The heads of all streams, those of Kafka apart: they are left out while the outbox is full."""

    def __init__(self, on_kafka: Container[int]) -> None:
        self._on_kafka = on_kafka
        self._log = NextDue()
        self._kafka = NextDue()
        self._kafka_begins = False

    def offer(self, stream: int, due: int) -> None:
        """A row of this stream is near."""
        self._heads_of(stream).offer(stream, due)

    def set(self, stream: int, due: int | None) -> None:
        """The stream's first row is due then; None: it has none."""
        self._heads_of(stream).set(stream, due)

    def first(self) -> tuple[int | None, int | None]:
        """When the very next row is due, for the log and for Kafka."""
        return self._log.first(), self._kafka.first()

    def take(self, now: int, streams_max: int, kafka_max: int) -> dict[int, int]:
        """The streams whose turn it is, half of them of each bus while both have so many; who begins takes turns."""
        half = (streams_max + 1) // 2
        self._kafka_begins = not self._kafka_begins
        taken = self._kafka.take(now, min(half, kafka_max)) if self._kafka_begins else {}
        of_kafka = len(taken)
        taken |= self._log.take(now, streams_max - of_kafka if self._kafka_begins else half)
        taken |= self._kafka.take(now, min(streams_max - len(taken), kafka_max - of_kafka))
        return taken | self._log.take(now, streams_max - len(taken))

    def _heads_of(self, stream: int) -> "NextDue":
        return self._kafka if stream in self._on_kafka else self._log


class NextDue:
    """The earliest due time of every stream in `near`. One entry a stream, however much is pending.

    Streams that are due take turns: who was served goes to the end of the queue.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._queue: dict[int, None] = {}
        self._now = 0

    def offer(self, stream: int, due: int) -> None:
        """A row of this stream is near."""
        known = self._due.get(stream)
        if known is None or due < known:
            self.set(stream, due)

    def set(self, stream: int, due: int | None) -> None:
        """The stream's first row is due then; None: it has none."""
        if self._due.get(stream) == due:
            return
        if due is None:
            del self._due[stream]
            self._queue.pop(stream, None)
            return
        self._due[stream] = due
        if due <= self._now:
            self._queue.setdefault(stream)
        else:
            self._queue.pop(stream, None)
            heapq.heappush(self._heap, (due, stream))

    def first(self) -> int | None:
        """When the very next row is due; 0 while streams wait for their turn (or the clock went back: `take` looks)."""
        if self._queue:
            return 0
        self._forget_stale()
        return self._heap[0][0] if self._heap else None

    def take(self, now: int, streams_max: int) -> dict[int, int]:
        """The streams whose turn it is, each with its first due time; `set` says how each goes on."""
        self._now = now
        self._forget_stale()
        while self._heap and self._heap[0][0] <= now:
            self._queue[heapq.heappop(self._heap)[1]] = None
            self._forget_stale()
        taken: dict[int, int] = {}
        for stream in list(self._queue):
            if len(taken) == streams_max:
                break
            del self._queue[stream]
            due = self._due.pop(stream)
            if due <= now:
                taken[stream] = due
            else:  # the clock went back, or the row that was due is gone
                self.set(stream, due)
        return taken

    def _forget_stale(self) -> None:
        """Drop what the heap says of streams that have changed since."""
        while self._heap:
            due, stream = self._heap[0]
            if self._due.get(stream) == due and stream not in self._queue:
                return
            heapq.heappop(self._heap)
