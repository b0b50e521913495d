"""The lookahead: the first due time of each stream in `near`."""

import heapq
from collections.abc import Container


class Lookahead:
    """The first due times of all streams. Those for Kafka are separate: they are skipped while the outbox is full."""

    def __init__(self, on_kafka: Container[int]) -> None:
        self._on_kafka = on_kafka
        self.log = NextDue()
        self.kafka = NextDue()
        self._kafka_first = False

    def offer(self, stream: int, due: int) -> None:
        """A row of this stream was added to `near`."""
        self._bus_of(stream).offer(stream, due)

    def set(self, stream: int, due: int | None) -> None:
        """Set the due time of the first row of a stream; None: it has none."""
        self._bus_of(stream).set(stream, due)

    def take(self, now: int, streams_max: int, kafka_max: int) -> dict[int, int]:
        """The next streams to release, half of them for each bus while both have enough; the buses alternate."""
        half = (streams_max + 1) // 2
        self._kafka_first = not self._kafka_first
        taken = self.kafka.take(now, min(half, kafka_max)) if self._kafka_first else {}
        of_kafka = len(taken)
        taken |= self.log.take(now, streams_max - of_kafka if self._kafka_first else half)
        taken |= self.kafka.take(now, min(streams_max - len(taken), kafka_max - of_kafka))
        return taken | self.log.take(now, streams_max - len(taken))

    def _bus_of(self, stream: int) -> "NextDue":
        return self.kafka if stream in self._on_kafka else self.log


class NextDue:
    """The earliest due time of every stream of one bus: one entry for each stream, however many rows it has.

    Streams that are due take turns: a stream that was taken goes to the end of the queue. `first` is the next due time;
    0 while due streams wait for their turn, or if the clock went back (`take` finds out).
    """

    def __init__(self) -> None:
        self.first: int | None = None
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
        else:
            self._due[stream] = due
            if due <= self._now:
                self._queue.setdefault(stream)
            else:
                self._queue.pop(stream, None)
                heapq.heappush(self._heap, (due, stream))
        self._find_first()

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
        self._find_first()
        return taken

    def _find_first(self) -> None:
        self._forget_stale()
        self.first = 0 if self._queue else self._heap[0][0] if self._heap else None

    def _forget_stale(self) -> None:
        """Drop outdated entries from the top of the heap."""
        while self._heap:
            due, stream = self._heap[0]
            if self._due.get(stream) == due and stream not in self._queue:
                return
            heapq.heappop(self._heap)
