"""What becomes of a pending occurrence when a calendar or the rules of a zone change.

What was handled stays handled: the schedule goes on behind its last occurrence, its wall time by the new rules and its
instant, whichever is later. Numbers go on too, so that no occurrence's id comes again and none is left out; `shift`
takes up the difference.
"""

from collections.abc import Callable, Sequence

import msgspec

from tidings.domain.recurrence.compiling import compiled
from tidings.domain.recurrence.cron import is_exact, parse_cron
from tidings.domain.recurrence.parts import DAILY, Cron, Local, Rule
from tidings.domain.recurrence.resolve import resolved
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.zones import Zone, zone_named
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
    return _renumbered(new, pending.n, passed(pending, now) // SECOND_US, given=False)


def by_zone(pending: Pending, before: str | None, now: int) -> Pending:
    """After a change of its zone's rules; `before` is the alias of the zone as it was.

    Where that is not known any more (None), what has passed counts as an instant, not as a wall time.
    """
    when = pending.when
    if isinstance(when, Local):
        return _local(when, pending.n, before)
    assert isinstance(when, Rule | Cron), "only wall times have a zone"
    if before is None:
        return _renumbered(when, pending.n, passed(pending, now) // SECOND_US, given=True)
    handled = _handled(msgspec.structs.replace(when, zone=before), pending.n)
    if handled is not None and not _exact(when):
        handled = max(handled, _moved(zone_named(before), zone_named(when.zone), handled))
    return _renumbered(when, pending.n, handled, given=True)


def _moved(before: Zone, zone: Zone, handled: int) -> int:
    """The same wall time by a zone's new rules; of two that are equal the one that it was before."""
    wall = handled + before.offset_at(handled)
    was_first = handled < before.instants(wall)[-1]
    found = resolved(zone, wall, "forward", "both")
    return found[0] if was_first else found[-1]


def _local(when: Local, n: int, before: str | None) -> Pending:
    """Of two equal ones the second does not leave where it now lies at or before the first, which has left."""
    due = occurrence(when, n)
    if n > 1 and due is not None and before is not None:
        left = occurrence(msgspec.structs.replace(when, zone=before), n - 1)
        due = None if left is not None and due <= left else due
    return Pending(when, n, due)


def _handled(when: Rule | Cron, n: int) -> int | None:
    """The second of the occurrence before the pending one; None if there was none."""
    return compiled(when).at(n - 1) if n - 1 > max(0, when.shift) else None


def _renumbered(when: Rule | Cron, n: int, handled: int | None, *, given: bool) -> Pending:
    """The rule such that occurrence n is the first one behind what was handled.

    How many lie before is counted as if there were no COUNT, which would hide those above it.
    """
    if handled is not None:
        endless = msgspec.structs.replace(when, shift=0, given=-UNCOUNTED)
        shift = n - 1 - compiled(endless).through(handled)
        more = shift - when.shift if given else 0
        when = msgspec.structs.replace(when, shift=shift, given=when.given + more)
    second = compiled(when).at(n)
    return Pending(when, n, None if second is None else second * SECOND_US)


def _exact(when: Rule | Cron) -> bool:
    if isinstance(when, Cron):
        return is_exact(parse_cron(when.expression))
    return parse_rrule(when.rrule).frequency > DAILY
