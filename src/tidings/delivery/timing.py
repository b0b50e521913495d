"""When a notification is due: the fields of a schedule, with local times on the clocks of whom it is for."""

import re
from typing import Any

import msgspec

from tidings.delivery.asking import Notify
from tidings.domain.errors import Invalid
from tidings.domain.notifications.notification import PRIORITIES, DeliveryJob, Notification, topic
from tidings.domain.recurrence.rrule import parse_moment
from tidings.domain.schedules import iso8601
from tidings.domain.schedules.iso8601 import parse_instant
from tidings.domain.schedules.request import Request, Timing
from tidings.domain.schedules.when import SECOND_US

_SAME = ("rrule", "cron", "start", "until", "count", "rdates", "exdates", "gap", "overlap", "calendar", "on_excluded")
_NONE = Timing()
_MEASURED = re.compile(r"[+P]|\d+[a-z]", re.IGNORECASE)  # a duration, or meant as one
_FORMS = "'tomorrow 09:00', 'monday 8:30' or '2026-11-20 09:00' for local time, 2026-11-20T09:00:00Z, or +5s"


def request_for(
    ask: Notify, notification: Notification, zone: str, whom: str, now: int, since: int | None = None
) -> Request:
    """The schedule of a notification. `zone` is that of whom it is for, and counts where none is asked for.

    What is said from today on, or after a while, counts from `since` if that is given.
    """
    at, place = _at(ask, zone, now if since is None else since), ask.zone
    if place is None and _is_local(ask, at):
        place = zone
    timing = Timing(zone=place, **{name: getattr(ask, name) for name in _SAME})
    expires = notification.expires_after_us
    labels = {"user": notification.user, "template": notification.template, "batch": notification.batch}
    return Request(
        topic=topic(notification.channels[0], notification.priority),
        bus="log",
        value=msgspec.json.encode(DeliveryJob(notification=notification.id)),
        key=whom.encode(),
        id=notification.id,
        at=at,
        every=ask.every,
        priority=PRIORITIES[notification.priority],
        expires_after=None if expires is None else f"PT{expires // SECOND_US}.{expires % SECOND_US:06}S",
        late=ask.late,
        late_grace=ask.late_grace,
        late_max=ask.late_max,
        jitter=ask.jitter,
        since=since,
        labels={name: text for name, text in labels.items() if text is not None} or None,
        timing=None if timing == _NONE else timing,
        past=ask.past,
    )


def _at(ask: Notify, zone: str, now: int) -> int | str | None:
    field, at = ("at", ask.at) if ask.at is not None else ("scheduled_at", ask.scheduled_at)
    if not isinstance(at, str):
        return at
    if iso8601.is_relative_day(at):
        return iso8601.resolve_relative_day(at, ask.zone or zone, now)
    if not (_MEASURED.match(at) or _is_instant(at) or _is_moment(at)):
        raise Invalid(field, f"{at[:60]!r} is not a valid time: write {_FORMS}")
    return at


def _is_local(ask: Notify, at: int | str | None) -> bool:
    """Whether something that is asked is said by clocks, so that it matters whose they are."""
    if ask.rrule is not None:
        return "TZID" not in ask.rrule.upper()
    if ask.cron is not None:
        return True
    written: list[Any] = [at, ask.start, ask.until]
    return any(isinstance(text, str) and _is_wall_time(text) for text in written)


def _is_wall_time(text: str) -> bool:
    return _is_moment(text) and parse_moment(text, "at").form == "local"


def _is_instant(text: str) -> bool:
    try:
        parse_instant(text)
    except Invalid:
        return False
    return True


def _is_moment(text: str) -> bool:
    try:
        parse_moment(text, "at")
    except Invalid:
        return False
    return True
