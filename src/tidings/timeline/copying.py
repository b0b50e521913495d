"""A passage: everything of one store is carried into another, and nobody uses the first one any more."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Moved, NotOwner, StoreError, TidingsError
from tidings.timeline.carrying import KINDS, Carrier, Kind, Load, Move, Progress, Rest, records_of

LEASE_US = 5_000_000
RENEW_US = 1_000_000
POLL_S = 0.25  # while a lease runs out

Tell = Callable[[Progress, dict[Kind, int]], None]


class Refused(TidingsError):
    """The passage cannot begin or go on; the text says what to do."""


class Copied(msgspec.Struct, frozen=True):
    """What came of a passage. `since` is when an earlier run had carried everything: this one had nothing to do."""

    progress: Progress
    cargo: dict[Kind, int]
    rest: Rest
    since: int | None = None


class Passage:
    """From a source that nobody uses into a target whose nodes may run."""

    def __init__(
        self, source: Carrier, target: Carrier, to: str, clock: Clock, tell: Tell, *, schema: str | None = None
    ) -> None:
        self._source = source
        self._target = target
        self._to = to
        self._schema = schema
        self._clock = clock
        self._tell = tell
        self._renew_at = 0

    async def run(self, *, leave_log: bool = False) -> Copied:
        """Carry everything; may be called again after it was cut off, and goes on where it was."""
        if self._source.identity == self._target.identity:
            raise Refused("this is the same store: name another one to copy to")
        try:
            return await self._run(leave_log=leave_log)
        except Moved:
            raise Refused("another copy of this store is under way: wait for it") from None
        finally:
            with contextlib.suppress(StoreError):  # then the lease runs out by itself
                await self._source.let_go()

    async def _run(self, *, leave_log: bool) -> Copied:
        await _check_nodes(self._source)
        await self._own(LEASE_US)  # whoever was killed a moment ago owns it for so long
        move = await self._source.moved()
        if move is not None and move.identity != self._target.identity:
            raise _elsewhere(move)
        if move is None:
            move = await self._begin(leave_log=leave_log)
        rest = await self._source.rest()
        cargo = await self._source.cargo()
        await self._own()
        await self._target.take_dates(await self._source.dates())
        progress = await self._carry(move, cargo)
        _verify(progress, cargo)
        if not move.done:
            await self._source.move(msgspec.structs.replace(move, done=True))
        return Copied(progress, cargo, rest, move.at if move.done else None)

    async def _begin(self, *, leave_log: bool) -> Move:
        """From here on the source is nobody's: marked before anything leaves it."""
        await self._check_requests()
        move = Move(secrets.token_hex(8), self._to, self._target.identity, self._clock.now(), schema=self._schema)
        try:
            return await self._source.leave(move, partial(_check, leave_log=leave_log))
        except NotOwner:
            raise Refused("a server has begun to run on the store to copy from: stop it first") from None

    async def _check_requests(self) -> None:
        """Where requests come from Kafka, nodes that read them before their place is known would read them again."""
        wanted, known = await self._source.positions(), await self._target.positions()
        behind = [place for place, following in wanted.items() if known.get(place, 0) < following]
        living = await self._target.nodes()
        if behind and living:
            raise Refused(
                "this store has read requests from Kafka, and where it stands is not known in the target yet,"
                f" where nodes run: {', '.join(living)}. Stop them until everything is copied"
            )

    async def _carry(self, move: Move, cargo: dict[Kind, int]) -> Progress:
        await self._target.begin(move.passage, move.predecessors)
        progress = await self._target.progress(move.passage)
        self._tell(progress, cargo)
        while (load := await self._source.carry_out(progress.after)) is not None:
            await self._own()
            progress = await self._land(move, progress, load)
            self._tell(progress, cargo)
        return progress

    async def _land(self, move: Move, progress: Progress, load: Load) -> Progress:
        return await self._target.carry_in(move.passage, progress, load, self._clock.now())

    async def _own(self, wait_us: int = 0) -> None:
        """The source is ours, and we may write into the target, now and for a while.

        Safety does not hang on these leases: a source that is marked is nobody's, and the target notes every load.
        """
        elapsed = self._clock.elapsed()
        if elapsed < self._renew_at:
            return
        for seize, which in ((self._source.seize, "from"), (self._target.enter, "to")):
            await _owned(seize, which, self._clock, wait_us)
        self._renew_at = elapsed + RENEW_US


async def check_leaving(source: Carrier, clock: Clock, *, leave_log: bool) -> None:
    """Refuse what would be refused anyhow, before a target is made for nothing."""
    await _check_nodes(source)
    await _owned(source.seize, "from", clock, LEASE_US)
    try:
        if (move := await source.moved()) is not None:
            raise _elsewhere(move)
        _check(await source.rest(), leave_log=leave_log)
    finally:
        await source.let_go()


async def _owned(seize: Callable[[int, int], Awaitable[bool]], which: str, clock: Clock, wait_us: int) -> None:
    until = clock.elapsed() + wait_us
    while not await seize(clock.elapsed(), LEASE_US):
        if clock.elapsed() >= until:
            raise Refused(f"a server runs on the store to copy {which}: stop it first")
        await asyncio.sleep(POLL_S)


async def _check_nodes(source: Carrier) -> None:
    if living := await source.nodes():
        raise Refused(f"nodes run on the store to copy from: {', '.join(living)}. Stop them first")


def _elsewhere(move: Move) -> Refused:
    return Refused(f"this store is on its way to {move.where} already: copy it there, or take it back first")


async def take_back(source: Carrier, clock: Clock) -> Move:
    """Let a store that has moved be used again."""
    if not await source.seize(clock.elapsed(), LEASE_US):
        raise Refused("a server or a copy runs on this store: end that first, or wait some seconds")
    try:
        move = await source.moved()
        if move is None:
            raise Refused("this store has not moved: there is nothing to take back")
        await source.move(None)
        return move
    finally:
        await source.let_go()


def _check(rest: Rest, *, leave_log: bool) -> None:
    """What cannot be carried must not be left behind unseen."""
    if rest.outgoing:
        raise Refused(
            f"released, and not known to be on Kafka: {records_of(rest.outgoing)}. Let the server run until"
            " `tidings_kafka_waiting` is 0, stop it, and copy then"
        )
    if rest.held:
        raise Refused(
            f"released, and kept back because the topic on Kafka does not take it: {records_of(rest.held)}. Make"
            " that possible, let the server run until all have left, stop it, and copy then"
        )
    if rest.behind and not leave_log:
        told = "\n".join(f"  {b.group} on {b.tenant}/{b.topic}: {records_of(b.records)}" for b in rest.behind[:10])
        raise Refused(
            "what lies on the log stays behind, and consumer groups have not read all of it:\n"
            f"{told}\nlet them read it first, or leave it behind with --leave-log"
        )


def _verify(progress: Progress, cargo: dict[Kind, int]) -> None:
    wrong = [
        f"{kind}: {progress.seen(kind):,} of {cargo[kind]:,}" for kind in KINDS if progress.seen(kind) != cargo[kind]
    ]
    if wrong:
        raise StoreError(f"what was carried is not what there was to carry ({', '.join(wrong)}): please report this")
