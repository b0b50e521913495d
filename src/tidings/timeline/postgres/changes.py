"""Changes: each command looked at by itself, answered by what really happened to the working set."""

from collections.abc import Callable
from typing import assert_never
from zlib import crc32

import msgspec

from tidings.domain import ownership
from tidings.domain.command import FINISHED, Add, Cancel, Command, Fire, Outcome, Pause, Replace, Resume, overlong
from tidings.domain.destination import is_kafka
from tidings.domain.lateness import Lateness, Policy, deadline
from tidings.domain.ownership import Current
from tidings.domain.revising import Pending, calendar_of
from tidings.domain.schedule import MADE_ID, make_id
from tidings.domain.when import Once, is_once
from tidings.timeline.dating import ahead, answer, continued, dated, first_due, noted, terms_of, uncounted
from tidings.timeline.postgres.dates import Days
from tidings.timeline.postgres.names import TO_KAFKA, TOPICS_PER_TENANT_MAX, Names
from tidings.timeline.postgres.rows import Found, lateness_of
from tidings.timeline.postgres.working import Entry
from tidings.timeline.terms import Terms


class Changes:
    """Commands on entries, in memory."""

    def __init__(
        self, names: Names, parts: int, arrive: Callable[[], int], now: int, remembered: int, created: int, days: Days
    ) -> None:
        self._days = days
        self._names = names
        self._parts = parts
        self._arrive = arrive
        self._now = now
        self._remembered = remembered
        self._created = created

    def run(self, command: Command, entry: Entry) -> Outcome:
        """Carry out one command on the id that it speaks of."""
        self._age(entry)
        match command:
            case Add():
                return self._refusal(command) or self._add(command, entry)
            case Replace():
                return self._refusal(command.add) or self._replace(command, entry)
            case Cancel() | Pause() | Resume() | Fire():
                return self._change(command, entry)
            case _:
                assert_never(command)

    def make(self, add: Add, entry_of: Callable[[Add], Entry]) -> Outcome:
        """A schedule under an id that is made for it, which is new."""
        refusal = self._refusal(add)
        new = refusal or self._dated(add)
        if isinstance(new, Outcome):
            return new
        arrival = self._arrive()
        named = new_id(arrival, new)
        entry = entry_of(named)
        return self._put(named, entry, self._row(named, entry.lane, arrival, 1))

    def _dated(self, add: Add) -> Add | Outcome:
        """The schedule with the days of the calendar that it names."""
        calendar = calendar_of(add.when)
        return add if calendar is None else dated(add, self._days.get((add.tenant, calendar)))

    def _age(self, entry: Entry) -> None:
        """What finished too long ago is free, though its row may still be there."""
        found = entry.now
        if found is not None and found.at is not None and found.at <= self._remembered:
            entry.now = None

    def _refusal(self, add: Add) -> Outcome | None:
        """A tenant has no end of schedules, but an end of topics; and an id has an end."""
        if self._names.may_open(add.tenant, add.topic):
            return overlong(add)
        return Outcome(
            add.id or "", "rejected", reason=f"topic: there are {TOPICS_PER_TENANT_MAX} already, use one of them"
        )

    def _add(self, add: Add, entry: Entry) -> Outcome:
        found = entry.now
        if found is None:
            return self._insert(add, entry, 1)
        if found.content == add.content:
            return self._unchanged(found)
        if (refusal := self._owned(add, found)) is not None:
            return refusal
        if found.state in FINISHED:
            return self._reuse(add, entry, found) if add.reuse else self._too_late(found)
        reason = "this id holds another schedule: replace it, cancel it, or use another id"
        return Outcome(found.id, "rejected", found.due, found.state, reason)

    def _owned(self, command: Command, found: Found) -> Outcome | None:
        topic = self._names.destination(found.topic)[1]
        return ownership.refusal(command, Current(found.id, topic, found.state, found.due, found.message))

    def _insert(self, asked: Add, entry: Entry, generation: int) -> Outcome:
        assert asked.id is not None, "what has no id is made with one"
        add = self._dated(asked)
        if isinstance(add, Outcome):
            return add
        return self._put(add, entry, self._row(add, entry.lane, self._arrive(), generation))

    def _put(self, add: Add, entry: Entry, found: Found, *, paused: bool = False) -> Outcome:
        if not isinstance(add.when, Once) or paused:
            found.table, found.state = "standing", "paused" if paused else "pending"
            found.terms = terms_of(add)
        entry.now = found
        return answer(found.id, "scheduled", ahead(found.terms, found.n, found.due, self._now))

    def _row(self, add: Add, lane: int, arrival: int, generation: int) -> Found:
        assert add.id is not None
        bound = deadline(add.due, add.lateness)
        hashed = crc32(add.id.encode()) if add.key_hash is None else add.key_hash
        part = TO_KAFKA if is_kafka(add.topic) else lane * self._parts + hashed % self._parts
        return Found(
            "timeline",
            arrival,
            add.due,
            lane,
            self._names.stream(add.tenant, add.priority, add.topic),
            self._names.topic(add.tenant, add.topic),
            part,
            generation,
            1,
            self._now,
            add.content,
            add.id,
            add.labels,
            message=add.message,
            deadline=None if bound is None else bound[0],
            reason=None if bound is None else bound[1],
        )

    def _replace(self, replace: Replace, entry: Entry) -> Outcome:
        found, add = entry.now, replace.add
        assert add.id is not None, "a replacement has an id"
        refusal = uncounted(replace, finished=found is not None and found.state in FINISHED)
        if refusal is not None:
            return refusal
        if found is None:
            return self._unknown(add.id) if MADE_ID.match(add.id) else self._insert(add, entry, 1)
        if (refusal := self._owned(replace, found)) is not None:
            return refusal
        if found.state in FINISHED:
            return self._reuse(add, entry, found) if replace.reuse else self._too_late(found)
        if found.content == add.content:
            return self._unchanged(found)
        pending = _pending(found) if replace.keep_count else None
        new = self._dated(add)
        if isinstance(new, Add) and pending is not None:
            new = continued(new, pending, self._now)
        if isinstance(new, Outcome):
            return new
        self._tell_first(entry, found)
        entry.withdraw()
        entry.note(self._now, "replaced", due=new.due)
        paused = found.state == "paused"
        row = self._row(new, entry.lane, self._arrive(), found.generation + 1)
        row.n = 1 if pending is None else pending.n
        outcome = self._put(new, entry, row, paused=paused)
        return msgspec.structs.replace(outcome, outcome="replaced", state="paused" if paused else None)

    def _reuse(self, asked: Add, entry: Entry, found: Found) -> Outcome:
        """A finished id begins a new life; the old one lives on in its history only."""
        add = self._dated(asked)
        if isinstance(add, Outcome):
            return add
        self._tell_first(entry, found)
        if found.state in {"released", "missed"}:
            entry.note(found.at or 0, found.state, found.n, found.due, found.reason)
        entry.note(self._now, "accepted", due=add.due)
        return self._insert(add, entry, found.generation + 1)

    def _tell_first(self, entry: Entry, found: Found) -> None:
        """Write down when a schedule was first accepted, before its row goes."""
        if found.generation == 1:
            entry.note(found.accepted, "accepted", due=first_due(found.terms, found.n, found.due))

    def _change(self, command: Cancel | Pause | Resume | Fire, entry: Entry) -> Outcome:
        found = entry.now
        if found is None:
            return self._unknown(command.id)
        if (refusal := self._owned(command, found)) is not None:
            return refusal
        if found.state in FINISHED:
            return self._too_late(found)
        match command:
            case Cancel():
                return self._cancel(entry, found)
            case Pause():
                return self._pause(entry, found)
            case Resume():
                return self._resume(entry, found, command.missed)
            case Fire():
                return self._fire(entry, found)
            case _:
                assert_never(command)

    def _cancel(self, entry: Entry, found: Found) -> Outcome:
        entry.withdraw()
        entry.now = msgspec.structs.replace(
            found, table="finished", state="cancelled", at=self._now, reason=None, message=None, terms=None
        )
        entry.note(self._now, "cancelled")
        return Outcome(found.id, "cancelled", found.due, note=noted(found.terms, found.n))

    def _pause(self, entry: Entry, found: Found) -> Outcome:
        if found.state == "pending":
            terms = found.terms or Terms(Once(found.due), lateness_of(found) or Lateness(), 0)
            entry.now = msgspec.structs.replace(found, table="standing", state="paused", terms=terms)
            entry.note(self._now, "paused")
        return Outcome(found.id, "paused", found.due, note=noted(found.terms, found.n))

    def _resume(self, entry: Entry, found: Found, missed: Policy | None) -> Outcome:
        if found.state == "pending":
            return self._unchanged(found)
        assert found.terms is not None, "what is paused has its terms"
        terms = found.terms.pardoned(missed, self._now)
        entry.now = msgspec.structs.replace(found, state="pending", terms=terms)
        entry.note(self._now, "resumed")
        return answer(found.id, "resumed", ahead(terms, found.n, found.due, self._now))

    def _fire(self, entry: Entry, found: Found) -> Outcome:
        if _recurs(found):
            entry.note(self._now, "fired")
            self._fire_extra(entry, found)
        else:
            self._tell_first(entry, found)
            entry.note(self._now, "fired")
            entry.now = msgspec.structs.replace(
                found, table="timeline", state="pending", due=self._now, n=1, deadline=None, reason=None, terms=None
            )
        return Outcome(found.id, "fired", self._now)

    def _fire_extra(self, entry: Entry, found: Found) -> None:
        """One more record of a recurring schedule, which goes on unchanged."""
        entry.now = msgspec.structs.replace(found, fires=found.fires + 1)
        extra = msgspec.structs.replace(
            found, table="timeline", state="pending", arrival=self._arrive(), due=self._now, n=-(found.fires + 1)
        )
        extra.deadline = extra.reason = extra.terms = None
        entry.fired.append(extra)

    def _too_late(self, found: Found) -> Outcome:
        """The answer to a change of a finished schedule."""
        match found.state:
            case "released" | "ended" if found.flying:
                return Outcome(found.id, "in_flight", found.due, "in_flight")
            case "released" | "ended":
                return Outcome(found.id, "already_released", found.due, found.state)
            case "cancelled":
                return Outcome(found.id, "cancelled", found.due, found.state)
            case _:
                return Outcome(found.id, "rejected", found.due, found.state, f"it was missed: {found.reason}")

    def _unchanged(self, found: Found) -> Outcome:
        terms = found.terms if found.state == "pending" else None
        return answer(found.id, "unchanged", ahead(terms, found.n, found.due, self._now), found.state)

    def _unknown(self, schedule_id: str) -> Outcome:
        return Outcome(schedule_id, "unknown", remembered_since=max(self._created, self._remembered))


def _pending(found: Found) -> Pending | None:
    """What is pending of a recurring schedule."""
    if found.terms is None or is_once(found.terms.when):
        return None
    return Pending(found.terms.when, found.n, found.due - found.terms.jitter_us)


def _recurs(found: Found) -> bool:
    return found.terms is not None and not is_once(found.terms.when)


def new_id(arrival: int, add: Add) -> Add:
    """A schedule under an id that Tidings makes."""
    return msgspec.structs.replace(add, id=make_id(arrival, add.due, add.priority))
