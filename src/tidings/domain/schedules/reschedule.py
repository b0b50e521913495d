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

from collections.abc import Callable, Sequence

import msgspec

from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.cron import is_exact, parse_cron
from tidings.domain.recurrence.local_time import resolve_wall
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.rule import DAILY, Cron, Handled, Local, Rule
from tidings.domain.recurrence.timezone import zone_named
from tidings.domain.schedules.schedule import Moved
from tidings.domain.schedules.when import SECOND_US, When, occurrence

UNCOUNTED = 1 << 60  # more occurrences than any rule has


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
    return _behind(new, pending.n, _through(_last(old, pending, now), passed(pending, now)), new.given)


def by_zone(pending: Pending, before: str | None, now: int) -> Pending:
    """The schedule after a change of its zone's rules; `before` is the alias of the zone with its old rules.

    If the old rules are unknown (None), what has passed counts by its instant, not by its wall time.
    """
    when = pending.when
    if isinstance(when, Local):
        return _local(when, pending.n, before)
    assert isinstance(when, Rule | Cron), "only local times, rules and cron expressions have a time zone"
    if before is None:
        handled = _through(when.handled, passed(pending, now))
        return _behind(when, pending.n, handled, None)
    old = msgspec.structs.replace(when, zone=before)
    last = _last(old, pending, now)
    if last is None:
        return Pending(when, pending.n, occurrence(when, pending.n))
    given = when.given + _ruled(old, _bound(last, old)) - _ruled(when, _bound(last, when))
    return _behind(when, pending.n, last, given)


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
