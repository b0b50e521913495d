"""What a store fills in as a schedule is taken: its calendar's days, its zone's version, where numbers go on."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tidings.domain.command import Add, Outcome, OutcomeWord, Replace, State, refused
from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import format_instant
from tidings.domain.lateness import CATCH_UP_MAX
from tidings.domain.recurrence import zones
from tidings.domain.recurrence.preview import late_start_note, moved_note, swallowed_note
from tidings.domain.recurrence.resolve import is_swallowed
from tidings.domain.revising import Pending, calendar_of, passed, with_days, zone_of
from tidings.domain.schedule import Event, KeptZone, Schedule
from tidings.domain.when import Cron, Rule, When, is_once, occurrence
from tidings.domain.when import continued as when_continued
from tidings.timeline.terms import Terms

MOVED_MAX = 10_000  # of what was moved so many are remembered, for each tenant
CALENDARS_MAX = 1_000

encode_days = msgspec.msgpack.Encoder().encode
decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def terms_of(add: Add) -> Terms:
    """The terms of a standing schedule, computed by the zones' rules as they are now."""
    return stamped(Terms(add.when, add.lateness, add.jitter_us), add.when)


def stamped(terms: Terms, when: When) -> Terms:
    """The terms with a rule that was computed by the zones' rules as they are now."""
    zone = zone_of(when)
    if zone is None:
        return msgspec.structs.replace(terms, when=when)
    return msgspec.structs.replace(terms, when=when, tzdata=zones.VERSION, rules=zones.rules_of(zone))


def revised(terms: Terms, when: When) -> Terms:
    """The terms after a change of what its rule depends on."""
    return msgspec.structs.replace(stamped(terms, when), revised=True)


def too_many() -> Invalid:
    """A tenant has an end of calendars."""
    return Invalid("calendar", f"there are {CALENDARS_MAX:,} already: drop one that is not needed")


def kept_zone(name: str) -> KeptZone:
    """A zone's rules as they are now, to be kept for the day on which they change."""
    return KeptZone(name, zones.VERSION, zones.content_of(name))


def dated(add: Add, days: tuple[int, ...] | None) -> Add | Outcome:
    """The schedule with the days of its calendar, None if there is no such calendar; or why it is rejected."""
    name = calendar_of(add.when)
    if days is None:
        detail = f"there is no calendar {name!r}: create it first, or leave it out"
        return refused(add.id, Invalid("calendar", detail))
    when = with_days(add.when, days)
    try:
        due = occurrence(when, 1)
    except Invalid as invalid:  # of this one only: what was sent with it, or comes behind it, is taken
        return refused(add.id, invalid)
    if due is None:
        return refused(add.id, Invalid("calendar", f"{name!r} leaves no occurrence: change its days, or the rule"))
    if add.latest is not None and due > add.latest:
        detail = f"{name!r} moves the first occurrence behind limits.horizon: change its days, or the rule"
        return refused(add.id, Invalid("calendar", detail))
    return msgspec.structs.replace(add, when=when, due=due + add.jitter_us)


class Ahead(NamedTuple):
    """The next occurrence that can leave, as far as is known: number and due time. `note` says why not all can."""

    number: int
    due: int
    note: str | None = None


def ahead(terms: Terms | None, n: int, due: int, now: int | None) -> Ahead:
    """What is to come where occurrence n is pending for `due`; without terms it is a single moment.

    One that is overdue may be too late to leave: what is said then is the next, so that nobody waits in vain. Lists
    do without `now`: they are in the order of what is pending.
    """
    if terms is None or now is None:
        return Ahead(n, due)
    if due > now or is_swallowed(terms.when):
        return Ahead(n, due, noted(terms, n))
    note: str | None = None
    decision = terms.decide(n, now)
    number = decision.next if decision.release is None else decision.release
    if number is None and decision.missed:
        number, reason = decision.missed[-1].last, decision.missed[-1].reason
        note = f"nothing of it will leave: it is counted as missed ({reason})"
    elif cut := [missed for missed in decision.missed if missed.reason == "catch_up_max"]:
        many = sum(missed.last - missed.first + 1 for missed in cut)
        note = f"{many:,} of what is overdue will be counted as missed (catch_up_max)"
        note = f"{note}: at most the latest {CATCH_UP_MAX:,} leave at once"
    at = None if number is None else terms.due(number)
    return Ahead(n, due) if number is None or at is None else Ahead(number, at, note)


def moved_why(cause: str, before: int) -> str:
    """What moved an occurrence, and from where, for its history."""
    return f"{cause}, from {format_instant(before)}"


def ended_why(when: When) -> str | None:
    """What it was that gives no more: once a schedule has ended, its history alone still tells."""
    zone = zone_of(when)
    where = "" if zone is None else f" in {zone}"
    match when:
        case Rule():
            return f"rrule {when.rrule}{where}"
        case Cron():
            return f"cron {when.expression}{where}"
        case _:
            return None


def accepted_event(schedule: Schedule, events: Sequence[Event]) -> Event:
    """The first line of a history where none was written: when it was taken, and for when, if that is still known."""
    due: int | None = schedule.due
    if any(event.event == "moved" for event in events) or (schedule.when is None and schedule.occurrence > 1):
        due = None
    elif isinstance(schedule.when, Rule | Cron) and schedule.when.shift:
        due = None  # what was numbered before has no moment by the rules that hold now
    elif schedule.when is not None and schedule.occurrence > 1:
        first, pending = (occurrence(schedule.when, n) for n in (1, schedule.occurrence))
        due = None if first is None or pending is None else first + schedule.due - pending
    return Event(schedule.accepted, "accepted", due=due)


def first_due(terms: Terms | None, n: int, due: int) -> int | None:
    """For when a schedule was taken whose occurrence n is pending, or was the last, for `due`; None if not known."""
    if terms is None or is_once(terms.when):
        return due if n == 1 and (terms is None or not terms.revised) else None
    return None if terms.revised else terms.due(1)


def noted(terms: Terms | None, n: int) -> str | None:
    """What people should know of a schedule whatever becomes of it."""
    if terms is None:
        return None
    late_start = late_start_note(terms.when) if n == 1 else None
    return swallowed_note(terms.when) or moved_note(terms.when) or late_start


def answer(schedule_id: str, word: OutcomeWord, coming: Ahead, state: State | None = None) -> Outcome:
    """The answer to a change of what goes on."""
    return Outcome(schedule_id, word, coming.due, state, note=coming.note)


def uncounted(replace: Replace, *, finished: bool) -> Outcome | None:
    """Why the count of what is replaced cannot be kept, if that is asked for and cannot be."""
    if not replace.keep_count:
        return None
    if is_once(replace.add.when):
        detail = "goes with a recurring one, and this is a single moment: leave it out"
    elif finished and replace.reuse:
        detail = "what this id held has finished, and its count with it: leave it out, the count then begins anew"
    else:
        return None
    return refused(replace.add.id, Invalid("keep_count", detail))


def continued(add: Add, pending: Pending, now: int) -> Add | Outcome:
    """The schedule with the number that is pending as its first, behind what has passed; or why it is rejected."""
    n = pending.n
    if is_once(add.when) or n == 1:
        return add
    when = when_continued(add.when, n, passed(pending, now))
    due = occurrence(when, n)
    if due is None:
        reason = f"count: {n - 1:,} were given already, and are kept: give more, or begin the count anew"
        return Outcome(add.id or "", "rejected", reason=reason)
    return msgspec.structs.replace(add, when=when, due=due + add.jitter_us)
