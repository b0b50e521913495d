"""The state of a notification, from its schedule and its deliveries."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.rows import delivery_name, generation_of, read
from tidings.domain.notifications.delivery import Delivery, State, representative
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import GROUP, Notification
from tidings.domain.notifications.tables import DELIVERIES_BY_NOTIFICATION
from tidings.domain.schedules.command import FINISHED
from tidings.domain.schedules.schedule import Schedule
from tidings.ports.tables import Tables

DELIVERIES_MAX = 1_000
RELEASED = "released"  # and no worker has looked at it yet


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification as it stands: its state and why, when it is due, and its deliveries, the latest last.

    A recurring one is `pending` for as long as something of it is to come.
    """

    notification: Notification
    state: State
    reason: str = ""
    due: int | None = None
    occurrence: int = 1
    deliveries: tuple[Delivery, ...] = ()


def status_of(notification: Notification, schedule: Schedule | None, deliveries: Sequence[Delivery]) -> Status | None:
    """Its state from what is known of it; None if it was never accepted."""
    seen = tuple(shown(delivery) for delivery in deliveries)
    state, reason = _state(notification, schedule, present(notification, schedule, seen))
    if state is None:
        return None
    due = schedule.due if schedule is not None else (seen[-1].due if seen else None)
    return Status(notification, state, reason, due, 1 if schedule is None else schedule.occurrence, seen)


def _state(
    notification: Notification, schedule: Schedule | None, deliveries: Sequence[Delivery]
) -> tuple[State | None, str]:
    if notification.first is not None:
        return "skipped", "duplicate"
    if schedule is not None and schedule.state in {"pending", "paused", "in_flight"}:
        return "pending", "" if schedule.state == "pending" else schedule.state
    if notification.cancelled is not None or (schedule is not None and schedule.state == "cancelled"):
        return "cancelled", "cancelled"
    if deliveries:
        last = [each for each in deliveries if each.due == deliveries[-1].due]
        spoken = last[representative([each.state for each in last])]
        return spoken.state, spoken.reason
    if schedule is None:
        return None, ""
    match schedule.state:
        case "missed":
            return (
                ("expired", schedule.reason or "expired")
                if schedule.reason in {"expired", "late_max"}
                else (
                    "skipped",
                    schedule.reason or "missed",
                )
            )
        case _:
            return "pending", RELEASED


def shown(delivery: Delivery) -> Delivery:
    """Without the claim, which is internal."""
    return msgspec.structs.replace(delivery, claim=None)


def names_of(notification: Notification, number: int, generation: int = 1) -> list[str]:
    """The deliveries of an occurrence: one, or one for each channel."""
    channels = notification.channels if notification.spread == "all" else [None]
    return [delivery_name(notification.id, number, generation, channel) for channel in channels]


def occurrence_of(notification: Notification, name: str) -> int:
    """Which occurrence a delivery of this name is."""
    return int(name.removeprefix(f"{notification.id}/").partition("/")[0].rpartition(".")[2])


def present(
    notification: Notification, schedule: Schedule | None, deliveries: Sequence[Delivery]
) -> Sequence[Delivery]:
    """The deliveries of its present generation: those before belong to what was replaced, or to a former use of its id.

    Once its schedule is forgotten, that is not known: all of them.
    """
    if schedule is None:
        return deliveries
    return [each for each in deliveries if generation_of(notification.id, each.name) == schedule.generation]


def last_names(notification: Notification, schedule: Schedule) -> list[str]:
    """The deliveries of the occurrence before the pending one, and of the pending one if it has just left."""
    numbers = sorted({max(1, schedule.occurrence - 1), schedule.occurrence})
    return [name for number in numbers for name in names_of(notification, number, schedule.generation)]


async def all_deliveries(
    tables: Tables, tenant: str, notification_id: str, now: int, limit: int = DELIVERIES_MAX
) -> list[Delivery]:
    """The deliveries of a notification, the latest last; not more than so many of them."""
    values = (notification_id,)
    found = await tables.find(DELIVERIES_BY_NOTIFICATION, tenant, values, now, limit=limit, newest=True)
    return [read(each, Delivery) for each in reversed(found)]


class StatusReader:
    """Looks a notification up where it has left a trace."""

    def __init__(self, tables: Tables, schedules: NotificationEngine, clock: Clock) -> None:
        self._tables = tables
        self._schedules = schedules
        self._clock = clock

    async def current(self, notification: Notification) -> Status | None:
        """How it stands, with its last deliveries only where it has left; None if it was never scheduled, or is over
        for so long that nothing else is stored of it."""
        schedule = await self._schedules.find(notification.tenant, notification.id)
        if schedule is not None and schedule.state not in FINISHED:
            return status_of(notification, schedule, ())
        tenant, limit = notification.tenant, 2 * len(notification.channels)
        last = await all_deliveries(self._tables, tenant, notification.id, self._clock.now(), limit)
        status = status_of(notification, schedule, last)
        return None if status is None or await self.is_over(status, schedule) else status

    async def is_over(self, status: Status, schedule: Schedule | None) -> bool:
        """Whether its deliveries have expired: workers have passed its record, and no delivery is stored.

        A delivery is stored before its record is passed, so the deliveries are read again after the position.
        """
        if schedule is None or (status.state, status.reason) != ("pending", RELEASED):
            return False
        own = status.notification
        if not await self._schedules.is_read(schedule, GROUP):
            return False
        limit = 2 * len(own.channels)
        return not present(
            own, schedule, await all_deliveries(self._tables, own.tenant, own.id, self._clock.now(), limit)
        )

    async def is_cancelled(self, notification: Notification) -> bool:
        """Whether it was taken back, by its own name or by that of its schedule."""
        if notification.cancelled is not None:
            return True
        schedule = await self._schedules.find(notification.tenant, notification.id)
        return schedule is not None and schedule.state == "cancelled"


NO_WORKER = "no_worker"
NOTICE = "no live node has the role deliver: due notifications wait until there is one"
CHANNELS_NOTICE = (
    "no live node delivers to %s (node.channels): due notifications of these channels wait until there is one"
)


async def unserved_channels(schedules: NotificationEngine) -> list[ChannelName]:
    """The channels to which no live node delivers. Where no node is known to live, nothing is said: none."""
    living = [node.report for node in (await schedules.nodes()).nodes if node.is_alive]
    if not living:
        return []
    return [channel for channel in CHANNEL_NAMES if not any(report.delivers(channel) for report in living)]


async def delivery_notices(schedules: NotificationEngine) -> list[str]:
    """That nobody delivers, at all or to some channels."""
    missing = await unserved_channels(schedules)
    if not missing:
        return []
    return [NOTICE if len(missing) == len(CHANNEL_NAMES) else CHANNELS_NOTICE % ", ".join(missing)]
