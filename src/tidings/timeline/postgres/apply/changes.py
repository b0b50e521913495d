"""Applies commands to the loaded rows in memory; they are written at the end of the transaction."""

from collections.abc import Callable
from typing import assert_never
from zlib import crc32

import msgspec

from tidings.domain.changes import (
    Begin,
    Continue,
    Current,
    Decided,
    Effect,
    Finish,
    FireExtra,
    FireOnce,
    Hold,
    Remove,
    decide,
    refusal,
)
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.domain.schedules.lateness import deadline
from tidings.domain.schedules.reschedule import calendar_of
from tidings.domain.schedules.schedule import Event, is_kafka, make_id
from tidings.timeline.postgres.apply.unit_of_work import Found, ScheduleRow
from tidings.timeline.postgres.calendars import Days
from tidings.timeline.postgres.names import TO_KAFKA, Names
from tidings.timeline.store_rules import current_of, topic_refusal


class Changes:
    """Applies commands to rows in memory."""

    def __init__(
        self,
        names: Names,
        *,
        parts: int,
        arrive: Callable[[], int],
        now: int,
        remembered: int,
        created: int,
        days: Days,
    ) -> None:
        self._days = days
        self._names = names
        self._parts = parts
        self._arrive = arrive
        self._now = now
        self._remembered = remembered
        self._created = created

    def run(self, command: Command, entry: ScheduleRow) -> Outcome:
        """Apply one command to the row of its id."""
        found = entry.now
        if found is not None and found.at is not None and found.at <= self._remembered:
            found = entry.now = None  # the id is forgotten, even if its row is not deleted yet
        change = self._decide(command, None if found is None else _current(found, entry, self._names))
        for effect in change.effects:
            self._apply(effect, entry, found)
        return change.outcome

    def make(self, add: Add, entry_of: Callable[[Add], ScheduleRow]) -> Outcome:
        """Add a schedule whose id the store makes."""
        change = self._decide(add, None)
        for effect in change.effects:
            assert isinstance(effect, Begin), "a new id has no schedule yet"
            arrival = self._arrive()
            named = new_id(arrival, effect.add)
            entry = entry_of(named)
            entry.now = self._row(msgspec.structs.replace(effect, add=named), entry.lane, arrival)
            return msgspec.structs.replace(change.outcome, id=entry.now.id)
        return change.outcome

    def _decide(self, command: Command, current: Current | None) -> Decided:
        add = command.add if isinstance(command, Replace) else command
        calendar = calendar_of(add.when) if isinstance(add, Add) else None
        days = None if calendar is None else self._days.get((add.tenant, calendar))
        since = max(self._created, self._remembered)
        return decide(command, current, self._now, days=days, remembered_since=since)

    def _apply(self, effect: Effect, entry: ScheduleRow, found: Found | None) -> None:
        if isinstance(effect, Begin):
            entry.now = self._row(effect, entry.lane, self._arrive())
            return
        assert found is not None, "only a schedule that is known can change"
        replace = msgspec.structs.replace
        match effect:
            case Event():
                entry.notes.append(effect)
            case Remove():
                entry.withdraw()
            case Finish():
                entry.withdraw()
                ended = {"table": "finished", "state": effect.state, "at": self._now}
                entry.now = replace(found, **ended, reason=None, message=None, terms=None)
            case Hold():
                entry.now = replace(found, table="standing", state="paused", terms=effect.terms)
            case Continue():
                entry.now = replace(found, state="pending", terms=effect.terms)
            case FireOnce():
                fired = {"table": "timeline", "state": "pending", "arrival": self._arrive(), "due": self._now, "n": 1}
                entry.now = replace(found, **fired, deadline=None, reason=None, terms=None)
            case FireExtra():
                self._fire_extra(entry, found)
            case _:
                assert_never(effect)

    def _row(self, begin: Begin, lane: int, arrival: int) -> Found:
        add = begin.add
        assert add.id is not None, "`make` has set the id"
        bound = deadline(add.due, add.lateness)
        hashed = crc32(add.id.encode()) if add.key_hash is None else add.key_hash
        part = TO_KAFKA if is_kafka(add.topic) else lane * self._parts + hashed % self._parts
        return Found(
            table="timeline" if begin.terms is None else "standing",
            arrival=arrival,
            due=add.due,
            lane=lane,
            stream=self._names.stream(add.tenant, add.priority, add.topic),
            topic=self._names.topic(add.tenant, add.topic),
            part=part,
            generation=begin.generation,
            n=begin.n,
            accepted=self._now,
            content=add.content,
            id=add.id,
            labels=add.labels,
            state="paused" if begin.paused else "pending",
            message=add.message,
            deadline=None if bound is None else bound[0],
            reason=None if bound is None else bound[1],
            terms=begin.terms,
        )

    def _fire_extra(self, entry: ScheduleRow, found: Found) -> None:
        entry.now = msgspec.structs.replace(found, fires=found.fires + 1)
        extra = msgspec.structs.replace(
            found, table="timeline", state="pending", arrival=self._arrive(), due=self._now, n=-(found.fires + 1)
        )
        extra.deadline = extra.reason = extra.terms = None
        entry.fired.append(extra)


def refusal_of(command: Command, names: Names) -> Outcome | None:
    """The rejection of a command before anything is looked up: because of a name, or of too many topics."""
    return refusal(command) or topic_refusal(command, names.may_open)


def _current(found: Found, entry: ScheduleRow, names: Names) -> Current:
    is_apart = found.part != TO_KAFKA or found.state in {"released", "missed"}
    topic = names.destination(found.topic)[1]
    return current_of(found, topic, leaving=found.flying, in_flight=None if is_apart else entry.in_flight)


def new_id(arrival: int, add: Add) -> Add:
    """The schedule with an id made by Tidings."""
    return msgspec.structs.replace(add, id=make_id(arrival, add.due, add.priority))
