"""Decides every command: its outcome, and the effects that a store applies.

A store loads what it has under the id (`Current`), calls `decide`, and applies the effects in order, inside one
transaction. Nothing here does any I/O, so that all stores give the same outcomes.

A schedule can belong to a notification: the schedule has the notification's id, and each further attempt has a schedule
of its own, whose message only names the notification. A change that replaced it, or cancelled it without its
deliveries, would leave a notification that stays `pending` for ever, so it is refused. Pause, resume and fire only
change when it is released: they are accepted.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, assert_never

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import BELONGED, BELONGS, NOT_RELEASED, check_storable, check_storable_id
from tidings.domain.notifications.notification import TOPICS, DeliveryJob
from tidings.domain.recurrence.local_time import is_swallowed
from tidings.domain.recurrence.preview import late_start_note, moved_note, swallowed_note
from tidings.domain.schedules.command import (
    FINISHED,
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
    refused,
)
from tidings.domain.schedules.lateness import CATCH_UP_MAX, Policy
from tidings.domain.schedules.recurrence_state import RecurrenceState, terms_of
from tidings.domain.schedules.reschedule import Pending, calendar_of, in_zone, passed, with_days
from tidings.domain.schedules.schedule import MADE_ID, Event, Schedule, unpack
from tidings.domain.schedules.when import LAST_INSTANT, SECOND_US, Cron, Once, Rule, is_once, lasts, occurrence
from tidings.domain.schedules.when import continued as when_continued

HISTORY_LINES_MAX = 100  # of which a store keeps the latest; more may wait to be trimmed
_BY_RELEASE = frozenset({"released", "missed", "ended"})

_decode = msgspec.json.Decoder(DeliveryJob).decode

_NO_REUSE = f"{BELONGED}: use another id"
_ID_IN_USE = "this id holds another schedule: replace it, cancel it, or use another id"


def change_refused(command: Command, schedule_id: str, state: State, topic: str, message: bytes | None) -> str | None:
    """Why a command must not change this schedule, None if it may. `message` is packed, None once it is gone."""
    if topic not in TOPICS:
        return None
    if state in FINISHED:
        return _reused(command)
    owner = owner_of(topic, message)
    return None if owner is None else _cut_off(command, schedule_id, owner)


def replacement_refused(schedule: Schedule) -> Outcome | None:
    """The refusal to replace the schedule of a notification by itself; None if it belongs to none."""
    if schedule.topic not in TOPICS:
        return None
    if schedule.state in FINISHED:
        words: dict[State, OutcomeWord] = {"cancelled": "cancelled", "missed": "rejected"}
        word = words.get(schedule.state, "already_released")
        return Outcome(schedule.id, word, schedule.due, schedule.state, _NO_REUSE)
    owner = owner_of(schedule.topic, schedule.message)
    reason = None if owner is None else _replaced_instead(owner)
    return None if reason is None else Outcome(schedule.id, "rejected", schedule.due, schedule.state, reason)


def _replaced_instead(owner: str) -> str:
    instead = f"DELETE /v1/notifications/{owner} or `tidings notifications cancel {owner}`"
    change = f"change it (PATCH /v1/notifications/{owner}), or replace it (PUT /v1/notifications/{owner})"
    return f"{BELONGS} {owner!r}: cancel the notification ({instead}), {change}"


def owner_of(topic: str, message: bytes | None) -> str | None:
    """The id of the notification that a schedule belongs to; None if it belongs to none."""
    if topic not in TOPICS or message is None:
        return None
    try:
        return _decode(unpack(message).value or b"").notification
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _reused(command: Command) -> str | None:
    """Refuse to reuse a finished id: its notification may have deliveries that wait for another attempt."""
    if isinstance(command, Replace) and command.with_deliveries:
        return None
    if isinstance(command, Add | Replace) and command.reuse:
        return _NO_REUSE
    return None


def _cut_off(command: Command, schedule_id: str, owner: str) -> str | None:
    belongs = f"{BELONGS} {owner!r}"
    instead = f"DELETE /v1/notifications/{owner} or `tidings notifications cancel {owner}`"
    match command:
        case Add():
            return f"{belongs}: use another id"
        case Replace():
            if command.with_deliveries:
                return None
            return _replaced_instead(owner)
        case Cancel():
            return None if command.with_deliveries else f"{belongs}: cancel the notification ({instead})"
        case Pause() | Resume() | Fire():
            if schedule_id == owner:
                return None
            return f"{belongs}, as another attempt to deliver it: cancel the notification ({instead})"
        case _:
            assert_never(command)


class Current(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a store has under an id, as far as a decision depends on it.

    `n` and `due` belong to the pending occurrence, or to the last one of a finished schedule; `finished` is when it
    finished. `topic` and the packed `message` tell whether it belongs to a notification. `leaving`: the record of a
    one-shot is in the outbox and not known to be on Kafka. `in_flight`: the number of the latest occurrence of a
    recurring schedule that is in the same situation.
    """

    id: str
    state: State
    content: bytes
    generation: int
    n: int
    due: int
    accepted: int
    terms: RecurrenceState | None
    topic: str
    message: bytes | None
    finished: int | None = None
    reason: str | None = None
    leaving: bool = False
    in_flight: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED


