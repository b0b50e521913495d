"""Readers of the built-in log: pages of records from a cursor on, with long polling and streaming.

A cursor is a position over all partitions of a topic, encoded as an opaque text that is safe in a URL. A page takes
fair shares of the partitions. A wait registers before it reads, so no wake-up is lost.
"""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from itertools import chain
from operator import attrgetter
from typing import Annotated, NamedTuple

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.schedules.schedule import Record, Topic
from tidings.ports import Log

LATEST = "latest"
CURSOR_CHARS_MAX = 4_096

_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_decoder = msgspec.msgpack.Decoder(tuple[_Offset, ...])
_HINT = "send a cursor exactly as a response returned it, `latest`, or none to start at the beginning"


def encode(positions: tuple[int, ...]) -> str:
    """Encode the next offset of every partition as a cursor."""
    return urlsafe_b64encode(msgspec.msgpack.encode(positions)).rstrip(b"=").decode("ascii")


def positions_of(text: str) -> tuple[int, ...]:
    """Decode a cursor into positions; raises `Invalid` for any text that `encode` did not produce."""
    if len(text) > CURSOR_CHARS_MAX:
        raise Invalid("cursor", f"is longer than {CURSOR_CHARS_MAX} characters: {_HINT}")
    try:
        positions = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise Invalid("cursor", f"cannot be read: {_HINT}") from None
    if encode(positions) != text:  # the base64 decoder skips unknown characters and ignores trailing bits
        raise Invalid("cursor", f"cannot be read: {_HINT}")
    return positions


def decode(text: str, partitions: int) -> tuple[int, ...]:
    """Decode a cursor and check that it is for a topic with this many partitions."""
    positions = positions_of(text)
    if len(positions) != partitions:
        raise Invalid(
            "cursor",
            f"is for {len(positions)} partitions, but this topic has {partitions}: leave it out to start again",
        )
    return positions


LOOK_AGAIN_US = 2_000_000  # `notify` wakes readers, but notifications from other processes can be lost

_MICRO = 1_000_000
_released = attrgetter("released")


class Batch(NamedTuple):
    """Records, the positions after them, and whether the topic had no more."""

    records: list[Record]
    positions: dict[int, int]
    drained: bool


class Signal:
    """The wake-up signal of one reader. It stays set, so that a signal between a read and the wait is not lost."""

    __slots__ = ("_set", "over")

    def __init__(self) -> None:
        self._set = asyncio.Event()
        self.over = False

    def set(self) -> None:
        """Wake the reader, now or at its next wait."""
        self._set.set()

    def end(self) -> None:
        """Wake the reader for the last time."""
        self.over = True
        self._set.set()

    def clear(self) -> None:
        """Reset the signal; call it just before a read."""
        self._set.clear()

    async def wait(self, us: int) -> None:
        """Wait until the signal is set, or for `us` microseconds."""
        timer = asyncio.get_running_loop().call_later(us / _MICRO, self._set.set)
        try:
            await self._set.wait()
        finally:
            timer.cancel()


