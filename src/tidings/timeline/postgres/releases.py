"""Releases of several lanes in one round trip and one COMMIT: what comes while others are under way goes together.

Each lane still checks its own token and moves its own rows; only the waiting for the disk is shared. Lanes are taken in
the order of their numbers, as everybody does who locks more than one of them.
"""

import asyncio
from typing import NamedTuple
from uuid import UUID

from tidings.domain.errors import NotOwner
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.pool import Pool, Row

UNDER_WAY_MAX = 3
ROWS_MAX = 4_096  # of one transaction, unless one lane alone has more: nobody's first row waits for all the others


class Asked(NamedTuple):
    """What `tidings.release` is asked for a lane."""

    lane: int
    token: UUID
    given: int
    capped: bool
    rows_max: int
    low: int
    kafka_low: int
    room: int
    room_bytes: int


_Waiting = tuple[Asked, "asyncio.Future[Row]"]


class Releases:
    """Those of one node."""

    def __init__(self, pool: Pool, one: str, several: str) -> None:
        self._pool = pool
        self._one = one
        self._several = several
        self._waiting: list[_Waiting] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def release(self, asked: Asked) -> Row:
        """What `tidings.release` answers for a lane."""
        answer: asyncio.Future[Row] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if len(self._under_way) < UNDER_WAY_MAX:
            self._begin()
        return await answer

    def _begin(self) -> None:
        task = asyncio.create_task(self._run(self._take()), name="tidings-release")
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if self._waiting and not task.cancelled():
            self._begin()

    def _take(self) -> list[_Waiting]:
        """Those who have waited longest."""
        count = rows = 0
        for asked, _ in self._waiting:
            rows += asked.rows_max
            if count and rows > ROWS_MAX:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return sorted(group, key=lambda each: each[0].lane)

    async def _run(self, group: list[_Waiting]) -> None:
        try:
            rows = await self._call([asked for asked, _ in group])
        except NotOwner as error:
            if len(group) == 1:
                _fail(group, error)
            else:  # one of them is no longer ours, and nothing was done: the others go by themselves
                for each in group:
                    await self._run([each])
        except Exception as error:  # noqa: BLE001 - those who wait have to learn of it, whatever it is
            _fail(group, error)
        else:
            for (_, answer), row in zip(group, rows, strict=True):
                if not answer.done():
                    answer.set_result(row)

    async def _call(self, group: list[Asked]) -> list[Row]:
        if len(group) == 1:
            return await self._pool.call(self._one, group[0])
        lanes, tokens, givens, capped, rows_max, lows, kafka_lows, rooms, bytes_ = zip(*group, strict=True)
        values = (
            arrays.int2s(lanes),
            arrays.uuids([token.bytes for token in tokens]),
            arrays.int8s(givens),
            arrays.int2s(capped),
            arrays.int4s(rows_max),
            arrays.int8s(lows),
            arrays.int8s(kafka_lows),
            arrays.int4s(rooms),
            arrays.int8s(bytes_),
        )
        return await self._pool.call(self._several, values)


def _fail(group: list[_Waiting], error: Exception) -> None:
    for _, answer in group:
        if not answer.done():
            answer.set_exception(error)
