"""Applying commands: new schedules in bulk, changes one by one, all in one transaction."""

from collections.abc import Sequence
from itertools import groupby
from zlib import crc32

import msgspec
import numpy as np

from tidings import crash
from tidings.domain.command import Add, Command, Outcome, Replace
from tidings.domain.errors import KeyReused
from tidings.domain.lateness import Lateness, deadline
from tidings.domain.when import Once
from tidings.ports import Receipt
from tidings.timeline.sqlite import rows
from tidings.timeline.sqlite.changes import Changes
from tidings.timeline.sqlite.rows import NO_DEADLINE, REASONS
from tidings.timeline.sqlite.writer import TOPICS_PER_TENANT_MAX, Writer

_encode_outcomes = msgspec.msgpack.Encoder().encode
_decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


class Intake:
    """Commands in, outcomes out."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._changes = Changes(writer)

    def apply(self, commands: Sequence[Command], now: int, receipt: Receipt | None) -> list[Outcome]:
        """Commit all commands in order in one transaction."""
        with self._writer.transaction():
            crash.point("intake.begun")
            outcomes: list[Outcome] = []
            kept = None if receipt is None else self._kept(receipt, now)
            if kept is None:
                outcomes = self._run(commands, now)
                if receipt is not None:
                    self._keep(receipt, outcomes, now)
            crash.point("intake.written")
        crash.point("intake.committed")
        if kept is None or receipt is None:
            return outcomes
        if kept[0] != receipt.body:
            raise KeyReused("this Idempotency-Key came before with another body: use a new key for a new request")
        return _decode_outcomes(kept[1])

    def _run(self, commands: Sequence[Command], now: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for kind, group in groupby(commands, self._kind):
            if kind is None:
                for command in group:
                    outcomes.append(self._refusal(command) or self._changes.run(command, now))
                    crash.point("change.written")
            else:
                outcomes += self._add(list(group), now)  # type: ignore[arg-type]
        return outcomes

    def _kind(self, command: Command) -> tuple[str, bool] | None:
        """What can be written together: new one-shots of one tenant, either all with ids or all without."""
        if type(command) is Add and type(command.when) is Once and self._writer.may_open(command.tenant, command.topic):
            return command.tenant, command.id is None
        return None

    def _refusal(self, command: Command) -> Outcome | None:
        """A tenant has no end of schedules, but an end of topics."""
        add = command.add if isinstance(command, Replace) else command
        if not isinstance(add, Add) or self._writer.may_open(add.tenant, add.topic):
            return None
        return Outcome(
            add.id or "", "rejected", reason=f"topic: there are {TOPICS_PER_TENANT_MAX} already, use one of them"
        )

    def _add(self, adds: list[Add], now: int) -> list[Outcome]:
        """One-shots of one tenant, all at once; those whose id may be known already are looked at one by one."""
        if adds[0].id is None:
            return _Batch(self._writer, now).write(adds, [0] * len(adds))
        idmap = self._writer.idmap
        hashes = idmap.hashes(adds[0].tenant, [add.id for add in adds if add.id is not None])
        suspects = idmap.suspects(np.array(hashes, dtype=np.int64))
        if len(set(hashes)) < len(hashes):
            return self._add_in_turn(adds, hashes, now)
        recent = idmap.state[0]
        suspects |= {index for index, id_hash in enumerate(hashes) if id_hash in recent}
        known = {index: self._changes.add_known(adds[index], now) for index in suspects}
        fresh = [index for index in range(len(adds)) if known.get(index) is None] if suspects else range(len(adds))
        outcomes = _Batch(self._writer, now).write([adds[index] for index in fresh], [hashes[index] for index in fresh])
        if len(fresh) == len(adds):
            return outcomes
        following = iter(outcomes)
        return [known.get(index) or next(following) for index in range(len(adds))]

    def _add_in_turn(self, adds: list[Add], hashes: list[int], now: int) -> list[Outcome]:
        """The same id more than once in a batch: each sees what those before it did."""
        outcomes: list[Outcome] = []
        for add, id_hash in zip(adds, hashes, strict=True):
            known = self._changes.add_known(add, now)
            outcomes += [known] if known is not None else _Batch(self._writer, now).write([add], [id_hash])
        return outcomes

    def _kept(self, receipt: Receipt, now: int) -> tuple[bytes, bytes] | None:
        """What is kept for an idempotency key: the digest of its body, and its outcomes."""
        kept: tuple[bytes, bytes] | None = self._writer.connection.execute(
            "SELECT body, outcomes FROM receipt WHERE tenant = ? AND key = ? AND at > ?",
            (receipt.tenant, receipt.key, now - self._writer.options.receipt_retention_us),
        ).fetchone()
        return kept

    def _keep(self, receipt: Receipt, outcomes: list[Outcome], now: int) -> None:
        self._writer.connection.execute(
            "INSERT OR REPLACE INTO receipt VALUES (?, ?, ?, ?, ?)",
            (receipt.tenant, receipt.key, receipt.body, _encode_outcomes(outcomes), now),
        )


class _Batch:
    """One-shots of one tenant on their way into the tables, column by column."""

    def __init__(self, writer: Writer, now: int) -> None:
        self._writer = writer
        self._now = now

    def write(self, adds: list[Add], hashes: list[int]) -> list[Outcome]:
        """Write them all, and their ids into the map."""
        if not adds:
            return []
        writer = self._writer
        dues = [add.due for add in adds]
        first, streams = writer.arrival + 1, self._streams(adds)
        writer.arrival += len(adds)
        names = _names(adds, first)
        blobs = self._blobs(adds, hashes, names, streams, first)
        near_until = writer.near_until
        near = [blob for blob, due in zip(blobs, dues, strict=True) if due < near_until]
        far = [blob for blob, due in zip(blobs, dues, strict=True) if due >= near_until] if near else blobs
        if near:
            writer.heads.offer_all(streams, dues, near_until)
        writer.pending += len(adds)
        rows.insert(writer.connection, "near", near, self._now)
        writer.far.insert(far if len(near) < len(adds) else (), self._now)
        if hashes[0]:
            rows.insert(writer.connection, "recent", blobs)
            writer.idmap.remember_all(hashes, first, dues)
        return [Outcome(name.decode(), "scheduled", due) for name, due in zip(names, dues, strict=True)]

    def _blobs(
        self, adds: list[Add], hashes: list[int], names: list[bytes], streams: list[int], first: int
    ) -> list[bytes]:
        """The rows as rows.sql takes them apart."""
        writer = self._writer
        due = np.array([add.due for add in adds], dtype=np.int64)
        labels = [b"" if add.labels is None else add.labels.encode() for add in adds]
        deadlines, reasons = _deadlines(adds)
        sizes = np.array([len(name) for name in names], dtype=np.int64)
        columns = (
            writer.buckets(due),
            np.arange(first, first + len(adds), dtype=np.int64),
            due,
            np.array(streams, dtype=np.int64),
            np.array(self._partitions(adds, names), dtype=np.int64),
            deadlines,
            np.array(hashes, dtype=np.int64) if hashes[0] else 0,
            sizes + reasons * 1000,
            np.array([len(text) for text in labels], dtype=np.int64) if any(labels) else 0,
        )
        heads = rows.heads(len(adds), columns)
        return [
            b"".join((head, add.content, name, label, add.message))
            for head, add, name, label in zip(heads, adds, names, labels, strict=True)
        ]

    def _streams(self, adds: list[Add]) -> list[int]:
        known = {
            priority: self._writer.stream_of(adds[0].tenant, priority) for priority in {add.priority for add in adds}
        }
        if len(known) == 1:
            return [*known.values()] * len(adds)
        return [known[add.priority] for add in adds]

    def _partitions(self, adds: list[Add], names: list[bytes]) -> list[int]:
        tenant, count = adds[0].tenant, self._writer.partitions
        topics = {topic: self._writer.topic_of(tenant, topic) for topic in {add.topic for add in adds}}
        return [
            topics[add.topic] + (crc32(name) if add.key_hash is None else add.key_hash) % count
            for add, name in zip(adds, names, strict=True)
        ]


def _names(adds: list[Add], first: int) -> list[bytes]:
    """The ids as bytes; those that were left to us are made of arrival, due time and priority."""
    if adds[0].id is not None:
        return [add.id.encode() for add in adds if add.id is not None]
    places = rows.digits(
        len(adds),
        (16, 16),
        (np.arange(first, first + len(adds), dtype=np.int64), np.array([add.due for add in adds], dtype=np.int64)),
    )
    return [b"tid_" + place + _PRIORITY_DIGITS[add.priority] for place, add in zip(places, adds, strict=True)]


_PRIORITY_DIGITS = (b"0", b"1", b"2")
_PLAIN = Lateness()


def _deadlines(adds: list[Add]) -> tuple[rows.Column, rows.Column]:
    """When each may leave at the latest, and the number of the reason for which it is missed then."""
    if all(add.lateness is adds[0].lateness for add in adds) and adds[0].lateness == _PLAIN:
        return NO_DEADLINE, 0
    bounds = [deadline(add.due, add.lateness) or (NO_DEADLINE, "") for add in adds]
    last = np.array([min(bound[0], NO_DEADLINE) for bound in bounds], dtype=np.int64)
    return last, np.array([REASONS.index(bound[1]) for bound in bounds], dtype=np.int64)