class LogReader:
    """Serves readers of topics and wakes them. Keeps state for a topic only while it has readers."""

    def __init__(self, log: Log, page_bytes_max: int | None = None) -> None:
        self._log = log
        self.page_bytes_max = page_bytes_max
        self._signals: dict[tuple[str, str], set[Signal]] = {}
        self._watches: list[tuple[Container[str], Callable[[frozenset[tuple[str, str]]], None]]] = []
        self.closed = False
        log.on_records(self.notify)

    def notify(self, topics: frozenset[tuple[str, str]]) -> None:
        """Wake the readers of these topics, given as (tenant, topic). Call it on the event loop, after the commit."""
        for topic in self._signals.keys() & topics:
            for signal in self._signals[topic]:
                signal.set()
        for names, listener in self._watches:
            if any(name in names for _, name in topics):
                listener(topics)

    def watch(self, names: Container[str], listener: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """Call `listener` when there are new records on a topic with one of these names, of any tenant."""
        self._watches.append((names, listener))

    def close(self) -> None:
        """End every wait and every stream."""
        self.closed = True
        for signal in chain.from_iterable(self._signals.values()):
            signal.end()

    async def read(
        self, tenant: str, topic: str, cursor: str | None, limit: int, wait_us: int
    ) -> tuple[list[Record], str]:
        """Read records after a cursor, waiting for the first if there is none; returns them and the next cursor."""
        self._check(cursor, limit)
        async with self.subscribe(tenant, topic, wait_us) as signal:
            positions = await self._resolve(tenant, topic, cursor)
            while True:
                signal.clear()
                records, positions, _ = await self._read_once(tenant, topic, positions, limit)
                if not records and not signal.over:
                    await signal.wait(LOOK_AGAIN_US)
                    if not self.closed:
                        continue
                return records, encode(tuple(positions.values()))

    def follow(
        self, tenant: str, topic: str, cursor: str | None, limit: int
    ) -> AsyncGenerator[tuple[list[Record], str], None]:
        """Stream batches of records as they appear, each with the cursor after it, until `close`.

        An invalid cursor raises `Invalid` at once. `latest` means the end of the topic when the first batch is read.
        """
        self._check(cursor, limit)
        return self._batches(tenant, topic, cursor, limit)

    @asynccontextmanager
    async def subscribe(self, tenant: str, topic: str, wait_us: int | None = None) -> AsyncIterator[Signal]:
        """A signal that is set when any process releases to the topic; it ends after `wait_us`, if given."""
        signal = Signal()
        timer: asyncio.TimerHandle | None = None
        if self.closed or (wait_us is not None and wait_us <= 0):
            signal.end()
        elif wait_us is not None:
            timer = asyncio.get_running_loop().call_later(wait_us / _MICRO, signal.end)
        signals = self._signals.setdefault((tenant, topic), set())
        signals.add(signal)
        waits = not signal.over
        try:
            if waits:
                await self._log.subscribe(tenant, topic)
            yield signal
        finally:
            if timer is not None:
                timer.cancel()
            if waits:
                self._log.unsubscribe(tenant, topic)
            signals.discard(signal)
            if not signals:
                del self._signals[tenant, topic]

    async def _batches(
        self, tenant: str, topic: str, cursor: str | None, limit: int
    ) -> AsyncGenerator[tuple[list[Record], str], None]:
        async with self.subscribe(tenant, topic) as signal:
            positions = await self._resolve(tenant, topic, cursor)
            while not self.closed:
                signal.clear()
                records, positions, drained = await self._read_once(tenant, topic, positions, limit)
                if records:
                    page = [(records, encode(tuple(positions.values())))]
                    del records  # a slow reader is not to keep them here
                    yield page.pop()
                if drained and not self.closed:
                    await signal.wait(LOOK_AGAIN_US)
                else:
                    await asyncio.sleep(0)  # let other tasks run while a long backlog is read

    def _check(self, cursor: str | None, limit: int) -> None:
        if limit < 1:
            raise Invalid("limit", "ask for at least 1 record")
        if cursor is not None and cursor != LATEST:
            decode(cursor, self._log.partitions)

    async def _resolve(self, tenant: str, topic: str, cursor: str | None) -> dict[int, int]:
        """The positions of a cursor; `latest` is resolved to the present end of the topic."""
        if cursor is None:
            return dict.fromkeys(range(self._log.partitions), 0)
        if cursor == LATEST:
            found = await self._log.topic(tenant, topic)
            return dict(enumerate(found.next if found else (0,) * self._log.partitions))
        return dict(enumerate(decode(cursor, self._log.partitions)))

    async def _read_once(self, tenant: str, topic: str, positions: dict[int, int], limit: int) -> Batch:
        found = await self._log.topic(tenant, topic)
        if found is None:
            return Batch([], positions, True)
        if any(position > found.next[partition] for partition, position in positions.items()):
            raise Invalid("cursor", "is beyond the end of this topic: leave it out, or start with `latest`")
        return await read_page(self._log, tenant, found, positions, limit, self.page_bytes_max)


async def read_page(
    log: Log, tenant: str, topic: Topic, positions: dict[int, int], limit: int, bytes_max: int | None = None
) -> Batch:
    """Read the given partitions in fair shares, skipping offsets that retention has deleted.

    With `bytes_max` the page ends once its messages have that many bytes: it exceeds it by less than one record.
    """
    starts = {partition: max(start, topic.first[partition]) for partition, start in positions.items()}
    waiting = {
        partition: topic.next[partition] - start for partition, start in starts.items() if topic.next[partition] > start
    }
    shares = partition_shares(waiting, limit, sum(starts.values()))
    order = list(shares)
    if bytes_max is not None and order:
        # The last partitions may get nothing. The order changes with every page, because each page moves a start.
        first = hash(tuple(starts.values())) % len(order)
        order = order[first:] + order[:first]
    found: dict[int, list[Record]] = {}
    left = bytes_max
    for index, partition in enumerate(order):
        share = None if left is None else left // (len(order) - index)
        records = await log.read(tenant, topic.name, partition, starts[partition], shares[partition], share)
        # Empty although the topic had records: retention deleted them in between.
        starts[partition] = records[-1].offset + 1 if records else topic.next[partition]
        found[partition] = records
        if left is not None:
            left -= sum(len(record.message) for record in records)
            if left <= 0:
                break
    drained = all(starts[partition] >= topic.next[partition] for partition in waiting)
    return Batch(_merge([found[partition] for partition in sorted(found)]), starts, drained)


def partition_shares(waiting: dict[int, int], limit: int, turn: int) -> dict[int, int]:
    """How many records to read of each partition: equal shares up to what it has.

    Where the limit is smaller than the number of partitions, `turn` decides which of them come first.
    """
    if sum(waiting.values()) <= limit:
        return waiting
    names = list(waiting)
    first = turn % len(names)
    unserved = names[first:] + names[:first]
    shares = dict.fromkeys(names, 0)
    while limit:
        share = max(1, limit // len(unserved))
        for partition in unserved[:limit]:
            given = min(share, waiting[partition] - shares[partition])
            shares[partition] += given
            limit -= given
        unserved = [partition for partition in unserved if shares[partition] < waiting[partition]]
    return {partition: share for partition, share in shares.items() if share}


def _merge(parts: list[list[Record]]) -> list[Record]:
    """Merge the parts in the order of release, unless that would change the order within a partition."""
    if len(parts) == 1:
        return parts[0]
    records = list(chain.from_iterable(parts))
    if all(_is_ordered(part) for part in parts):
        records.sort(key=_released)
    return records


def _is_ordered(records: list[Record]) -> bool:
    moments = [record.released for record in records]
    return moments == sorted(moments)
