"""Intake: applies commands in one transaction, new one-shots in bulk and all other commands one by one."""

from collections.abc import Sequence
from typing import assert_never
from zlib import crc32

import msgspec
import numpy as np

from tidings import crash
from tidings.domain.changes import (
    Begin,
    Continue,
    Current,
    Effect,
    Finish,
    FireExtra,
    FireOnce,
    Hold,
    Remove,
    decide,
    refusal,
)
from tidings.domain.errors import KeyReused
from tidings.domain.names import first_unstorable_id, is_storable
from tidings.domain.schedules.command import Add, Command, Outcome, PlainAdds, Replace, UniformAdds, address, parts_of
from tidings.domain.schedules.lateness import Lateness, deadline
from tidings.domain.schedules.recurrence_state import encode_state
from tidings.domain.schedules.reschedule import calendar_of, zone_of
from tidings.domain.schedules.schedule import Event, make_id
from tidings.domain.schedules.when import Once
from tidings.ports import IdempotencyKey, SourceBatch
from tidings.timeline.sqlite import row_writes
from tidings.timeline.sqlite.calendars import days_of, keep_zone
from tidings.timeline.sqlite.id_lookup import Found, Repeats, find, in_flight
from tidings.timeline.sqlite.pending.packed_rows import HEAD, NO_DEADLINE, REASONS, Numbers, Rows, digits
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, Writer
from tidings.timeline.store_rules import current_of, is_remembered, topic_refusal

_PRIORITY_DIGITS = (b"0", b"1", b"2")
_PLAIN = Lateness()

_encode_outcomes = msgspec.msgpack.Encoder().encode
_decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


