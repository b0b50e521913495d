"""The lookahead: the first due time of each stream in `near`."""

import heapq
from collections.abc import Container


class Lookahead:
    """The first due times of all streams. Those for Kafka are separate: they are skipped while the outbox is full."""

    def __init__(self, on_kafka: Container[int]) -> None:
        self._on_kafka = on_kafka
        self._log = NextDue()
        self._kafka = NextDue()
        self._kafka_first = False

    def offer(self, stream: int, due: int) -> None:
        """A row of this stream was added to `near`."""
        self._bus_of(stream).offer(stream, due)

    def set(self, stream: int, due: int | None) -> None:
        """Set the due time of the first row of a stream; None: it has none."""
        self._bus_of(stream).set(stream, due)

    def first(self) -> tuple[int | None, int | None]:
        """The next due time, for the log and for Kafka."""
        return self._log.first(), self._kafka.first()

    def take(self, now: int, streams_max: int, kafka_max: int) -> dict[int, int]:
        """The next streams to release, half of them for each bus while both have enough; the buses alternate."""
        half = (streams_max + 1) // 2
        self._kafka_first = not self._kafka_first
        taken = self._kafka.take(now, min(half, kafka_max)) if self._kafka_first else {}
        of_kafka = len(taken)
        taken |= self._log.take(now, streams_max - of_kafka if self._kafka_first else half)
        taken |= self._kafka.take(now, min(streams_max - len(taken), kafka_max - of_kafka))
        return taken | self._log.take(now, streams_max - len(taken))

    def _bus_of(self, stream: int) -> "NextDue":
        return self._kafka if stream in self._on_kafka else self._log


class NextDue:
    """The earliest due time of every stream of one bus: one entry for each stream, however many rows it has.

    Streams that are due take turns: a stream that was taken goes to the end of the queue.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._queue: dict[int, None] = {}
        self._now = 0

    def offer(self, stream: int, due: int) -> None:
        """A row of this stream was added to `near`."""
        known = self._due.get(stream)
        if known is None or due < known:
            self.set(stream, due)

    def set(self, stream: int, due: int | None) -> None:
        """Set the due time of the first row of a stream; None: it has none."""
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
        """The next due time; 0 while due streams wait for their turn, or if the clock went back (`take` finds out)."""
        if self._queue:
            return 0
        self._forget_stale()
        return self._heap[0][0] if self._heap else None

    def take(self, now: int, streams_max: int) -> dict[int, int]:
        """The next streams to release, each with its first due time; `set` must be called for each afterwards."""
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
            else:  # the clock went back, or the row was removed
                self.set(stream, due)
        return taken

    def _forget_stale(self) -> None:
        """Drop outdated entries from the top of the heap."""
        while self._heap:
            due, stream = self._heap[0]
            if self._due.get(stream) == due and stream not in self._queue:
                return
            heapq.heappop(self._heap)
