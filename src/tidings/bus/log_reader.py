"""Cursors: a position over all partitions of a topic, as opaque text that fits into a URL."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator
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
_HINT = "send back a cursor just as an answer gave it, `latest`, or none to start at the beginning"


def encode(positions: tuple[int, ...]) -> str:
    """The cursor for the next offset of every partition."""
    return urlsafe_b64encode(msgspec.msgpack.encode(positions)).rstrip(b"=").decode("ascii")


def positions_of(text: str) -> tuple[int, ...]:
    """The positions that a cursor stands for; raises `Invalid` for anything that `encode` did not make."""
    if len(text) > CURSOR_CHARS_MAX:
        raise Invalid("cursor", f"is longer than {CURSOR_CHARS_MAX} characters: {_HINT}")
    try:
        positions = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise Invalid("cursor", f"cannot be read: {_HINT}") from None
    if encode(positions) != text:  # characters that base64 passes over, or bits that it ignores
        raise Invalid("cursor", f"cannot be read: {_HINT}")
    return positions


def decode(text: str, partitions: int) -> tuple[int, ...]:
    """The same, for so many partitions."""
    positions = positions_of(text)
    if len(positions) != partitions:
        raise Invalid(
            "cursor",
            f"is for {len(positions)} partitions, this topic has {partitions}: leave it out to start again",
        )
    return positions


LOOK_AGAIN_US = 2_000_000  # news comes by `notify`; what is told by other processes may be lost on its way

_MICRO = 1_000_000
_released = attrgetter("released")


class Batch(NamedTuple):
    """Some records, the positions behind them, and whether that was all there was."""

    records: list[Record]
    positions: dict[int, int]
    drained: bool


class Signal:
    """Where one reader waits. It stays rung, so that news between looking and waiting is not lost."""

    __slots__ = ("_rung", "over")

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.over = False

    def ring(self) -> None:
        """Wake the reader, now or at its next wait."""
        self._rung.set()

    def end(self) -> None:
        """Wake the reader for the last time."""
        self.over = True
        self._rung.set()

    def quiet(self) -> None:
        """Forget what has rung: the reader is about to look."""
        self._rung.clear()

    async def wait(self, us: int) -> None:
        """Until it rings, that long at most."""
        timer = asyncio.get_running_loop().call_later(us / _MICRO, self._rung.set)
        try:
            await self._rung.wait()
        finally:
            timer.cancel()


class LogReader:
    """Readers of topics, and what wakes them. A topic is known here only while somebody waits for it."""

    def __init__(self, log: Log, page_bytes_max: int | None = None) -> None:
        self._log = log
        self.page_bytes_max = page_bytes_max
        self._bells: dict[tuple[str, str], set[Signal]] = {}
        self.closed = False
        log.on_records(self.notify)

    def notify(self, topics: frozenset[tuple[str, str]]) -> None:
        """Wake the readers of these topics, given as (tenant, topic). Call on the loop, after the commit."""
        for topic in self._bells.keys() & topics:
            for bell in self._bells[topic]:
                bell.ring()

    def close(self) -> None:
        """End every wait and every follower."""
        self.closed = True
        for bell in chain.from_iterable(self._bells.values()):
            bell.end()

    async def read(
        self, tenant: str, topic: str, cursor: str | None, limit: int, wait_us: int
    ) -> tuple[list[Record], str]:
        """Records after a cursor, waiting for one if there is none; and the cursor behind them."""
        self._check(cursor, limit)
        async with self.listening(tenant, topic, wait_us) as bell:
            positions = await self._resolve(tenant, topic, cursor)
            while True:
                bell.quiet()
                records, positions, _ = await self._look(tenant, topic, positions, limit)
                if not records and not bell.over:
                    await bell.wait(LOOK_AGAIN_US)
                    if not self.closed:
                        continue
                return records, encode(tuple(positions.values()))

    def follow(
        self, tenant: str, topic: str, cursor: str | None, limit: int
    ) -> AsyncGenerator[tuple[list[Record], str], None]:
        """Batches of records as they appear, each with the cursor behind it, until `close`.

        A cursor that cannot be read is refused at once; `latest` is the end as the first batch is asked for.
        """
        self._check(cursor, limit)
        return self._batches(tenant, topic, cursor, limit)

    @asynccontextmanager
    async def listening(self, tenant: str, topic: str, wait_us: int | None = None) -> AsyncIterator[Signal]:
        """A bell that rings with news of a topic, whoever released it, and ends after a time if one is given."""
        bell = Signal()
        timer: asyncio.TimerHandle | None = None
        if self.closed or (wait_us is not None and wait_us <= 0):
            bell.end()
        elif wait_us is not None:
            timer = asyncio.get_running_loop().call_later(wait_us / _MICRO, bell.end)
        bells = self._bells.setdefault((tenant, topic), set())
        bells.add(bell)
        waits = not bell.over
        try:
            if waits:
                await self._log.subscribe(tenant, topic)
            yield bell
        finally:
            if timer is not None:
                timer.cancel()
            if waits:
                self._log.unsubscribe(tenant, topic)
            bells.discard(bell)
            if not bells:
                del self._bells[tenant, topic]

    async def _batches(
        self, tenant: str, topic: str, cursor: str | None, limit: int
    ) -> AsyncGenerator[tuple[list[Record], str], None]:
        async with self.listening(tenant, topic) as bell:
            positions = await self._resolve(tenant, topic, cursor)
            while not self.closed:
                bell.quiet()
                records, positions, drained = await self._look(tenant, topic, positions, limit)
                if records:
                    page = [(records, encode(tuple(positions.values())))]
                    del records  # a slow reader is not to keep them here
                    yield page.pop()
                if drained and not self.closed:
                    await bell.wait(LOOK_AGAIN_US)
                else:
                    await asyncio.sleep(0)  # a long backlog does not keep others from their turn

    def _check(self, cursor: str | None, limit: int) -> None:
        if limit < 1:
            raise Invalid("limit", "ask for at least 1 record")
        if cursor is not None and cursor != LATEST:
            decode(cursor, self._log.partitions)

    async def _resolve(self, tenant: str, topic: str, cursor: str | None) -> dict[int, int]:
        """The positions that a cursor stands for at this moment."""
        if cursor is None:
            return dict.fromkeys(range(self._log.partitions), 0)
        if cursor == LATEST:
            found = await self._log.topic(tenant, topic)
            return dict(enumerate(found.next if found else (0,) * self._log.partitions))
        return dict(enumerate(decode(cursor, self._log.partitions)))

    async def _look(self, tenant: str, topic: str, positions: dict[int, int], limit: int) -> Batch:
        found = await self._log.topic(tenant, topic)
        if found is None:
            return Batch([], positions, True)
        if any(position > found.next[partition] for partition, position in positions.items()):
            raise Invalid("cursor", "lies beyond the end of this topic: leave it out, or start with `latest`")
        return await read_page(self._log, tenant, found, positions, limit, self.page_bytes_max)


async def read_page(
    log: Log, tenant: str, topic: Topic, positions: dict[int, int], limit: int, bytes_max: int | None = None
) -> Batch:
    """Records of the partitions given, in fair shares; what retention deleted is passed over.

    With `bytes_max` the page ends once its messages have that many bytes: it exceeds it by less than one record.
    """
    starts = {partition: max(start, topic.first[partition]) for partition, start in positions.items()}
    waiting = {
        partition: topic.next[partition] - start for partition, start in starts.items() if topic.next[partition] > start
    }
    shares = fair_shares(waiting, limit, sum(starts.values()))
    order = list(shares)
    if bytes_max is not None and order:
        # Those at the end may get nothing. Which these are changes with every page, for each page moves a start.
        first = hash(tuple(starts.values())) % len(order)
        order = order[first:] + order[:first]
    found: dict[int, list[Record]] = {}
    left = bytes_max
    for place, partition in enumerate(order):
        share = None if left is None else left // (len(order) - place)
        records = await log.read(tenant, topic.name, partition, starts[partition], shares[partition], share)
        # Nothing, though the topic showed some: retention was faster, and deleted all that it showed.
        starts[partition] = records[-1].offset + 1 if records else topic.next[partition]
        found[partition] = records
        if left is not None:
            left -= sum(len(record.message) for record in records)
            if left <= 0:
                break
    drained = all(starts[partition] >= topic.next[partition] for partition in waiting)
    return Batch(_merge([found[partition] for partition in sorted(found)]), starts, drained)


def fair_shares(waiting: dict[int, int], limit: int, turn: int) -> dict[int, int]:
    """How many records each partition gives: evenly; what is too little for all goes round by turns."""
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
    """The parts as one list: in the order of release, unless that would upset the order inside a part."""
    if len(parts) == 1:
        return parts[0]
    records = list(chain.from_iterable(parts))
    if all(_is_ordered(part) for part in parts):
        records.sort(key=_released)
    return records


def _is_ordered(records: list[Record]) -> bool:
    moments = [record.released for record in records]
    return moments == sorted(moments)
