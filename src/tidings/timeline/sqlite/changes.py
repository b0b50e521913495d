"""Changes: each command looked at by itself, answered by what really happened."""

from typing import assert_never
from zlib import crc32

import msgspec

from tidings.domain import ownership
from tidings.domain.command import (
    FINISHED,
    Add,
    Cancel,
    Command,
    Fire,
    Outcome,
    Pause,
    Replace,
    Resume,
)
from tidings.domain.lateness import Lateness, Policy, deadline
from tidings.domain.ownership import Current
from tidings.domain.revising import Pending, calendar_of, zone_of
from tidings.domain.schedule import MADE_ID, make_id
from tidings.domain.when import Once, is_once
from tidings.timeline.dating import ahead, answer, continued, dated, first_due, noted, terms_of, uncounted
from tidings.timeline.sqlite import single
from tidings.timeline.sqlite.dates import days_of, keep_zone
from tidings.timeline.sqlite.lookup import Found, find, in_flight, lateness_of
from tidings.timeline.sqlite.rows import NO_DEADLINE
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, Writer
from tidings.timeline.terms import Terms, encode_terms


class Changes:
    """Commands that touch one schedule, inside the caller's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def run(self, command: Command, now: int) -> Outcome:
        """Carry out one command."""
        match command:
            case Add():
                return self.add_known(command, now) or self._insert(command, now, 1)
            case Replace():
                return self._replace(command, now)
            case Cancel() | Pause() | Resume() | Fire():
                return self._change(command, now)
            case _:
                assert_never(command)

    def _change(self, command: Cancel | Pause | Resume | Fire, now: int) -> Outcome:
        found = self._find(command.tenant, command.id, now)
        if found is None:
            return self._unknown(command.id, now)
        if (refusal := self._refusal(command, found)) is not None:
            return refusal
        if isinstance(command, Cancel) and found.state == "cancelled":
            return Outcome(command.id, "cancelled", found.due)
        if found.state in FINISHED:
            return self._too_late(found)
        match command:
            case Cancel():
                return self._cancel(found, now)
            case Pause():
                return self._pause(found, now)
            case Resume():
                return self._resume(found, now, command.missed)
            case Fire():
                return self._fire(found, now)
            case _:
                assert_never(command)

    def add_known(self, add: Add, now: int) -> Outcome | None:
        """The answer to an Add whose id is there already; None if it is not."""
        if add.id is None:
            return None
        found = self._find(add.tenant, add.id, now)
        if found is None:
            return None
        if found.content == add.content:
            return _unchanged(found, now)
        if (refusal := self._refusal(add, found)) is not None:
            return refusal
        if found.state in FINISHED:
            return self._reuse(found, add, now) if add.reuse else self._too_late(found)
        reason = "this id holds another schedule: replace it, cancel it, or use another id"
        return Outcome(add.id, "rejected", found.due, found.state, reason)

    def _refusal(self, command: Command, found: Found) -> Outcome | None:
        topic = self._writer.topic_names[found.partition // PARTITIONS_MAX][1]
        return ownership.refusal(command, Current(found.id, topic, found.state, found.due, found.message))

    def _find(self, tenant: str, schedule_id: str, now: int) -> Found | None:
        return find(self._writer.connection, self._writer, tenant, schedule_id, now)

    def _dated(self, add: Add) -> Add | Outcome:
        """The schedule with the days of the calendar that it names."""
        calendar = calendar_of(add.when)
        return add if calendar is None else dated(add, days_of(self._writer.connection, add.tenant, calendar))

    def _insert(self, asked: Add, now: int, generation: int) -> Outcome:
        add = self._dated(asked)
        return add if isinstance(add, Outcome) else self._put(add, now, generation)

    def _put(self, add: Add, now: int, generation: int, n: int = 1, *, paused: bool = False) -> Outcome:
        """A new schedule onto the timeline, its id into the map."""
        writer = self._writer
        writer.arrival += 1
        schedule_id = add.id if add.id is not None else make_id(writer.arrival, add.due, add.priority)
        found = self._row(add, schedule_id, generation, now)
        if add.id is not None:
            single.remember(writer, found)
        if isinstance(add.when, Once) and not paused:
            single.insert_plain(writer, found, now)
        else:
            found.state, found.n = "paused" if paused else "pending", n
            if (zone := zone_of(add.when)) is not None:
                keep_zone(writer, zone)
            found.terms = terms_of(add)
            single.insert_standing(writer, found, found.terms)
            if not paused:
                single.insert_pointer(writer, found)
        return answer(schedule_id, "scheduled", ahead(found.terms, n, add.due, now))

    def _row(self, add: Add, schedule_id: str, generation: int, now: int) -> Found:
        writer = self._writer
        hashed = crc32(schedule_id.encode()) if add.key_hash is None else add.key_hash
        bound = deadline(add.due, add.lateness)
        return Found(
            "standing",
            writer.arrival,
            0,
            writer.stream_of(add.tenant, add.priority, add.topic),
            add.due,
            writer.topic_of(add.tenant, add.topic) + hashed % writer.partitions,
            generation,
            1,
            now,
            add.content,
            schedule_id,
            add.labels,
            message=add.message,
            deadline=NO_DEADLINE if bound is None else min(bound[0], NO_DEADLINE),
            reason=None if bound is None else bound[1],
            origin=add.due,
        )

    def _replace(self, replace: Replace, now: int) -> Outcome:
        add = replace.add
        assert add.id is not None, "a replacement has an id"
        found = self._find(add.tenant, add.id, now)
        refusal = uncounted(replace, finished=found is not None and found.state in FINISHED)
        if refusal is not None:
            return refusal
        if found is None:
            return self._unknown(add.id, now) if MADE_ID.match(add.id) else self._insert(add, now, 1)
        if (refusal := self._refusal(replace, found)) is not None:
            return refusal
        if found.state in FINISHED:
            return self._reuse(found, add, now) if replace.reuse else self._too_late(found)
        if found.content == add.content:
            return _unchanged(found, now)
        pending = _pending(found) if replace.keep_count else None
        new = self._dated(add)
        if isinstance(new, Add) and pending is not None:
            new = continued(new, pending, now)
        if isinstance(new, Outcome):
            return new
        single.remove(self._writer, found)
        self._tell_first(found)
        single.note(self._writer, found, now, "replaced", due=new.due)
        paused = found.state == "paused"
        n = 1 if pending is None else pending.n
        outcome = self._put(new, now, found.generation + 1, n, paused=paused)
        return msgspec.structs.replace(outcome, outcome="replaced", state="paused" if paused else None)

    def _reuse(self, found: Found, add: Add, now: int) -> Outcome:
        """A finished id begins a new life."""
        new = self._dated(add)
        if isinstance(new, Outcome):
            return new
        self._supersede(found)
        single.note(self._writer, found, now, "accepted", due=new.due)
        return self._put(new, now, found.generation + 1)

    def _supersede(self, found: Found) -> None:
        """A finished schedule whose id is used anew lives on in the id's history only."""
        assert found.at is not None
        self._tell_first(found)
        if found.state in {"released", "missed"}:
            single.note(self._writer, found, found.at, found.state, found.n, found.due, found.reason)
        sql = "DELETE FROM finished WHERE due = ? AND arrival = ?"
        self._writer.connection.execute(sql, (found.origin, found.arrival))

    def _tell_first(self, found: Found) -> None:
        """Write down when a schedule was first accepted, before its row goes."""
        if found.generation == 1:
            single.note(self._writer, found, found.accepted, "accepted", due=first_due(found.terms, found.n, found.due))

    def _cancel(self, found: Found, now: int) -> Outcome:
        single.remove(self._writer, found)
        single.finish(self._writer, found, "cancelled", now)
        single.note(self._writer, found, now, "cancelled")
        return Outcome(found.id, "cancelled", found.due, note=noted(found.terms, found.n))

    def _pause(self, found: Found, now: int) -> Outcome:
        if found.state == "pending":
            self._hold(found)
            single.note(self._writer, found, now, "paused")
        return Outcome(found.id, "paused", found.due, note=noted(found.terms, found.n))

    def _hold(self, found: Found) -> None:
        """Take a pending schedule off the timeline and keep it standing."""
        if found.table == "standing":
            single.remove_pointer(self._writer, found)
            sql = "UPDATE standing SET state = 'paused' WHERE arrival = ?"
            self._writer.connection.execute(sql, (found.arrival,))
            return
        single.remove(self._writer, found)
        held = msgspec.structs.replace(found, table="standing", state="paused", origin=found.due)
        single.insert_standing(self._writer, held, Terms(Once(found.due), lateness_of(found) or Lateness(), 0))

    def _resume(self, found: Found, now: int, missed: Policy | None) -> Outcome:
        if found.state == "pending":
            return _unchanged(found, now)
        assert found.terms is not None, "what is paused has its terms"
        terms = found.terms.pardoned(missed, now)
        sql = "UPDATE standing SET state = 'pending', policy = ? WHERE arrival = ?"
        self._writer.connection.execute(sql, (encode_terms(terms), found.arrival))
        single.insert_pointer(self._writer, found)
        single.note(self._writer, found, now, "resumed")
        return answer(found.id, "resumed", ahead(terms, found.n, found.due, now))

    def _fire(self, found: Found, now: int) -> Outcome:
        again = _recurs(found)
        if not again:
            self._tell_first(found)
        single.note(self._writer, found, now, "fired")
        if again:
            self._fire_extra(found, now)
        else:
            self._fire_instead(found, now)
        return Outcome(found.id, "fired", now)

    def _fire_extra(self, found: Found, now: int) -> None:
        """One more record of a recurring schedule, which goes on unchanged."""
        writer = self._writer
        sql = "UPDATE standing SET fires = fires + 1 WHERE arrival = ?"
        writer.connection.execute(sql, (found.arrival,))
        writer.arrival += 1
        extra = msgspec.structs.replace(
            found, arrival=writer.arrival, due=now, n=-(found.fires + 1), deadline=NO_DEADLINE, reason=None
        )
        single.insert_extra(writer, extra, found.arrival)

    def _fire_instead(self, found: Found, now: int) -> None:
        """A one-shot leaves now instead of at its time."""
        writer = self._writer
        single.remove(writer, found)
        writer.arrival += 1
        fired = msgspec.structs.replace(
            found, arrival=writer.arrival, due=now, origin=now, n=1, deadline=NO_DEADLINE, reason=None
        )
        single.remember(writer, fired)
        single.insert_plain(writer, fired, found.accepted)

    def _too_late(self, found: Found) -> Outcome:
        """The answer to a change of a finished schedule."""
        match found.state:
            case "released" | "ended" if in_flight(self._writer, found):
                return Outcome(found.id, "in_flight", found.due, "in_flight")
            case "released" | "ended":
                return Outcome(found.id, "already_released", found.due, found.state)
            case "cancelled":
                return Outcome(found.id, "cancelled", found.due, found.state)
            case _:
                reason = f"it was missed: {found.reason}"
                return Outcome(found.id, "rejected", found.due, found.state, reason)

    def _unknown(self, schedule_id: str, now: int) -> Outcome:
        since = max(self._writer.created, now - self._writer.options.id_retention_us)
        return Outcome(schedule_id, "unknown", remembered_since=since)


def _unchanged(found: Found, now: int) -> Outcome:
    terms = found.terms if found.state == "pending" else None
    return answer(found.id, "unchanged", ahead(terms, found.n, found.due, now), found.state)


def _pending(found: Found) -> Pending | None:
    """What is pending of a recurring schedule."""
    if found.terms is None or is_once(found.terms.when):
        return None
    return Pending(found.terms.when, found.n, found.due - found.terms.jitter_us)


def _recurs(found: Found) -> bool:
    return found.terms is not None and not is_once(found.terms.when)
