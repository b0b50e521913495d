"""The state of a notification, from its schedule and its deliveries."""

from collections.abc import Sequence

import msgspec

from tidings.delivery.filing import delivery_name, read
from tidings.domain.notifications.delivery import Delivery, State, representative
from tidings.domain.notifications.notification import Notification
from tidings.domain.schedules.schedule import Schedule
from tidings.ports import DocumentStore

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
    state, reason = _state(notification, schedule, seen)
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
    """As others may see it: who holds it is nobody's business."""
    return msgspec.structs.replace(delivery, claim=None)


def names_of(notification: Notification, number: int, generation: int = 1) -> list[str]:
    """The deliveries of an occurrence: one, or one for each channel."""
    channels = notification.channels if notification.spread == "all" else [None]
    return [delivery_name(notification.id, number, generation, channel) for channel in channels]


def occurrence_of(notification: Notification, name: str) -> int:
    """Which occurrence a delivery of this name is."""
    return int(name.removeprefix(f"{notification.id}/").partition("/")[0].rpartition(".")[2])


def last_names(notification: Notification, schedule: Schedule) -> list[str]:
    """The deliveries of the occurrence before the pending one, and of the pending one if it has just left."""
    numbers = sorted({max(1, schedule.occurrence - 1), schedule.occurrence})
    return [name for number in numbers for name in names_of(notification, number, schedule.generation)]


async def all_deliveries(
    cabinet: DocumentStore, tenant: str, notification_id: str, now: int, limit: int = DELIVERIES_MAX
) -> list[Delivery]:
    """The deliveries of a notification, the latest last; not more than so many of them."""
    tag = f"notification:{notification_id}"
    found = await cabinet.find(tenant, "delivery", tag, now, limit=limit, newest=True)
    return [read(each, Delivery) for each in reversed(found)]
