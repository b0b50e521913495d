"""Applying commands: new schedules in bulk, changes one by one, all in one transaction."""

from collections.abc import Sequence
from zlib import crc32

import msgspec
import numpy as np

from tidings import crash
from tidings.domain.changes import refusal, too_many_topics
from tidings.domain.errors import KeyReused
from tidings.domain.names import first_unstorable_id, is_storable
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.domain.schedules.lateness import Lateness, deadline
from tidings.domain.schedules.when import Once
from tidings.ports import IdempotencyKey, SourceBatch
from tidings.timeline.sqlite.apply.changes import Changes
from tidings.timeline.sqlite.pending.packed_rows import HEAD, NO_DEADLINE, REASONS, Numbers, Rows, digits
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.repeats import Repeats
from tidings.timeline.sqlite.writer import TOPICS_PER_TENANT_MAX, Writer

_encode_outcomes = msgspec.msgpack.Encoder().encode
_decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


class Intake:
    """Commands in, outcomes out."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._changes = Changes(writer)
        self._repeats = Repeats(writer)

    def apply(
        self, commands: Sequence[Command], now: int, receipt: IdempotencyKey | None, taken: SourceBatch | None = None
    ) -> list[Outcome]:
        """Commit all commands in order in one transaction."""
        with self._writer.transaction() as connection:
            crash.point("intake.begun")
            if taken is not None:
                outbox.take(connection, taken.parts)
            outcomes: list[Outcome] = []
            kept = None if receipt is None else self._kept(receipt, now)
            if kept is None:
                outcomes = self._run(commands, now)
                if taken is not None:
                    self._run(taken.follow(outcomes), now)
                if receipt is not None:
                    self._keep(receipt, outcomes, now)
            crash.point("intake.written")
        crash.point("intake.committed")
        if kept is None or receipt is None:
            return outcomes
        if kept[0] != receipt.body:
            raise KeyReused("this Idempotency-Key came before with another body: use a new key for a new request")
        return _decode_outcomes(kept[1])

    def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """A record of the outbox is missed; the commands that tell of it are part of that."""
        with self._writer.transaction():
            outbox.drop(self._writer, offset, reason, now)
            self._run(instead, now)
        self._writer.held.pop(offset, None)

    def _run(self, commands: Sequence[Command], now: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        start, end = 0, len(commands)
        while start < end:
            adds = self._together(commands, start)
            if adds:
                outcomes += self._add(adds, now)
                start += len(adds)
            else:
                outcomes.append(self._refusal(commands[start]) or self._changes.run(commands[start], now))
                crash.point("change.written")
                start += 1
        return outcomes

    def _together(self, commands: Sequence[Command], start: int) -> list[Add]:
        """What can be written at once: new one-shots of one tenant, either all with ids or all without."""
        adds: list[Add] = []
        tenant, nameless, topics = "", False, set[str]()
        for index in range(start, len(commands)):
            command = commands[index]
            if type(command) is not Add or type(command.when) is not Once:
                break
            if not adds:
                tenant, nameless = command.tenant, command.id is None
                if not is_storable(tenant):
                    break
            elif command.tenant != tenant or (command.id is None) is not nameless:
                break
            if command.topic not in topics:
                if not is_storable(command.topic) or not self._writer.may_open(tenant, command.topic):
                    break
                topics.add(command.topic)
            adds.append(command)
        return adds if nameless else adds[: first_unstorable_id([add.id for add in adds if add.id is not None])]

    def _refusal(self, command: Command) -> Outcome | None:
        """Why a command is refused before anything is looked up: by its names, or because its tenant has too many."""
        add = command.add if isinstance(command, Replace) else command
        refused = refusal(command)
        if refused is not None or not isinstance(add, Add) or self._writer.may_open(add.tenant, add.topic):
            return refused
        return too_many_topics(add, TOPICS_PER_TENANT_MAX)

    def _add(self, adds: list[Add], now: int) -> list[Outcome]:
        """One-shots of one tenant, all at once; those whose id may be known already are looked up first."""
        if adds[0].id is None:
            return _Batch(self._writer, now).write(adds, None)
        idmap = self._writer.idmap
        hashes = idmap.hashes(adds[0].tenant, [add.id for add in adds if add.id is not None])
        suspects = idmap.suspects(np.array(hashes, dtype=np.int64))
        if len(set(hashes)) < len(hashes):
            return self._add_in_turn(adds, hashes, now)
        recent = idmap.state[0].arrivals
        if not recent.keys().isdisjoint(hashes):
            suspects |= {index for index, id_hash in enumerate(hashes) if id_hash in recent}
        if not suspects:
            return _Batch(self._writer, now).write(adds, hashes)
        return self._add_suspects(adds, hashes, suspects, now)

    def _add_suspects(self, adds: list[Add], hashes: list[int], suspects: set[int], now: int) -> list[Outcome]:
        """The same where some ids may be known: repeats are recognised together, other known ids one by one."""
        answers = self._repeats.unchanged(adds, hashes, suspects, now)
        unsure = suspects - answers.keys()
        found = {index: known for index in unsure if (known := self._changes.find(adds[index], now)) is not None}
        start = 0
        for index in [*sorted(found), len(adds)]:  # in order: what came later arrived later
            new = [each for each in range(start, index) if each not in answers]
            outcomes = _Batch(self._writer, now).write([adds[each] for each in new], [hashes[each] for each in new])
            answers.update(zip(new, outcomes, strict=True))
            if index < len(adds):
                answers[index] = self._changes.run_on(found[index], adds[index], now)
            start = index + 1
        return [answers[index] for index in range(len(adds))]

    def _add_in_turn(self, adds: list[Add], hashes: list[int], now: int) -> list[Outcome]:
        """The same id more than once in a batch: each sees what those before it did."""
        outcomes: list[Outcome] = []
        for add, id_hash in zip(adds, hashes, strict=True):
            found = self._changes.find(add, now)
            if found is not None:
                outcomes.append(self._changes.run_on(found, add, now))
            else:
                outcomes += _Batch(self._writer, now).write([add], [id_hash])
        return outcomes

    def _kept(self, receipt: IdempotencyKey, now: int) -> tuple[bytes, bytes] | None:
        """What is kept for an idempotency key: the digest of its body, and its outcomes."""
        kept: tuple[bytes, bytes] | None = self._writer.connection.execute(
            "SELECT body, outcomes FROM receipt WHERE tenant = ? AND key = ? AND at > ?",
            (receipt.tenant, receipt.key, now - self._writer.options.receipt_retention_us),
        ).fetchone()
        return kept

    def _keep(self, receipt: IdempotencyKey, outcomes: list[Outcome], now: int) -> None:
        self._writer.connection.execute(
            "INSERT OR REPLACE INTO receipt VALUES (?, ?, ?, ?, ?)",
            (receipt.tenant, receipt.key, receipt.body, _encode_outcomes(outcomes), now),
        )


class _Batch:
    """One-shots of one tenant on their way into the tables, column by column."""

    def __init__(self, writer: Writer, now: int) -> None:
        self._writer = writer
        self._now = now

    def write(self, adds: list[Add], hashes: list[int] | None) -> list[Outcome]:
        """Write them all, and the ids of callers into the map."""
        if not adds:
            return []
        writer = self._writer
        first = writer.arrival + 1
        writer.arrival += len(adds)
        writer.pending += len(adds)
        arrivals = np.arange(first, writer.arrival + 1, dtype=np.int64)
        dues = [add.due for add in adds]
        due = np.array(dues, dtype=np.int64)
        names = _names(adds, arrivals, due)
        rows = self._rows(adds, names, arrivals, due)
        soon = due < writer.near_until
        if soon.any():
            writer.put_near(rows.where(soon))
            rows = rows.where(~soon)
        writer.far.insert(rows, writer.buckets(rows.heads["due"]))
        if hashes is not None:
            writer.idmap.remember(writer.connection, np.stack([np.array(hashes, dtype=np.int64), arrivals, due]))
        return [Outcome(name.decode(), "scheduled", due) for name, due in zip(names, dues, strict=True)]

    def _rows(self, adds: list[Add], names: list[bytes], arrivals: Numbers, due: Numbers) -> Rows:
        labels = [b"" if add.labels is None else add.labels.encode() for add in adds]
        heads = np.zeros(len(adds), dtype=HEAD)
        heads["arrival"], heads["due"], heads["accepted"], heads["live"] = arrivals, due, self._now, 1
        heads["deadline"], heads["reason"] = _deadlines(adds)
        heads["stream"] = self._streams(adds)
        heads["partition"] = self._partitions(adds, names)
        heads["message_bytes"] = [len(add.message) for add in adds]
        heads["id_bytes"] = [len(name) for name in names]
        heads["labels_bytes"] = [len(text) for text in labels] if any(labels) else 0
        return Rows(
            heads,
            [add.content + name + label + add.message for add, name, label in zip(adds, names, labels, strict=True)],
        )

    def _streams(self, adds: list[Add]) -> list[int]:
        tenant, stream_of = adds[0].tenant, self._writer.stream_of
        places = {(add.priority, add.topic) for add in adds}
        known = {place: stream_of(tenant, *place) for place in places}
        if len(set(known.values())) == 1:
            return [known[places.pop()]] * len(adds)
        return [known[add.priority, add.topic] for add in adds]

    def _partitions(self, adds: list[Add], names: list[bytes]) -> list[int]:
        tenant, count = adds[0].tenant, self._writer.partitions
        topics = {topic: self._writer.topic_of(tenant, topic) for topic in {add.topic for add in adds}}
        return [
            topics[add.topic] + (crc32(name) if add.key_hash is None else add.key_hash) % count
            for add, name in zip(adds, names, strict=True)
        ]


def _names(adds: list[Add], arrivals: Numbers, due: Numbers) -> list[bytes]:
    """The ids as bytes; those that were left to us are made of arrival, due time and priority."""
    if adds[0].id is not None:
        return [add.id.encode() for add in adds if add.id is not None]
    places = digits(len(adds), (16, 16), (arrivals, due))
    return [b"tid_" + place + _PRIORITY_DIGITS[add.priority] for place, add in zip(places, adds, strict=True)]


_PRIORITY_DIGITS = (b"0", b"1", b"2")
_PLAIN = Lateness()


def _deadlines(adds: list[Add]) -> tuple[Numbers | int, Numbers | int]:
    """When each may leave at the latest, and the number of the reason for which it is missed then."""
    if all(add.lateness is adds[0].lateness for add in adds) and adds[0].lateness == _PLAIN:
        return NO_DEADLINE, 0
    bounds = [deadline(add.due, add.lateness) or (NO_DEADLINE, "") for add in adds]
    last = np.array([min(bound[0], NO_DEADLINE) for bound in bounds], dtype=np.int64)
    return last, np.array([REASONS.index(bound[1]) for bound in bounds], dtype=np.int64)
