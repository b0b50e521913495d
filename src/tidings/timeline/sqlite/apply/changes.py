"""Commands that are looked at one by one: the rows they concern are found, what is decided is applied to them."""

from typing import assert_never
from zlib import crc32

import msgspec

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
)
from tidings.domain.schedules.command import Add, Command, Outcome, Replace, address
from tidings.domain.schedules.lateness import deadline
from tidings.domain.schedules.recurrence_state import encode_state
from tidings.domain.schedules.reschedule import calendar_of, zone_of
from tidings.domain.schedules.schedule import Event, make_id
from tidings.timeline.sqlite.apply import row_writes
from tidings.timeline.sqlite.calendars import days_of, keep_zone
from tidings.timeline.sqlite.id_lookup import Found, effective_terms, find, in_flight
from tidings.timeline.sqlite.pending.packed_rows import NO_DEADLINE
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, Writer


class Changes:
    """Commands that touch one schedule, inside the caller's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def run(self, command: Command, now: int) -> Outcome:
        """Apply one command, and answer it."""
        return self.run_on(self.find(command, now), command, now)

    def find(self, command: Command, now: int) -> Found | None:
        """The schedule that a command is about, if it is known."""
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
        return Current(
            id=found.id,
            state=found.state,
            content=found.content,
            generation=found.generation,
            n=found.n,
            due=found.due,
            accepted=found.accepted,
            terms=effective_terms(found),
            topic=self._writer.topic_names[found.partition // PARTITIONS_MAX][1],
            message=found.message,
            finished=found.at,
            reason=found.reason,
            leaving=in_flight(self._writer, found),
            in_flight=self._latest_in_flight(found),
        )

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
                raise AssertionError("a new schedule is no change of a row")
            case _:
                assert_never(effect)

    def _begin(self, begin: Begin, now: int) -> str:
        """Store a new schedule, its id in the map; answers its id."""
        writer, add = self._writer, begin.add
        writer.arrival += 1
        schedule_id = add.id if add.id is not None else make_id(writer.arrival, add.due, add.priority)
        found = self._row(begin, schedule_id, now)
        if add.id is not None:
            row_writes.remember(writer, found)
        if begin.terms is None:
            row_writes.insert_plain(writer, found, now)
            return schedule_id
        if (zone := zone_of(add.when)) is not None:
            keep_zone(writer, zone)
        row_writes.insert_standing(writer, found, begin.terms)
        if not begin.paused:
            row_writes.insert_pointer(writer, found)
        return schedule_id

    def _row(self, begin: Begin, schedule_id: str, now: int) -> Found:
        writer, add = self._writer, begin.add
        hashed = crc32(schedule_id.encode()) if add.key_hash is None else add.key_hash
        bound = deadline(add.due, add.lateness)
        return Found(
            "standing",
            writer.arrival,
            0,
            writer.stream_of(add.tenant, add.priority, add.topic),
            add.due,
            writer.topic_of(add.tenant, add.topic) + hashed % writer.partitions,
            begin.generation,
            begin.n,
            now,
            add.content,
            schedule_id,
            add.labels,
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
        writer.arrival += 1
        extra = msgspec.structs.replace(
            found, arrival=writer.arrival, due=now, n=-(found.fires + 1), deadline=NO_DEADLINE, reason=None
        )
        row_writes.insert_extra(writer, extra, found.arrival)

    def _fire_once(self, found: Found, now: int) -> None:
        writer = self._writer
        row_writes.remove(writer, found)
        writer.arrival += 1
        fired = msgspec.structs.replace(
            found, arrival=writer.arrival, due=now, origin=now, n=1, deadline=NO_DEADLINE, reason=None
        )
        row_writes.remember(writer, fired)
        row_writes.insert_plain(writer, fired, found.accepted)