class Begin(msgspec.Struct, frozen=True, gc=False):
    """Store a schedule, with occurrence n as its pending one. If it has no id, the store makes one.

    Without terms it is a one-shot that is not paused.
    """

    add: Add
    terms: RecurrenceState | None
    generation: int = 1
    n: int = 1
    paused: bool = False


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Remove the current schedule, and its fired records that are not released yet."""


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The same, and remember how it finished."""

    state: Literal["cancelled"]


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Take the pending occurrence off the timeline; the schedule is paused with these terms."""

    terms: RecurrenceState


class Continue(msgspec.Struct, frozen=True, gc=False):
    """Put the pending occurrence of a paused schedule back onto the timeline, with these terms."""

    terms: RecurrenceState


class FireOnce(msgspec.Struct, frozen=True, gc=False):
    """Release the one-shot now instead of at its due time, whatever its lateness policy. It gets a new arrival."""


class FireExtra(msgspec.Struct, frozen=True, gc=False):
    """Release one more record of a recurring schedule now, whatever its lateness policy."""


Effect = Event | Begin | Remove | Finish | Hold | Continue | FireOnce | FireExtra


class Decided(NamedTuple):
    """The outcome of a command, and the effects to apply; an `Event` is a line of the schedule's history."""

    outcome: Outcome
    effects: tuple[Effect, ...] = ()


class NextOccurrence(NamedTuple):
    """The next occurrence that can be released, as far as is known. `note` says why others cannot be."""

    number: int
    due: int
    note: str | None = None


def refusal(command: Command) -> Outcome | None:
    """The rejection of a command whose names no store can hold, or None. Called before anything is looked up."""
    add = command.add if isinstance(command, Replace) else command
    try:
        if add.id is not None:
            check_storable_id(add.id)
        check_storable(add.tenant, "tenant")
        if isinstance(add, Add):
            check_storable(add.topic, "topic")
    except Invalid as invalid:
        return refused(_printable(add.id), invalid)
    return None


def latest_in_flight(records: Iterable[tuple[int, int]]) -> int | None:
    """The number to report of records in flight, each (generation, number): the last occurrence, else the last fired.

    It does not depend on the order in which a store released them.
    """
    return max(records, key=lambda each: (each[0], each[1] > 0, abs(each[1])), default=(0, None))[1]


