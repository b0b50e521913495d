"""What a store fills in as a schedule is taken: its calendar's days, its zone's version, where numbers go on."""

import msgspec

from tidings.domain.command import Add, Outcome
from tidings.domain.errors import Invalid
from tidings.domain.recurrence import zones
from tidings.domain.revising import calendar_of, with_days, zone_of
from tidings.domain.schedule import KeptZone
from tidings.domain.when import is_once, occurrence, renumbered
from tidings.timeline.terms import Terms

MOVED_MAX = 10_000  # of what was moved so many are remembered


def terms_of(add: Add) -> Terms:
    """The terms of a standing schedule, computed by the zones' rules as they are now."""
    tzdata = None if zone_of(add.when) is None else zones.VERSION
    return Terms(add.when, add.lateness, add.jitter_us, tzdata)


def kept_zone(name: str) -> KeptZone:
    """A zone's rules as they are now, to be kept for the day on which they change."""
    return KeptZone(name, zones.VERSION, zones.content_of(name))


def is_current(zone: KeptZone) -> bool:
    """Whether these are the rules that the zone has now."""
    return zone.content == zones.content_of(zone.name)


def dated(add: Add, days: tuple[int, ...] | None) -> Add | Outcome:
    """The schedule with the days of its calendar, None if there is no such calendar; or why it is rejected."""
    name = calendar_of(add.when)
    if days is None:
        reason = f"calendar: there is no calendar {name!r}: put it there first, or leave it out"
        return Outcome(add.id or "", "rejected", reason=reason)
    when = with_days(add.when, days)
    try:
        due = occurrence(when, 1)
    except Invalid as invalid:  # of this one only: what was sent with it, or comes behind it, is taken
        return Outcome(add.id or "", "rejected", reason=str(invalid))
    if due is None:
        reason = f"calendar: {name!r} leaves no occurrence: change its days, or the rule"
        return Outcome(add.id or "", "rejected", reason=reason)
    return msgspec.structs.replace(add, when=when, due=due + add.jitter_us)


def continued(add: Add, n: int) -> Add | Outcome:
    """The schedule with its numbers from n on; or why it is rejected, if its end was reached before."""
    if is_once(add.when) or n == 1:
        return add
    when = renumbered(add.when, n)
    if occurrence(when, n) is None:
        reason = f"count: {n - 1:,} were given already, and are kept: give more, or begin the count anew"
        return Outcome(add.id or "", "rejected", reason=reason)
    return msgspec.structs.replace(add, when=when)
