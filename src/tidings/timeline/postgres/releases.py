"""Releases of several lanes in one round trip and one COMMIT: what comes while others are under way goes together.

Each lane still checks its own token and moves its own rows; only the waiting for the disk is shared. Lanes are taken in
the order of their numbers, as everybody does who locks more than one of them.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidings.batcher import Batcher
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


class Releases:
    """Those of one node."""

    def __init__(self, pool: Pool, one: str, several: str) -> None:
        self._pool = pool
        self._one = one
        self._several = several
        self._batcher: Batcher[Asked, Row] = Batcher(
            self._release,
            weight=lambda asked: asked.rows_max,
            weight_max=ROWS_MAX,
            calls_max=lambda: UNDER_WAY_MAX,
            # A lane that is no longer ours concerns that lane alone: nothing was done, and the others go on.
            concerns_all=lambda error: not isinstance(error, NotOwner),
        )

    async def release(self, asked: Asked) -> Row:
        """What `tidings.release` answers for a lane."""
        return await self._batcher.submit(asked)

    async def _release(self, group: Sequence[Asked]) -> list[Row]:
        """The answers in the order in which they were asked for."""
        order = sorted(range(len(group)), key=lambda index: group[index].lane)
        answered = dict(zip(order, await self._call([group[index] for index in order]), strict=True))
        return [answered[index] for index in range(len(group))]

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