def decide(
    command: Command,
    current: Current | None,
    now: int,
    *,
    days: tuple[int, ...] | None = None,
    remembered_since: int = 0,
) -> Decided:
    """Decide one command at `now`.

    `days` are those of the calendar that the command names, None if there is no such calendar. `current` is None if the
    id is unknown, or finished before `remembered_since`.
    """
    try:
        match command:
            case Add():
                return _add(command, current, now, days)
            case Replace():
                return _replace(command, current, now, days, remembered_since)
            case Cancel() | Pause() | Resume() | Fire():
                return _change(command, current, now, remembered_since)
            case _:
                assert_never(command)
    except Invalid as invalid:
        add = command.add if isinstance(command, Replace) else command
        return Decided(refused(add.id, invalid))


def _owned(command: Command, current: Current) -> Decided | None:
    """The refusal of a command that would separate a notification from its schedule."""
    reason = change_refused(command, current.id, current.state, current.topic, current.message)
    return None if reason is None else Decided(Outcome(current.id, "rejected", current.due, current.state, reason))


# New schedules


def _add(add: Add, current: Current | None, now: int, days: tuple[int, ...] | None) -> Decided:
    if current is None:
        return _begin(_checked(add, days), now)
    if current.content == add.content:
        return Decided(_unchanged(current, now))
    if (owned := _owned(add, current)) is not None:
        return owned
    if current.is_finished:
        return _reuse(add, current, now, days) if add.reuse else Decided(_too_late(current))
    return Decided(Outcome(current.id, "rejected", current.due, current.state, _ID_IN_USE))


def _begin(add: Add, now: int, generation: int = 1, *, paused: bool = False) -> Decided:
    terms = None if isinstance(add.when, Once) and not paused else terms_of(add)
    outcome = _begun(add, add.id or "", "scheduled", next_occurrence(terms, 1, add.due, now))
    return Decided(outcome, (Begin(add, terms, generation, paused=paused),))


def _reuse(asked: Add | Replace, current: Current, now: int, days: tuple[int, ...] | None) -> Decided:
    """Begin a new generation of a finished id; the old one remains in the history only."""
    replace = asked if isinstance(asked, Replace) else Replace(asked)
    add, generation = _checked(replace.add, days), max(current.generation + 1, replace.generation_min)
    lines = [*_first_line(current), Event(now, "accepted", due=add.due)]
    if current.state in {"released", "missed"}:
        at = current.finished or 0
        lines.insert(-1, Event(at, current.state, current.n, current.due, current.reason))
    outcome, begin = _begin(add, now, generation, paused=replace.paused)
    return Decided(outcome, (Remove(), *lines, *begin))


def _replace(
    replace: Replace, current: Current | None, now: int, days: tuple[int, ...] | None, remembered_since: int
) -> Decided:
    add = replace.add
    assert add.id is not None, "a replacement has an id"
    _check_count(replace, finished=current is not None and current.is_finished)
    if current is None:
        if MADE_ID.match(add.id):  # only the store makes ids of this form
            return Decided(_unknown(add.id, remembered_since))
        return _begin(_checked(add, days), now, replace.generation_min, paused=replace.paused)
    if (owned := _owned(replace, current)) is not None:
        return owned
    if current.is_finished:
        if not replace.reuse:
            return Decided(_too_late(current))
        return _reuse(replace, current, now, days)
    if current.content == add.content:
        return Decided(_unchanged(current, now))
    terms = _terms(current)
    pending = Pending(terms.when, current.n, current.due - terms.jitter_us)
    if replace.zone is not None:
        return _move(replace.add, replace.zone, pending, current, now)
    keeps = replace.keep_count and terms.recurs
    checked = _checked(add, days)
    new = _continued(checked, pending, now) if keeps else checked
    if new is None:
        reason = f"count: {current.n - 1:,} were released already and count: give more, or leave keep_count out"
        return Decided(Outcome(add.id, "rejected", reason=reason))
    return _replace_pending(new, current, now, current.n if keeps else 1)


