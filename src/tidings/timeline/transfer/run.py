"""A transfer: everything in one store moves to another, and the first one is closed for good."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from functools import partial

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Moved, NotOwner, StoreError, TidingsError
from tidings.timeline.transfer.protocol import (
    FIRST_RULE,
    Chunk,
    Endpoint,
    Kind,
    Move,
    Progress,
    Remainder,
    Role,
    Status,
    record_count,
)

LEASE_US = 5_000_000
RENEW_US = 1_000_000
POLL_S = 0.25  # while waiting for a lease to expire
LAGS_SHOWN_MAX = 10

OnProgress = Callable[[Progress, dict[Kind, int]], None]


class Refused(TidingsError):
    """The transfer cannot start or continue; the text says what to do."""


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a transfer. `since` is set if an earlier run had moved everything: it is when that one started."""

    progress: Progress
    counts: dict[Kind, int]
    remainder: Remainder
    since: int | None


class Transfer:
    """A transfer from a source that is not in use to a target whose nodes may be running."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        *,
        to: str,
        clock: Clock,
        on_progress: OnProgress,
        schema: str | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._to = to
        self._schema = schema
        self._clock = clock
        self._on_progress = on_progress
        self._renew_at = 0

    async def run(self, *, leave_log: bool = False) -> TransferResult:
        """Move everything; run it again after an interruption, and it resumes where it stopped."""
        if self._source.identity == self._target.identity:
            raise Refused("the source and the target are the same store: name another target")
        try:
            return await self._run(leave_log=leave_log)
        except Moved:
            raise Refused("another copy of this store is running: wait until it ends") from None
        finally:
            with contextlib.suppress(StoreError):  # then the lease expires by itself
                await self._source.release()

    async def _run(self, *, leave_log: bool) -> TransferResult:
        _check_nodes(await self._source.status())
        await self._acquire(LEASE_US)  # a process that was just killed holds its lease for so long
        status = await self._source.status()
        move = status.move
        if move is not None and move.identity != self._target.identity:
            raise _moved_elsewhere(move)
        if move is None or not move.done:
            _check_requests(status, await self._target.status())
        is_of_0_1 = move is not None and not move.done and not move.counts
        if move is None:
            move = await self._close(leave_log=leave_log)
        elif is_of_0_1:
            move = await self._source.close(move, lambda _: None)  # it is closed already: this counts what there is
        status = await self._source.status()  # until it was closed, nodes may have written to it
        await self._acquire()
        progress = await self._target.begin(move, status.arrival)
        if is_of_0_1 and progress.after is not None:
            progress = await self._copy_rules(move, progress, progress.after)
        progress = await self._copy(move, progress)
        _verify(progress, move.counts)
        if not move.done:
            await self._source.mark(msgspec.structs.replace(move, done=True))
        since = move.at if move.done else None
        return TransferResult(progress=progress, counts=move.counts, remainder=status.remainder, since=since)

    async def _close(self, *, leave_log: bool) -> Move:
        """Close and mark the source: after this no other process can use it."""
        move = Move(
            transfer=secrets.token_hex(8),
            to=self._to,
            identity=self._target.identity,
            at=self._clock.now(),
            schema=self._schema,
        )
        try:
            return await self._source.close(move, partial(_check_remainder, leave_log=leave_log))
        except NotOwner:
            raise Refused("a server has started to run on the store to copy from: stop it first") from None

    async def _copy_rules(self, move: Move, progress: Progress, cursor: str) -> Progress:
        """Copy calendars and time zones, and leave the cursor where it is: one that 0.1 wrote does not cover them."""
        after = FIRST_RULE
        while (chunk := await self._source.export(after)) is not None and chunk.has_rules:
            after = chunk.after
            await self._acquire()
            progress = await self._target.load(move, progress, Chunk(chunk.items, cursor), self._clock.now())
        return progress

    async def _copy(self, move: Move, progress: Progress) -> Progress:
        self._on_progress(progress, move.counts)
        while (chunk := await self._source.export(progress.after)) is not None:
            await self._acquire()
            progress = await self._target.load(move, progress, chunk, self._clock.now())
            self._on_progress(progress, move.counts)
        return progress

    async def _acquire(self, wait_us: int = 0) -> None:
        """Hold the leases of both stores.

        Safety does not depend on them: a marked source is closed, and the target commits its progress with each chunk.
        """
        elapsed = self._clock.elapsed()
        if elapsed < self._renew_at:
            return
        await _acquire(self._source, "source", self._clock, wait_us)
        await _acquire(self._target, "target", self._clock, wait_us)
        self._renew_at = elapsed + RENEW_US


async def check_source(source: Endpoint, clock: Clock, *, leave_log: bool) -> None:
    """Refuse what the transfer would refuse anyway, before its target is created for nothing."""
    _check_nodes(await source.status())
    await _acquire(source, "source", clock, LEASE_US)
    try:
        status = await source.status()
        if status.move is not None:
            raise _moved_elsewhere(status.move)
        _check_remainder(status.remainder, leave_log=leave_log)
    finally:
        await source.release()


async def reopen(source: Endpoint, clock: Clock) -> Move:
    """Let a store that has moved be used again; returns the mark that was removed."""
    if not await source.acquire("source", clock.elapsed(), LEASE_US):
        raise Refused("a server or a copy runs on this store: stop it first, or wait a few seconds")
    try:
        move = (await source.status()).move
        if move is None:
            raise Refused("this store has not moved: there is nothing to take back")
        await source.mark(None)
        return move
    finally:
        await source.release()


async def _acquire(endpoint: Endpoint, role: Role, clock: Clock, wait_us: int) -> None:
    until = clock.elapsed() + wait_us
    while not await endpoint.acquire(role, clock.elapsed(), LEASE_US):
        if clock.elapsed() >= until:
            direction = "from" if role == "source" else "to"
            raise Refused(f"a server runs on the store to copy {direction}: stop it first")
        await asyncio.sleep(POLL_S)


def _check_nodes(source: Status) -> None:
    if source.nodes:
        raise Refused(f"nodes run on the store to copy from: {', '.join(source.nodes)}. Stop them first")


def _check_requests(source: Status, target: Status) -> None:
    """A node that reads Kafka requests before the target knows their positions would read them a second time."""
    behind = any(target.positions.get(partition, 0) < position for partition, position in source.positions.items())
    if behind and target.nodes:
        raise Refused(
            "this store has read requests from Kafka, and the target does not know its positions there yet, while"
            f" nodes run on the target: {', '.join(target.nodes)}. Stop them until the copy is complete"
        )


def _check_remainder(remainder: Remainder, *, leave_log: bool) -> None:
    """Refuse to leave data behind that cannot be moved."""
    if remainder.outgoing:
        raise Refused(
            "released, but not confirmed by Kafka, or still without the history copy and the tombstone of the request:"
            f" {record_count(remainder.outgoing)}. Let the server run until `tidings_kafka_waiting` is 0 and for a few"
            " seconds more, stop it, and copy then"
        )
    if remainder.held:
        raise Refused(
            f"released, but held back because Kafka rejects the topic: {record_count(remainder.held)}. Fix the"
            " topic, let the server run until all are sent, stop it, and copy then"
        )
    if remainder.behind and not leave_log:
        lags = remainder.behind[:LAGS_SHOWN_MAX]
        lines = "\n".join(f"  {lag.group} on {lag.tenant}/{lag.topic}: {record_count(lag.records)}" for lag in lags)
        raise Refused(
            "the log is not copied, and consumer groups have not read all of it:\n"
            f"{lines}\nlet them read it first, or leave it behind with --leave-log"
        )


def _moved_elsewhere(move: Move) -> Refused:
    return Refused(f"this store is moving to {move.where} already: copy it there, or take it back first")


def _verify(progress: Progress, counts: dict[Kind, int]) -> None:
    """Compare what was moved with what there was. Rows that version 0.1 has moved as documents cannot be counted."""
    wrong = [
        f"{kind}: {progress.seen(kind):,} of {count:,}"
        for kind, count in counts.items()
        if progress.seen(kind) != count and not (kind == "rows" and progress.seen("documents"))
    ]
    if wrong:
        raise StoreError(f"not everything was copied ({', '.join(wrong)}): please report this")
