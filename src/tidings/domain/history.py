"""The history of a schedule as it is shown: what was written down, and what its row alone tells.

A one-shot that simply comes and goes has no line of its own anywhere: when it was accepted and how it finished is in
its row, and becomes a line here.
"""

from collections.abc import Sequence
from itertools import groupby

from tidings.domain.schedules.schedule import Event, Schedule
from tidings.domain.schedules.when import LAST_INSTANT, Cron, Rule, lasts, occurrence

_BY_RELEASE = frozenset({"released", "missed", "ended"})
HISTORY_LINES_MAX = 100  # of which a store keeps the latest; more may wait to be trimmed


def history(schedule: Schedule, lines: Sequence[Event], remembered_since: int) -> list[Event]:
    """What happened to a schedule, oldest first; `lines` are what was written down under its id, in that order.

    Lines of an earlier use of the id, finished and forgotten, may still be there and are left out.
    """
    since = min(remembered_since, schedule.accepted - 1) if lasts(schedule.when) else remembered_since
    events = [event for event in lines[-HISTORY_LINES_MAX:] if event.at > since]
    first = next((event for event in events if event.event == "accepted"), None)
    if first is not None:
        events.remove(first)
    elif schedule.generation == 1:
        first = _accepted(schedule, events)
    end = _end(schedule)
    if end is not None and all((event.at, event.event) != (end.at, end.event) for event in events):
        events.append(end)
    # `accepted` is written down late, when the row goes: it comes before all else of its moment.
    events = sorted(events if first is None else [first, *events], key=lambda event: event.at)
    return [event for _, run in groupby(events, _batch_of) for event in sorted(run, key=_place_in_batch)]


def _batch_of(event: Event) -> tuple[int, bool]:
    """Lines that one release wrote: how its rows were dealt with in turn is the store's own affair."""
    return event.at, event.event in _BY_RELEASE


def _place_in_batch(event: Event) -> tuple[int, int]:
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