def _move(add: Add, zone: str, pending: Pending, current: Current, now: int) -> Decided:
    """Move a pending schedule to another time zone, if that changes anything; its jitter stays."""
    moved = in_zone(pending, zone, now)
    if moved is None or moved.due is None:
        return Decided(_unchanged(current, now))
    exact = occurrence(pending.when, pending.n)
    assert exact is not None, "a pending occurrence has a time"
    jitter_us = current.due - (exact - exact % SECOND_US)  # the moved time has whole seconds
    new = msgspec.structs.replace(add, when=moved.when, due=moved.due + jitter_us, jitter_us=jitter_us)
    return _replace_pending(new, current, now, moved.n)


def _replace_pending(add: Add, current: Current, now: int, n: int) -> Decided:
    paused = current.state == "paused"
    plain = isinstance(add.when, Once)
    terms = None if plain and not paused else terms_of(add)
    outcome = _begun(add, current.id, "replaced", next_occurrence(None if plain else terms, n, add.due, now))
    return Decided(
        msgspec.structs.replace(outcome, state="paused" if paused else None, in_flight=current.in_flight),
        (
            Remove(),
            *_first_line(current),
            Event(now, "replaced", due=add.due),
            Begin(add, terms, current.generation + 1, n, paused),
        ),
    )


def _checked(add: Add, days: tuple[int, ...] | None) -> Add:
    """The schedule that is about to begin, with the days of its calendar filled in.

    Raises `Invalid` if its time is in the past and that is refused, or if its calendar leaves no time for it.
    """
    add.check_past()
    name = calendar_of(add.when)
    if name is None:
        return add
    if days is None:
        raise Invalid("calendar", f"there is no calendar {name!r}: create it first, or leave it out")
    when = with_days(add.when, days)
    due = occurrence(when, 1)
    if due is None:
        raise Invalid("calendar", f"{name!r} leaves no occurrence: change its days, or the rule")
    if add.latest is not None and due > add.latest:
        detail = f"{name!r} moves the first occurrence behind limits.horizon: change its days, or the rule"
        raise Invalid("calendar", detail)
    return msgspec.structs.replace(add, when=when, due=due + add.jitter_us)


def _check_count(replace: Replace, *, finished: bool) -> None:
    """Raise `Invalid` if `keep_count` is set where there is no count to keep."""
    if not replace.keep_count:
        return
    if is_once(replace.add.when):
        raise Invalid("keep_count", "goes with a recurring one, and this is a single moment: leave it out")
    if finished and replace.reuse:
        detail = "the schedule under this id has finished: leave keep_count out to start a new count"
        raise Invalid("keep_count", detail)


def _continued(add: Add, pending: Pending, now: int) -> Add | None:
    """The schedule continued from the pending number, after the times that have passed; None if none is left."""
    n = pending.n
    if is_once(add.when) or n == 1:
        return add
    when = when_continued(add.when, n, passed(pending, now))
    due = occurrence(when, n)
    return None if due is None else msgspec.structs.replace(add, when=when, due=due + add.jitter_us)


def _first_line(current: Current) -> list[Event]:
    """The history line of when a schedule was accepted. Its row says so; the line is needed once the row is removed."""
    if current.generation > 1:
        return []
    return [Event(current.accepted, "accepted", due=_first_due(current))]


def _first_due(current: Current) -> int | None:
    """The due time with which a schedule was accepted; None if it is not known any more."""
    terms = current.terms
    if terms is None or not terms.recurs:
        return current.due if current.n == 1 and (terms is None or not terms.revised) else None
    return None if terms.revised else terms.due(1)


# Changes of an existing schedule


