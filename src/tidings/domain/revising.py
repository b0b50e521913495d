"""What becomes of a pending occurrence when a calendar or the rules of a zone change.

What was handled stays handled: the schedule goes on behind its last occurrence, its wall time by the new rules and its
instant, whichever is later. Both are kept with the rule, since by the new rules the last occurrence may not be one at
all, and further changes ask for it again: a detour over other rules leads to where the straight way does. Numbers go on
too, so that no occurrence's id comes again and none is left out; `shift` takes up the difference.
"""

from collections.abc import Callable, Sequence

import msgspec

from tidings.domain.recurrence.compiling import compiled
from tidings.domain.recurrence.cron import is_exact, parse_cron
from tidings.domain.recurrence.parts import DAILY, Cron, Handled, Local, Rule
from tidings.domain.recurrence.resolve import resolve_wall
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.zones import zone_named
from tidings.domain.schedule import Moved
from tidings.domain.when import SECOND_US, When, occurrence

UNCOUNTED = 1 << 60  # more than any rule gives


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A schedule's rule with its pending occurrence; `due` is without jitter, None when none is left."""

    when: When
    n: int
    due: int | None


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A standing schedule as a revision sees it: the digest of its zone's rules, the days of its calendar as it is now.

    `days` is None where it keeps to no calendar, and empty where that was dropped.
    """

    tenant: str
    pending: Pending
    rules: str | None
    days: tuple[int, ...] | None


Revise = Callable[[Seen], Pending | None]


class Slice(msgspec.Struct, frozen=True, gc=False):
    """What one slice of a revision did. `cursor` is where to go on, None if that was all."""

    moved: Sequence[Moved]
    cursor: str | None


class CalendarChange(msgspec.Struct, frozen=True, gc=False):
    """A calendar was put or dropped, and what is pending by it has yet to follow. A later change has a later turn."""

    tenant: str
    name: str
    turn: int


def calendar_of(when: When) -> str | None:
    """The calendar that a schedule keeps to."""
    return when.calendar if isinstance(when, Rule | Cron) else None


def zone_of(when: When | None) -> str | None:
    """The zone whose clocks a schedule follows; None where clock changes cannot matter."""
    return when.zone if isinstance(when, Local | Rule | Cron) and when.zone != "UTC" else None


def with_days(when: When, days: tuple[int, ...]) -> When:
    """The same with the days of its calendar as they are."""
    return msgspec.structs.replace(when, excluded=days) if isinstance(when, Rule | Cron) else when


def passed(pending: Pending, now: int) -> int:
    """The last instant that is done with: what is new lies behind it, and nothing of what was there is lost."""
    assert pending.due is not None
    return now if pending.due > now else pending.due - SECOND_US


def by_calendar(pending: Pending, days: tuple[int, ...], now: int) -> Pending:
    """After a change of its calendar. What was excluded in the past stays so: it does not come back as overdue."""
    old = pending.when
    assert isinstance(old, Rule | Cron), "only rules and expressions keep to a calendar"
    new = msgspec.structs.replace(old, excluded=days)
    return _behind(new, pending.n, _through(_last(old, pending, now), passed(pending, now)), new.given)


def by_zone(pending: Pending, before: str | None, now: int) -> Pending:
    """After a change of its zone's rules; `before` is the alias of the zone as it was.

    Where that is not known any more (None), what has passed counts as an instant, not as a wall time.
    """
    when = pending.when
    if isinstance(when, Local):
        return _local(when, pending.n, before)
    assert isinstance(when, Rule | Cron), "only wall times have a zone"
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
    """Of two equal ones the second does not leave where it now lies at or before the first, which has left."""
    due = occurrence(when, n)
    if n > 1 and due is not None and before is not None:
        left = occurrence(msgspec.structs.replace(when, zone=before), n - 1)
        due = None if left is not None and due <= left else due
    return Pending(when, n, due)


def _last(when: Rule | Cron, pending: Pending, now: int) -> Handled | None:
    """What was handled before the pending occurrence, by the rules that held; None if nothing was.

    That is the occurrence before it, if it came after the last change, and else what was kept at that change. Where
    none was kept though numbers had gone on, all that is known is what has passed.
    """
    n, kept = pending.n, when.handled
    if n - 1 > max(0, when.shift):
        second = compiled(when).at(n - 1)
        assert second is not None, "what was handled was there"
        if kept is None or second > _bound(kept, when):
            return _shown(when, second)
    if kept is None and 1 < n <= when.shift + 1:
        return Handled(passed(pending, now) // SECOND_US)
    return kept


def _shown(when: Rule | Cron, second: int) -> Handled:
    """An occurrence with what clocks showed, unless the rule goes by exact time."""
    if _exact(when):
        return Handled(second)
    zone = zone_named(when.zone)
    wall = second + zone.offset_at(second)
    return Handled(second, wall, second > zone.instants(wall)[0])


def _through(handled: Handled | None, instant: int) -> Handled:
    """The same with everything up to an instant."""
    second = instant // SECOND_US
    return Handled(second) if handled is None else msgspec.structs.replace(handled, at=max(handled.at, second))


def _bound(handled: Handled, when: Rule | Cron) -> int:
    """The last second behind which a rule goes on: of what was handled, the instant or the wall time by its zone."""
    if handled.wall is None:
        return handled.at
    found = resolve_wall(zone_named(when.zone), handled.wall, "forward", "both")
    return max(handled.at, found[-1] if handled.second else found[0])


def _ruled(when: Rule | Cron, second: int) -> int:
    """How many the rule as such gives up to a second: COUNT knows no single moments and no calendar."""
    return compiled(_endless(msgspec.structs.replace(when, added=(), excepted=(), excluded=()))).through(second)


def _behind(when: Rule | Cron, n: int, handled: Handled, given: int | None) -> Pending:
    """The rule such that occurrence n is the first one behind what was handled.

    How many lie before is counted as if there were no COUNT, which would hide those above it. Where it is not known how
    many of COUNT were given (None), it is as many more as numbers were.
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