class Intake:
    """Applies batches of commands."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._changes = Changes(writer)
        self._repeats = Repeats(writer)
        self._hashed: tuple[Sequence[Add] | None, list[int]] = (None, [])

    def hash_ahead(self, adds: UniformAdds) -> None:
        """Hash the ids of commands that will be run next, outside of their transaction."""
        self._hashed = adds, self._writer.idmap.hashes(adds.tenant, adds.ids)

    def apply(
        self,
        commands: Sequence[Command],
        now: int,
        idempotency: IdempotencyKey | None = None,
        source: SourceBatch | None = None,
    ) -> list[Outcome]:
        """Commit all commands in order in one transaction."""
        with self._writer.transaction() as connection:
            if crash.IS_ARMED:
                crash.point("intake.begun")
            if source is not None:
                outbox.advance_positions(connection, source.parts)
            outcomes: list[Outcome] = []
            kept = None if idempotency is None else self._kept(idempotency, now)
            if kept is None:
                outcomes = self.run(commands, now)
                if source is not None:
                    self.run(source.on_outcomes(outcomes), now)
                if idempotency is not None and is_remembered(outcomes):
                    self._keep(idempotency, outcomes, now)
            if crash.IS_ARMED:
                crash.point("intake.written")
        if crash.IS_ARMED:
            crash.point("intake.committed")
        if kept is None or idempotency is None:
            return outcomes
        if kept[0] != idempotency.body:
            raise KeyReused
        return _decode_outcomes(kept[1])

    def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """Count a record of the outbox as missed, and apply the commands that report it, in one transaction."""
        with self._writer.transaction():
            outbox.drop(self._writer, [offset], reason, now)
            self.run(instead, now)
        self._writer.unhold([offset])

    def run(self, commands: Sequence[Command], now: int) -> list[Outcome]:
        """Apply commands in order, inside the caller's transaction."""
        outcomes: list[Outcome] = []
        for part in parts_of(commands):
            if isinstance(part, PlainAdds | UniformAdds) and self._is_bulk(part):
                outcomes += self._add(part, now)
            else:
                outcomes += self._run_part(part, now)
        return outcomes

    def _is_bulk(self, adds: PlainAdds | UniformAdds) -> bool:
        """Whether all of these can be written in bulk: their ids can be stored, and their topics are there."""
        if isinstance(adds, UniformAdds) and (
            type(adds.shared.when) is not Once or adds.shared.past_refusal is not None
        ):
            return False
        known, tenant, columns = self._writer.topics, adds.tenant, adds.columns
        if adds.has_ids and first_unstorable_id(columns.ids) is not None:
            return False
        return all((tenant, topic) in known for topic in set(columns.topics))

    def _run_part(self, commands: Sequence[Command], now: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        start, end = 0, len(commands)
        while start < end:
            adds = self._bulk_adds(commands, start)
            if adds:
                outcomes += self._add(adds, now)
                start += len(adds)
            else:
                outcomes.append(self._refusal(commands[start]) or self._changes.run(commands[start], now))
                crash.point("change.written")
                start += 1
        return outcomes

    def _bulk_adds(self, commands: Sequence[Command], start: int) -> list[Add]:
        """The next commands that can be written in bulk: one-shots of one tenant, all with ids or all without.

        One that must not begin is decided by itself: it may repeat a schedule that has begun.
        """
        adds: list[Add] = []
        tenant, nameless, topics = "", False, set[str]()
        known = self._writer.topics
        for index in range(start, len(commands)):
            command = commands[index]
            if type(command) is not Add or type(command.when) is not Once or command.past_refusal is not None:
                break
            if not adds:
                tenant, nameless = command.tenant, command.id is None
            elif command.tenant != tenant or (command.id is None) is not nameless:
                break
            if command.topic not in topics:
                if (tenant, command.topic) not in known and not self._can_open(tenant, command.topic):
                    break
                topics.add(command.topic)
            adds.append(command)
        return adds if nameless else adds[: first_unstorable_id([add.id for add in adds if add.id is not None])]

    def _can_open(self, tenant: str, topic: str) -> bool:
        return is_storable(tenant) and is_storable(topic) and self._writer.may_open(tenant, topic)

    def _refusal(self, command: Command) -> Outcome | None:
        """The rejection of a command before anything is looked up: because of a name, or of too many topics."""
        return refusal(command) or topic_refusal(command, self._writer.may_open)

    def _add(self, adds: Sequence[Add], now: int) -> list[Outcome]:
        """Add one-shots of one tenant in bulk; those whose id may be known are looked up first."""
        batch = _Batch(self._writer, now, adds)
        if not batch.plain.has_ids:
            return batch.write(None)
        idmap = self._writer.idmap
        is_hashed = self._hashed[0] is adds
        hashes = self._hashed[1] if is_hashed else idmap.hashes(batch.plain.tenant, batch.plain.columns.ids)
        self._hashed = None, []
        if len(set(hashes)) < len(hashes):
            return self._add_in_turn(adds, hashes, now)
        suspects = idmap.suspects(np.array(hashes, dtype=np.int64))
        recent = idmap.state[0].arrivals
        if not recent.keys().isdisjoint(hashes):
            suspects |= {index for index, id_hash in enumerate(hashes) if id_hash in recent}
        keys = dict(idmap.newest(self._writer.connection, hashes, suspects)) if suspects else {}
        if not keys:  # also if a filter suspected some for nothing
            return batch.write(hashes)
        return self._add_known(adds, hashes, keys, now)

    def _add_known(
        self, adds: Sequence[Add], hashes: list[int], keys: dict[int, tuple[int, int]], now: int
    ) -> list[Outcome]:
        """The same where some ids are known: repeats are recognised together, other known ids one by one."""
        answers = self._repeats.unchanged(adds, keys, now)
        unsure = keys.keys() - answers.keys()
        found = {index: known for index in unsure if (known := self._changes.find(adds[index], now)) is not None}
        start = 0
        for index in [*sorted(found), len(adds)]:  # in order, so that arrival numbers are too
            if new := [each for each in range(start, index) if each not in answers]:
                batch = _Batch(self._writer, now, [adds[each] for each in new])
                answers.update(zip(new, batch.write([hashes[each] for each in new]), strict=True))
            if index < len(adds):
                answers[index] = self._changes.run_on(found[index], adds[index], now)
            start = index + 1
        return [answers[index] for index in range(len(adds))]

    def _add_in_turn(self, adds: Sequence[Add], hashes: list[int], now: int) -> list[Outcome]:
        """Add one-shots one by one, because some have the same id: each sees the result of those before it."""
        outcomes: list[Outcome] = []
        for add, id_hash in zip(adds, hashes, strict=True):
            found = self._changes.find(add, now)
            if found is not None:
                outcomes.append(self._changes.run_on(found, add, now))
            else:
                outcomes += _Batch(self._writer, now, [add]).write([id_hash])
        return outcomes

    def _kept(self, idempotency: IdempotencyKey, now: int) -> tuple[bytes, bytes] | None:
        """What is stored for an idempotency key: the digest of the body, and the outcomes."""
        kept: tuple[bytes, bytes] | None = self._writer.connection.execute(
            "SELECT body, outcomes FROM receipt WHERE tenant = ? AND key = ? AND at > ?",
            (idempotency.tenant, idempotency.key, now - self._writer.options.idempotency_retention_us),
        ).fetchone()
        return kept

    def _keep(self, idempotency: IdempotencyKey, outcomes: list[Outcome], now: int) -> None:
        self._writer.connection.execute(
            "INSERT OR REPLACE INTO receipt VALUES (?, ?, ?, ?, ?)",
            (idempotency.tenant, idempotency.key, idempotency.body, _encode_outcomes(outcomes), now),
        )


class _Batch:
    """Writes one-shots of one tenant in bulk, column by column; at least one."""

    def __init__(self, writer: Writer, now: int, adds: Sequence[Add]) -> None:
        self._writer = writer
        self._now = now
        # Those with labels, deadlines and notes; of uniform ones the first has the deadline and the note of all.
        self._adds: Sequence[Add] = () if type(adds) is PlainAdds else adds
        self._labels: list[bytes] = []
        if isinstance(adds, UniformAdds):
            self._adds, self._labels = [adds.shared], adds.labels
        elif any(add.labels is not None for add in self._adds):
            self._labels = [(add.labels or "").encode() for add in self._adds]
        self.plain = adds if isinstance(adds, PlainAdds | UniformAdds) else PlainAdds.of(adds)
        self._columns = self.plain.columns

    def write(self, hashes: list[int] | None) -> list[Outcome]:
        """Write the rows, and the ids given by callers into the id map."""
        writer, plain, columns = self._writer, self.plain, self._columns
        size = len(columns.dues)
        first = writer.take_arrivals(size)
        writer.add_pending(size)
        arrivals = np.arange(first, first + size, dtype=np.int64)
        due = np.array(columns.dues, dtype=np.int64)
        names = _names(plain, arrivals, due)
        ids = columns.ids if plain.has_ids else [name.decode() for name in names]
        outcomes = [Outcome(name, "scheduled", due) for name, due in zip(ids, columns.dues, strict=True)]
        if any(add.note is not None for add in self._adds):
            notes = [add.note for add in self._adds] if len(self._adds) == size else [self._adds[0].note] * size
            noted = zip(outcomes, notes, strict=True)
            outcomes = [msgspec.structs.replace(outcome, note=note) for outcome, note in noted]
        rows = self._rows(names, arrivals, due)
        soon = due < writer.near_until
        if soon.all():
            writer.near.insert(rows)
        elif not soon.any():
            writer.far.insert(rows, writer.buckets(due))
        else:
            writer.near.insert(rows.where(soon))
            later = rows.where(~soon)
            writer.far.insert(later, writer.buckets(later.heads["due"]))
        if hashes is not None:
            writer.idmap.remember(writer.connection, np.stack([np.array(hashes, dtype=np.int64), arrivals, due]))
        return outcomes

    def _rows(self, names: list[bytes], arrivals: Numbers, due: Numbers) -> Rows:
        columns = self._columns
        heads = np.zeros(len(names), dtype=HEAD)
        heads["arrival"], heads["due"], heads["accepted"], heads["live"] = arrivals, due, self._now, 1
        heads["deadline"], heads["reason"] = _deadlines(self._adds)
        hashes = [
            crc32(name) if given is None else given for given, name in zip(columns.key_hashes, names, strict=True)
        ]
        heads["message_bytes"] = _sizes(columns.messages)
        heads["id_bytes"] = _sizes(names)
        if self._labels:
            heads["labels_bytes"] = _sizes(self._labels)
        else:
            self._labels = [b""] * len(names)
        parts = zip(columns.contents, names, self._labels, columns.messages, strict=True)
        heads["stream"], firsts = self._routes()
        heads["partition"] = firsts + np.array(hashes, dtype=np.int64) % self._writer.partitions
        return Rows(heads, [*map(b"".join, parts)])

    def _routes(self) -> tuple[Numbers | int, Numbers | int]:
        """The stream and the first partition of each row; a batch mostly has one topic and one priority."""
        kinds = [*zip(self._columns.priorities, self._columns.topics, strict=True)]
        routes = self._writer.routes(self.plain.tenant, dict.fromkeys(kinds))
        if len(routes) == 1:
            return next(iter(routes.values()))
        streams, firsts = zip(*[routes[kind] for kind in kinds], strict=True)
        return np.array(streams, dtype=np.int64), np.array(firsts, dtype=np.int64)


def _sizes(parts: Sequence[bytes]) -> Numbers:
    return np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))