def _change(
    command: Cancel | Pause | Resume | Fire, current: Current | None, now: int, remembered_since: int
) -> Decided:
    if current is None:
        return Decided(_unknown(command.id, remembered_since))
    if (owned := _owned(command, current)) is not None:
        return owned
    if isinstance(command, Cancel) and current.state == "cancelled":
        return Decided(Outcome(current.id, "cancelled", current.due, in_flight=current.in_flight))
    if current.is_finished:
        return Decided(_too_late(current))
    match command:
        case Cancel():
            return Decided(_pending_outcome(current, "cancelled"), (Finish("cancelled"), Event(now, "cancelled")))
        case Pause():
            held = (Hold(_terms(current)), Event(now, "paused"))
            return Decided(_pending_outcome(current, "paused"), held if current.state == "pending" else ())
        case Resume():
            return _resume(current, now, command.missed)
        case Fire():
            return _fire(current, now)
        case _:
            assert_never(command)


def _pending_outcome(current: Current, word: OutcomeWord) -> Outcome:
    note = timing_note(_terms(current), current.n)
    return Outcome(current.id, word, current.due, in_flight=current.in_flight, note=note)


def _resume(current: Current, now: int, missed: Policy | None) -> Decided:
    if current.state == "pending":
        return Decided(msgspec.structs.replace(_unchanged(current, now), in_flight=current.in_flight))
    terms = _terms(current).pardoned(missed, now)
    upcoming = next_occurrence(terms, current.n, current.due, now)
    outcome = Outcome(current.id, "resumed", upcoming.due, in_flight=current.in_flight, note=upcoming.note)
    return Decided(outcome, (Continue(terms), Event(now, "resumed")))


def _fire(current: Current, now: int) -> Decided:
    outcome, line = Outcome(current.id, "fired", now, in_flight=current.in_flight), Event(now, "fired")
    if _terms(current).recurs:
        return Decided(outcome, (line, FireExtra()))
    return Decided(outcome, (*_first_line(current), line, FireOnce()))


# Outcomes


def next_occurrence(terms: RecurrenceState | None, n: int, due: int, now: int | None) -> NextOccurrence:
    """The next occurrence that can be released while n is pending for `due`; without terms that is n.

    An overdue one may be too late to be released: the result is then the next one. Lists pass no `now`, because they
    are sorted by the pending occurrence.
    """
    if terms is None or now is None:
        return NextOccurrence(n, due)
    if due > now or is_swallowed(terms.when):
        return NextOccurrence(n, due, timing_note(terms, n))
    note: str | None = None
    decision = terms.decide(n, now)
    number = decision.next if decision.release is None else decision.release
    if number is None and decision.missed:
        number, reason = decision.missed[-1].last, decision.missed[-1].reason
        note = f"it is overdue and {NOT_RELEASED} ({reason})"
    elif cut := [missed for missed in decision.missed if missed.reason == "catch_up_max"]:
        many = sum(missed.last - missed.first + 1 for missed in cut)
        note = f"{many:,} of what is overdue will be counted as missed (catch_up_max)"
        note = f"{note}: at most the latest {CATCH_UP_MAX:,} leave at once"
    at = None if number is None else terms.due(number)
    return NextOccurrence(n, due) if number is None or at is None else NextOccurrence(number, at, note)


def timing_note(terms: RecurrenceState, n: int) -> str | None:
    """A note on the times of a schedule for its owner, such as a DST gap that moves an occurrence."""
    late_start = late_start_note(terms.when) if n == 1 else None
    return swallowed_note(terms.when) or moved_note(terms.when) or late_start


def _outcome(schedule_id: str, word: OutcomeWord, upcoming: NextOccurrence, state: State | None = None) -> Outcome:
    return Outcome(schedule_id, word, upcoming.due, state, note=upcoming.note)


def _begun(add: Add, schedule_id: str, word: OutcomeWord, upcoming: NextOccurrence) -> Outcome:
    """The outcome of a schedule that begins. A note on the time that was asked for goes before one on the rule."""
    return Outcome(schedule_id, word, upcoming.due, note=upcoming.note if add.note is None else add.note)


def _unchanged(current: Current, now: int) -> Outcome:
    terms = current.terms if current.state == "pending" else None
    upcoming = next_occurrence(terms, current.n, current.due, now)
    return _outcome(current.id, "unchanged", upcoming, current.state)


