"""Recomputing the pending occurrence of a schedule when its calendar or the rules of its time zone change.

What was handled stays handled: the schedule continues after its last handled occurrence, taken as the later of its
instant and its wall time under the new rules. Both are stored with the rule (`Handled`), because under the new rules
the last occurrence may not be one any more, and because a later change needs them again: two changes in a row give the
same result as the second alone. Numbers continue too, so that no occurrence id is used twice and none is left out;
`shift` holds the difference.

Example: daily at 2:30 in a zone that changes from UTC+1 to UTC+2. Number 3 was released at 1:30 UTC on the 3rd. Under
the new rules 2:30 on the 3rd is 0:30 UTC, which lies before that, so the schedule continues after 1:30 UTC on the 3rd,
and number 4 is 2:30 on the 4th, 0:30 UTC. If the zone changed from UTC+2 to UTC+1 instead, number 3 was released at
0:30 UTC, and its wall time under the new rules is 1:30 UTC. The schedule continues after 1:30 UTC, so that 2:30 on the
3rd is not released a second time.
"""

from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.cron import is_exact, parse_cron
from tidings.domain.recurrence.local_time import resolve_wall
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.rule import DAILY, Cron, Handled, Local, Rule
from tidings.domain.recurrence.timezone import zone_named
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.lateness import Lateness, deadline
from tidings.domain.schedules.schedule import Moved, Schedule
from tidings.domain.schedules.when import SECOND_US, Once, When, last_index_at_or_before, occurrence

KEPT_MAX = 1_000  # overdue occurrences of a schedule that moves to another time zone
UNCOUNTED = 1 << 60  # more occurrences than any rule has
WAYS = ("at", "scheduled_at", "every", "rrule", "cron")  # the fields that say when by themselves


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A schedule's rule with its pending occurrence; `due` is without jitter, None when none is left."""

    when: When
    n: int
    due: int | None


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A recurring schedule to recompute: the digest of the zone's rules it was computed by, its calendar's days now.

    `days` is None without a calendar, and empty if the calendar was deleted.
    """

    tenant: str
    pending: Pending
    rules: str | None
    days: tuple[int, ...] | None


Revise = Callable[[Seen], Pending | None]


class Slice(msgspec.Struct, frozen=True, gc=False):
    """The result of one batch of recomputed schedules. `cursor` is where the next batch begins, None after the last."""

    moved: Sequence[Moved]
    cursor: str | None


class CalendarChange(msgspec.Struct, frozen=True, gc=False):
    """A calendar that was put or deleted, before its schedules are recomputed. A later change has a greater `turn`."""

    tenant: str
    name: str
    turn: int


def calendar_of(when: When) -> str | None:
    """The name of a schedule's calendar, if it has one."""
    return when.calendar if isinstance(when, Rule | Cron) else None


def zone_of(when: When | None) -> str | None:
    """The time zone of a schedule; None if it has none, or UTC."""
    return when.zone if isinstance(when, Local | Rule | Cron) and when.zone != "UTC" else None


def check_new_time(changes: Mapping[str, object], time: Container[str]) -> None:
    """Refuse a change of the fields that say when (`time`) that gives no time: what is pending always has one."""
    given = [name for name in changes if name in time]
    if not given or any(changes.get(name) is not None for name in WAYS):
        return
    field = next((name for name in given if name in WAYS), given[0])
    if changes[field] is None:
        raise Invalid(field, "cannot be removed: give another time, or cancel it")
    raise Invalid(field, "is only a part of a time: give 'at', 'every', 'rrule' or 'cron' with it")


def at_time_of(add: Add, schedule: Schedule, *, new_jitter: bool = False) -> Add:
    """A replacement that is due when the pending schedule is; a recurring one is to be replaced with `keep_count`.

    The numbers of a rule begin at 1 again, because the replacement continues them from the pending one. With
    `new_jitter` it has its own jitter. Of a one-shot the former jitter is not known: its own is added to the due time.
    """
    assert schedule.when is not None, "a pending schedule has a time"
    when, exact = schedule.when, occurrence(schedule.when, schedule.occurrence)
    exact = schedule.due if exact is None else exact
    if isinstance(when, Rule | Cron):
        when = msgspec.structs.replace(when, shift=0, given=0)
    jitter_us, window_us = schedule.due - exact, schedule.jitter_window_us
    if new_jitter:
        jitter_us, window_us = add.jitter_us, add.jitter_window_us
    return msgspec.structs.replace(
        add,
        when=when,
        due=exact + jitter_us,
        jitter_us=jitter_us,
        jitter_window_us=window_us,
        latest=None,
        note=None,
        past_refusal=None,
    )


