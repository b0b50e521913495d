"""What a command changes, and the truthful answer to it."""

from collections.abc import Callable
from typing import assert_never

import msgspec

from tidings.domain import ownership
from tidings.domain.command import (
    Add,
    Cancel,
    Command,
    Fire,
    Outcome,
    OutcomeWord,
    Pause,
    Replace,
    Resume,
    State,
    overlong,
)
from tidings.domain.lateness import Lateness, Policy
from tidings.domain.ownership import Current
from tidings.domain.revising import Pending, calendar_of
from tidings.domain.schedule import MADE_ID, Event
from tidings.domain.when import Once, is_once
from tidings.timeline.dating import ahead, answer, continued, dated, noted, uncounted
from tidings.timeline.memory.rows import Row, Rows
from tidings.timeline.terms import Terms

_TAKEN = "the id belongs to a schedule with other content: choose another id, or replace that schedule"


class Changes:
    """Applies commands to the schedules, one after the other."""

    def __init__(self, rows: Rows, days_of: Callable[[str, str], tuple[int, ...] | None]) -> None:
        self._rows = rows
        self._days_of = days_of

    def apply(self, command: Command, now: int) -> Outcome:
        """Do what the command asks, if the schedule's state allows it, and say what happened."""
        match command:
            case Add():
                return overlong(command) or self._add(command, now)
            case Replace():
                return overlong(command.add) or self._replace(command, now)
            case Cancel() | Pause() | Resume() | Fire():
                return self._change(command, now)
            case _:
                assert_never(command)

    def _add(self, add: Add, now: int) -> Outcome:
        row = self._find(add, now)
        if row is None:
            return self._schedule(add, now)
        if row.add.content == add.content:
            return _unchanged(row, now)
        if (refusal := _refusal(add, row)) is not None:
            return refusal
        if row.is_finished:
            return self._schedule(add, now, row) if add.reuse else self._too_late(row)
        return Outcome(row.id, "rejected", state=row.state, reason=_TAKEN)

    def _replace(self, replace: Replace, now: int) -> Outcome:
        row = self._find(replace.add, now)
        refusal = uncounted(replace, finished=row is not None and row.is_finished)
        if refusal is not None:
            return refusal
        if row is None:
            return self._new(replace.add, now)
        if (owned := _refusal(replace, row)) is not None:
            return owned
        if row.is_finished:
            return self._schedule(replace.add, now, row) if replace.reuse else self._too_late(row)
        if row.add.content == replace.add.content:
            return _unchanged(row, now)
        return self._replace_pending(row, replace, now)

    def _new(self, add: Add, now: int) -> Outcome:
        """Only the store gives out ids of its own form."""
        if add.id is not None and MADE_ID.match(add.id):
            return Outcome(add.id, "unknown", remembered_since=self._rows.remembered_since(now))
        return self._schedule(add, now)

    def _schedule(self, asked: Add, now: int, before: Row | None = None) -> Outcome:
        add = self._dated(asked)
        if isinstance(add, Outcome):
            return add
        if before is not None:
            self._rows.withdraw(before, fires=True)
        row = self._rows.begin(add, now, before)
        row.note(Event(now, "accepted", due=row.due))
        self._rows.hold(row)
        return _answer(row, "scheduled", now)

    def _dated(self, add: Add) -> Add | Outcome:
        calendar = calendar_of(add.when)
        return add if calendar is None else dated(add, self._days_of(add.tenant, calendar))

    def _replace_pending(self, old: Row, replace: Replace, now: int) -> Outcome:
        add, number = self._dated(replace.add), 1
        if isinstance(add, Add) and replace.keep_count and not is_once(old.terms.when):
            number = old.number
            add = continued(add, Pending(old.terms.when, number, old.due - old.terms.jitter_us), now)
        if isinstance(add, Outcome):
            return add
        self._rows.withdraw(old, fires=True)
        row = self._rows.begin(add, now, old, number)
        row.note(Event(now, "replaced", due=row.due))
        if old.state == "paused":
            row.state = "paused"
        else:
            self._rows.hold(row)
        return _answer(row, "replaced", now)

    def _change(self, command: Cancel | Pause | Resume | Fire, now: int) -> Outcome:
        row = self._rows.known(command.tenant, command.id, now)
        if row is None:
            return Outcome(command.id, "unknown", remembered_since=self._rows.remembered_since(now))
        if (refusal := _refusal(command, row)) is not None:
            return refusal
        if row.is_finished:
            return self._too_late(row)
        match command:
            case Cancel():
                return self._cancel(row, now)
            case Pause():
                return self._pause(row, now)
            case Resume():
                return self._resume(row, now, command.missed)
            case Fire():
                return self._fire(row, now)
            case _:
                assert_never(command)

    def _cancel(self, row: Row, now: int) -> Outcome:
        self._rows.withdraw(row, fires=True)
        self._rows.finish(row, "cancelled", now)
        row.note(Event(now, "cancelled"))
        return Outcome(row.id, "cancelled", due=row.due, note=noted(row.terms, row.number))

    def _pause(self, row: Row, now: int) -> Outcome:
        if row.state != "paused":
            self._rows.withdraw(row, fires=False)
            row.state = "paused"
            row.note(Event(now, "paused"))
        return Outcome(row.id, "paused", due=row.due, note=noted(row.terms, row.number))

    def _resume(self, row: Row, now: int, missed: Policy | None) -> Outcome:
        if row.state != "paused":
            return _unchanged(row, now)
        row.state, row.terms = "pending", row.terms.pardoned(missed, now)
        row.note(Event(now, "resumed"))
        self._rows.hold(row)
        return _answer(row, "resumed", now)

    def _fire(self, row: Row, now: int) -> Outcome:
        """What is fired leaves at the next release, however late that is: no lateness policy applies to it."""
        row.note(Event(now, "fired"))
        if is_once(row.terms.when):
            self._rows.withdraw(row, fires=False)
            row.terms = Terms(Once(now), Lateness(), 0)
            row.add = msgspec.structs.replace(row.add, when=row.terms.when, lateness=Lateness())
            row.state, row.due = "pending", now
            self._rows.hold(row)
        else:
            self._rows.hold_fire(row, now)
        return Outcome(row.id, "fired", due=now)

    def _too_late(self, row: Row) -> Outcome:
        """The answer to every change of what is finished."""
        if self._rows.in_flight(row):
            return Outcome(row.id, "in_flight", state="in_flight")
        word = _word(row.state)
        reason = f"it was missed ({row.reason})" if word == "rejected" else None
        return Outcome(row.id, word, state=row.state, reason=reason)

    def _find(self, add: Add, now: int) -> Row | None:
        return None if add.id is None else self._rows.known(add.tenant, add.id, now)


def _refusal(command: Command, row: Row) -> Outcome | None:
    return ownership.refusal(command, Current(row.id, row.add.topic, row.state, row.due, row.add.message))


def _answer(row: Row, word: OutcomeWord, now: int) -> Outcome:
    return answer(row.id, word, ahead(row.terms, row.number, row.due, now))


def _unchanged(row: Row, now: int) -> Outcome:
    if row.state == "pending":
        return _answer(row, "unchanged", now)
    return Outcome(row.id, "unchanged", due=row.due, state=row.state)


def _word(state: State) -> OutcomeWord:
    match state:
        case "released" | "ended":
            return "already_released"
        case "cancelled":
            return "cancelled"
        case "missed":
            return "rejected"
        case "pending" | "paused" | "in_flight":
            raise AssertionError(f"{state} is not finished")
        case _:
            assert_never(state)