def _too_late(current: Current) -> Outcome:
    """The answer to a change of a finished schedule; the reason says that the id of a notification is not reused."""
    belonged = _NO_REUSE if current.topic in TOPICS else None
    match current.state:
        case "released" | "ended" if current.leaving or current.in_flight is not None:
            return Outcome(current.id, "in_flight", current.due, "in_flight", in_flight=current.in_flight)
        case "released" | "ended":
            return Outcome(current.id, "already_released", current.due, current.state, belonged)
        case "cancelled":
            return Outcome(current.id, "cancelled", current.due, current.state, belonged, in_flight=current.in_flight)
        case "missed" if belonged is not None:
            return Outcome(current.id, "rejected", current.due, current.state, belonged)
        case _:
            return Outcome(current.id, "rejected", current.due, current.state, f"it was missed: {current.reason}")


def _unknown(schedule_id: str, remembered_since: int) -> Outcome:
    return Outcome(schedule_id, "unknown", remembered_since=remembered_since)


def _printable(schedule_id: str | None) -> str | None:
    """An id that can be encoded in an outcome: lone surrogates cannot be."""
    return None if schedule_id is None else schedule_id.encode(errors="replace").decode()


def _terms(current: Current) -> RecurrenceState:
    assert current.terms is not None, "only a finished schedule has no terms"
    return current.terms


def history(schedule: Schedule, lines: Sequence[Event], remembered_since: int) -> list[Event]:
    """What happened to a schedule, oldest first; `lines` are what was written down under its id, in that order.

    Lines of an earlier use of the id, finished and forgotten, may still be there and are left out.
    """
    since = min(remembered_since, schedule.accepted - 1) if lasts(schedule.when) else remembered_since
    events = [event for event in lines[-HISTORY_LINES_MAX:] if event.at > since]
    first = next((event for event in events if event.event == "accepted"), None)
    if first is not None:
        events.remove(first)
    elif schedule.generation == 1 or all(event.event != "replaced" for event in events):
        first = _accepted(schedule, events)
    end = _end(schedule)
    if end is not None and all((event.at, event.event) != (end.at, end.event) for event in events):
        events.append(end)
    # `accepted` is written down late, when the row goes: it comes before all else of its moment.
    events = sorted(events if first is None else [first, *events], key=lambda event: event.at)
    return [event for _, run in groupby(events, _batch_of) for event in sorted(run, key=_order_in_batch)]


def _batch_of(event: Event) -> tuple[int, bool]:
    """Events that one release wrote form a batch; their order within it differs between stores."""
    return event.at, event.event in _BY_RELEASE


def _order_in_batch(event: Event) -> tuple[int, int]:
    if event.event not in _BY_RELEASE:
        return 0, 0
    return LAST_INSTANT if event.due is None else event.due, event.occurrence or 0


def _end(schedule: Schedule) -> Event | None:
    if schedule.finished is None or schedule.state not in {"released", "in_flight", "missed"}:
        return None
    word = "missed" if schedule.state == "missed" else "released"
    return Event(schedule.finished, word, schedule.occurrence, schedule.due, schedule.reason)


def _accepted(schedule: Schedule, events: Sequence[Event]) -> Event:
    """When it was accepted, and for when, if that is still known."""
    due: int | None = schedule.due
    if any(event.event == "moved" for event in events) or (schedule.when is None and schedule.occurrence > 1):
        due = None
    elif isinstance(schedule.when, Rule | Cron) and schedule.when.shift:
        due = None  # the numbers before have no moment by the rules that hold now
    elif schedule.when is not None and schedule.occurrence > 1:
        first, pending = (occurrence(schedule.when, n) for n in (1, schedule.occurrence))
        due = None if first is None or pending is None else first + schedule.due - pending
    return Event(schedule.accepted, "accepted", due=due)