def is_same(add: Add, schedule: Schedule) -> bool:
    """Whether a replacement says the same as the pending schedule, so that nothing is to be written."""
    when = schedule.when
    if isinstance(when, Rule | Cron):
        when = msgspec.structs.replace(when, shift=0, given=0, handled=None)
    asked = add.when
    if isinstance(asked, Rule | Cron):
        asked = msgspec.structs.replace(asked, shift=0, given=0, handled=None)
    lateness = Lateness() if schedule.lateness is None else schedule.lateness
    return (
        add.topic == schedule.topic
        and add.message == schedule.message
        and (asked, add.due, add.priority) == (when, schedule.due, schedule.priority)
        and (add.lateness == lateness or _is_bound_alike(add, lateness))
        and add.labels == schedule.labels
        and add.jitter_window_us == schedule.jitter_window_us
    )


def _is_bound_alike(add: Add, lateness: Lateness) -> bool:
    """Of a single moment a store keeps only the tightest bound of its policy."""
    return isinstance(add.when, Once) and deadline(0, add.lateness) == deadline(0, lateness)


def with_days(when: When, days: tuple[int, ...]) -> When:
    """The same schedule with these days as the days of its calendar."""
    return msgspec.structs.replace(when, excluded=days) if isinstance(when, Rule | Cron) else when


def passed(pending: Pending, now: int) -> int:
    """The instant after which the schedule continues: now, or just before its pending occurrence if that is overdue."""
    assert pending.due is not None
    return now if pending.due > now else pending.due - SECOND_US


def by_calendar(pending: Pending, days: tuple[int, ...], now: int) -> Pending:
    """The schedule after a change of its calendar. Days in the past stay excluded: they do not become overdue."""
    old = pending.when
    assert isinstance(old, Rule | Cron), "only rules and cron expressions have a calendar"
    new = msgspec.structs.replace(old, excluded=days)
    if _is_kept(pending):
        return Pending(new, pending.n, pending.due)
    return _behind(new, pending.n, _through(_last(old, pending, now), passed(pending, now)), new.given)


def by_zone(pending: Pending, before: str | None, now: int) -> Pending:
    """The schedule after a change of its zone's rules; `before` is the alias of the zone with its old rules.

    If the old rules are unknown (None), what has passed counts by its instant, not by its wall time.
    """
    when = pending.when
    if isinstance(when, Local):
        return _local(when, pending.n, before)
    assert isinstance(when, Rule | Cron), "only local times, rules and cron expressions have a time zone"
    if _is_kept(pending):
        return pending
    if before is None:
        handled = _through(when.handled, passed(pending, now))
        return _behind(when, pending.n, handled, None)
    old = msgspec.structs.replace(when, zone=before)
    last = _last(old, pending, now)
    if last is None:
        return Pending(when, pending.n, occurrence(when, pending.n))
    given = when.given + _ruled(old, _bound(last, old)) - _ruled(when, _bound(last, when))
    return _behind(when, pending.n, last, given)


