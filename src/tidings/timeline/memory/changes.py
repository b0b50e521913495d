"""Commands on the schedules in memory: what is decided is applied to their rows."""

from collections.abc import Callable
from typing import assert_never

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
    refusal,
)
from tidings.domain.schedules.command import Add, Command, Outcome, Replace, address
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.recurrence_state import single
from tidings.domain.schedules.reschedule import calendar_of
from tidings.domain.schedules.schedule import Event
from tidings.timeline.memory.rows import Row, Rows


class Changes:
    """Applies commands to the schedules, one after the other."""

    def __init__(self, rows: Rows, days_of: Callable[[str, str], tuple[int, ...] | None]) -> None:
        self._rows = rows
        self._days_of = days_of

    def apply(self, command: Command, now: int) -> Outcome:
        """Apply one command, and answer it."""
        if (refused := refusal(command)) is not None:
            return refused
        tenant, schedule_id = address(command)
        row = None if schedule_id is None else self._rows.known(tenant, schedule_id, now)
        change = decide(
            command,
            None if row is None else self._current(row),
            now,
            days=self._days(command),
            remembered_since=self._rows.remembered_since(now),
        )
        outcome = change.outcome
        for effect in change.effects:
            if isinstance(effect, Begin):
                row = self._rows.begin(effect, now, row)
                outcome = msgspec.structs.replace(outcome, id=row.id)
            else:
                assert row is not None, "only a schedule that is known can change"
                self._apply(effect, row, now)
        return outcome

    def _days(self, command: Command) -> tuple[int, ...] | None:
        add = command.add if isinstance(command, Replace) else command
        calendar = calendar_of(add.when) if isinstance(add, Add) else None
        return None if calendar is None else self._days_of(add.tenant, calendar)

    def _current(self, row: Row) -> Current:
        return Current(
            id=row.id,
            state=row.state,
            content=row.add.content,
            generation=row.generation,
            n=row.number,
            due=row.due,
            accepted=row.accepted,
            terms=None if row.is_finished else row.terms,
            topic=row.add.topic,
            message=row.add.message,
            finished=row.finished,
            reason=row.reason,
            leaving=self._rows.in_flight(row),
            in_flight=self._rows.latest_in_flight(row),
        )

    def _apply(self, effect: Effect, row: Row, now: int) -> None:
        match effect:
            case Event():
                row.note(effect)
            case Remove():
                self._rows.withdraw(row, fires=True)
            case Finish():
                self._rows.withdraw(row, fires=True)
                self._rows.finish(row, effect.state, now)
            case Hold():
                self._rows.withdraw(row, fires=False)
                row.state, row.terms = "paused", effect.terms
            case Continue():
                row.state, row.terms = "pending", effect.terms
                self._rows.hold(row)
            case FireOnce():
                self._rows.withdraw(row, fires=False)
                row.terms, row.state, row.number, row.due = single(now, Lateness()), "pending", 1, now
                self._rows.arrive(row)
                self._rows.hold(row)
            case FireExtra():
                self._rows.hold_fire(row, now)
            case Begin():
                raise AssertionError("a new row is begun before")
            case _:
                assert_never(effect)