def _names(plain: PlainAdds | UniformAdds, arrivals: Numbers, due: Numbers) -> list[bytes]:
    """The ids as bytes; an id made by Tidings consists of arrival, due time and priority."""
    if plain.has_ids:
        return [*map(str.encode, plain.columns.ids)]
    suffixes = digits(len(plain), (16, 16), (arrivals, due))
    numbered = zip(suffixes, plain.columns.priorities, strict=True)
    return [b"tid_" + suffix + _PRIORITY_DIGITS[priority] for suffix, priority in numbered]


def _deadlines(adds: Sequence[Add]) -> tuple[Numbers | int, Numbers | int]:
    """The deadline of each, and the number of the reason for which it is missed after that."""
    if all(add.lateness is _PLAIN or add.lateness == _PLAIN for add in adds):
        return NO_DEADLINE, 0
    bounds = [deadline(add.due, add.lateness) or (NO_DEADLINE, "") for add in adds]
    last = np.array([min(bound[0], NO_DEADLINE) for bound in bounds], dtype=np.int64)
    return last, np.array([REASONS.index(bound[1]) for bound in bounds], dtype=np.int64)


class Changes:
    """Applies commands one by one, inside the caller's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def run(self, command: Command, now: int) -> Outcome:
        """Apply one command; returns its outcome."""
        return self.run_on(self.find(command, now), command, now)

    def find(self, command: Command, now: int) -> Found | None:
        """The schedule that a command names, if it is known."""
        tenant, schedule_id = address(command)
        if schedule_id is None:
            return None
        return find(self._writer.connection, self._writer, tenant, schedule_id, now)

    def run_on(self, found: Found | None, command: Command, now: int) -> Outcome:
        """Apply one command to the schedule that was found for it."""
        writer = self._writer
        change = decide(
            command,
            None if found is None else self._current(found),
            now,
            days=self._days(command),
            remembered_since=max(writer.created, now - writer.options.id_retention_us),
        )
        outcome = change.outcome
        for effect in change.effects:
            if isinstance(effect, Begin):
                outcome = msgspec.structs.replace(outcome, id=self._begin(effect, now))
            else:
                assert found is not None, "only a schedule that is known can change"
                self._apply(effect, found, now)
        return outcome

    def _days(self, command: Command) -> tuple[int, ...] | None:
        add = command.add if isinstance(command, Replace) else command
        calendar = calendar_of(add.when) if isinstance(add, Add) else None
        return None if calendar is None else days_of(self._writer.connection, add.tenant, calendar)

    def _current(self, found: Found) -> Current:
        topic = self._writer.topic_names[found.partition // PARTITIONS_MAX][1]
        leaving = in_flight(self._writer, found)
        return current_of(found, topic, leaving=leaving, in_flight=self._latest_in_flight(found))

    def _latest_in_flight(self, found: Found) -> int | None:
        """The number of its latest occurrence in the outbox that is not known to be on Kafka."""
        writer = self._writer
        if found.partition // PARTITIONS_MAX not in writer.on_kafka or found.state in {"released", "missed"}:
            return None
        return outbox.in_flight(writer, writer.stream_names[found.stream][0], found.id)

    def _apply(self, effect: Effect, found: Found, now: int) -> None:
        writer = self._writer
        match effect:
            case Event():
                row_writes.note(writer, found, effect)
            case Remove():
                row_writes.remove(writer, found)
            case Finish():
                row_writes.remove(writer, found)
                row_writes.finish(writer, found, effect.state, now)
            case Hold():
                row_writes.pause(writer, found, effect.terms)
            case Continue():
                sql = "UPDATE standing SET state = 'pending', policy = ? WHERE arrival = ?"
                writer.connection.execute(sql, (encode_state(effect.terms), found.arrival))
                row_writes.insert_pointer(writer, found)
            case FireOnce():
                self._fire_once(found, now)
            case FireExtra():
                self._fire_extra(found, now)
            case Begin():
                raise AssertionError("`run_on` handles it")
            case _:
                assert_never(effect)

    def _begin(self, begin: Begin, now: int) -> str:
        """Store a new schedule; returns its id."""
        writer, add = self._writer, begin.add
        arrival = writer.next_arrival()
        schedule_id = add.id if add.id is not None else make_id(arrival, add.due, add.priority)
        found = self._row(begin, schedule_id, arrival, now)
        if add.id is not None:
            row_writes.remember(writer, found)
        if begin.terms is None:
            row_writes.insert_plain(writer, found, now)
            return schedule_id
        if (zone := zone_of(add.when)) is not None:
            keep_zone(writer, zone)
        row_writes.insert_recurring(writer, found, begin.terms)
        if not begin.paused:
            row_writes.insert_pointer(writer, found)
        return schedule_id

    def _row(self, begin: Begin, schedule_id: str, arrival: int, now: int) -> Found:
        writer, add = self._writer, begin.add
        hashed = crc32(schedule_id.encode()) if add.key_hash is None else add.key_hash
        bound = deadline(add.due, add.lateness)
        return Found(
            table="standing",
            arrival=arrival,
            place=0,
            stream=writer.stream_of(add.tenant, add.priority, add.topic),
            due=add.due,
            partition=writer.topic_of(add.tenant, add.topic) + hashed % writer.partitions,
            generation=begin.generation,
            n=begin.n,
            accepted=now,
            content=add.content,
            id=schedule_id,
            labels=add.labels,
            state="paused" if begin.paused else "pending",
            message=add.message,
            deadline=NO_DEADLINE if bound is None else min(bound[0], NO_DEADLINE),
            reason=None if bound is None else bound[1],
            origin=add.due,
        )

    def _fire_extra(self, found: Found, now: int) -> None:
        writer = self._writer
        sql = "UPDATE standing SET fires = fires + 1 WHERE arrival = ?"
        writer.connection.execute(sql, (found.arrival,))
        extra = msgspec.structs.replace(
            found, arrival=writer.next_arrival(), due=now, n=-(found.fires + 1), deadline=NO_DEADLINE, reason=None
        )
        row_writes.insert_extra(writer, extra, found.arrival)

    def _fire_once(self, found: Found, now: int) -> None:
        writer = self._writer
        row_writes.remove(writer, found)
        fired = msgspec.structs.replace(
            found, arrival=writer.next_arrival(), due=now, origin=now, n=1, deadline=NO_DEADLINE, reason=None
        )
        row_writes.remember(writer, fired)
        row_writes.insert_plain(writer, fired, found.accepted)