def in_zone(pending: Pending, zone: str, now: int) -> Pending | None:
    """A schedule by the clocks of another time zone; None if it stays as it is.

    A recurring one continues after the wall time of its last occurrence: what was released at 9:00 today is not
    released again at 9:00 of the other zone today. The last occurrence is stored with the rule (`Handled`), so that
    several changes in a row give the same result as the last one alone. A single time that has passed there stays.

    What is overdue keeps its instant: by the clocks of a zone further east it would be long past. Example: daily at
    9:00 in New York, number 4 is overdue at 9:05, and the schedule moves to Berlin, where it is 15:05. Number 4 is
    still due at 9:00 in New York, number 5 at 9:00 in Berlin on the next day. A schedule of which more than `KEPT_MAX`
    are overdue stays in its zone.
    """
    when, n = pending.when, pending.n
    if isinstance(when, Once):
        when = Local(when.at // SECOND_US, "UTC")
    if not isinstance(when, Local | Rule | Cron) or when.zone == zone:
        return None
    if isinstance(when, Local):
        local = msgspec.structs.replace(when, zone=zone)
        due = occurrence(local, n)
        return None if due is None or due <= now else Pending(local, n, due)
    overdue = range(n, last_index_at_or_before(when, now) + 1)
    if len(overdue) > KEPT_MAX:
        return None
    kept = tuple(second for number in overdue if (second := compiled(when).at(number)) is not None)
    last = _last_kept(when, kept[-1]) if kept else _last(when, pending, now)
    moved = msgspec.structs.replace(when, zone=zone, shift=n - 1, given=n - 1, handled=last, kept=kept)
    moved = msgspec.structs.replace(moved, since=_since(when, moved, now))
    due = occurrence(moved, n)
    return None if due is None else Pending(moved, n, due)


def _last_kept(when: Rule | Cron, second: int) -> Handled:
    """The last occurrence that keeps its instant, with its wall time; it may have been kept by an earlier move."""
    handled = when.handled
    return handled if handled is not None and handled.at == second else _shown(when, second)


def _since(when: Rule | Cron, moved: Rule | Cron, now: int) -> int:
    """From when on a rule occurs in its new zone: after now, and after what was handled.

    The limit that an earlier change of the zone has set is dropped; one that the request has set stays.
    """
    since = when.since
    if when.handled is not None and since <= (_bound(when.handled, when) + 1) * SECOND_US:
        since = 0
    after = 0 if moved.handled is None else (_bound(moved.handled, moved) + 1) * SECOND_US
    return max(since, after, now + 1)


def _is_kept(pending: Pending) -> bool:
    """Whether the pending occurrence keeps its instant; the rule itself begins after it."""
    when, due = pending.when, pending.due
    return isinstance(when, Rule | Cron) and due is not None and due // SECOND_US in when.kept


def _local(when: Local, n: int, before: str | None) -> Pending:
    """A local time. The second of two equal ones is dropped if it is now at or before the first, which was released."""
    due = occurrence(when, n)
    if n > 1 and due is not None and before is not None:
        left = occurrence(msgspec.structs.replace(when, zone=before), n - 1)
        due = None if left is not None and due <= left else due
    return Pending(when, n, due)


def _last(when: Rule | Cron, pending: Pending, now: int) -> Handled | None:
    """What was handled before the pending occurrence, by the old rules; None if nothing was.

    That is the occurrence before it, if it was due after the last change, and otherwise what was stored at that change.
    If nothing was stored although numbers had continued, only the instant is known.
    """
    n, kept = pending.n, when.handled
    if n - 1 > max(0, when.shift):
        second = compiled(when).at(n - 1)
        assert second is not None, "a handled occurrence exists"
        if kept is None or second > _bound(kept, when):
            return _shown(when, second)
    if kept is None and 1 < n <= when.shift + 1:
        return Handled(passed(pending, now) // SECOND_US)
    return kept


def _shown(when: Rule | Cron, second: int) -> Handled:
    """An occurrence with its wall time, unless the rule steps in exact time."""
    if _exact(when):
        return Handled(second)
    zone = zone_named(when.zone)
    wall = second + zone.offset_at(second)
    return Handled(second, wall, second > zone.instants(wall)[0])


def _through(handled: Handled | None, instant: int) -> Handled:
    """The same, extended to everything up to an instant."""
    second = instant // SECOND_US
    return Handled(second) if handled is None else msgspec.structs.replace(handled, at=max(handled.at, second))


def _bound(handled: Handled, when: Rule | Cron) -> int:
    """The second after which a rule continues: the later of the handled instant and wall time, by the rule's zone."""
    if handled.wall is None:
        return handled.at
    found = resolve_wall(zone_named(when.zone), handled.wall, "forward", "both")
    return max(handled.at, found[-1] if handled.second else found[0])


def _ruled(when: Rule | Cron, second: int) -> int:
    """How many occurrences the rule itself has up to a second; COUNT ignores RDATE, EXDATE and calendars."""
    return compiled(_endless(msgspec.structs.replace(when, added=(), excepted=(), excluded=()))).through(second)


def _behind(when: Rule | Cron, n: int, handled: Handled, given: int | None) -> Pending:
    """The rule with `shift` and `given` set so that occurrence n is the first one after what was handled.

    The occurrences before it are counted without COUNT, which would hide those above it. If it is unknown how many of
    COUNT were used up (None), `given` changes by as much as `shift`.
    """
    shift = n - 1 - compiled(_endless(when)).through(_bound(handled, when))
    given = when.given + shift - when.shift if given is None else given
    new = msgspec.structs.replace(when, shift=shift, given=given, handled=handled if zone_of(when) else None)
    return Pending(new, n, occurrence(new, n))


def _endless(when: Rule | Cron) -> Rule | Cron:
    return msgspec.structs.replace(when, shift=0, given=-UNCOUNTED, handled=None)


def _exact(when: Rule | Cron) -> bool:
    if isinstance(when, Cron):
        return is_exact(parse_cron(when.expression))
    return parse_rrule(when.rrule).frequency > DAILY
