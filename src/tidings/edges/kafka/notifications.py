"""Notifications requested over Kafka, accepted in the same way as those over HTTP.

They are accepted before the positions of their records are committed. After a crash in between the records are read
again, and accepting a notification with the same id and content changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.request import AcceptResult, NotificationRequest
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.shapes.refusal import refusals
from tidings.wires.record import NotifyAsk, Record, Refusal
from tidings.wires.wire import Wire

VALUE = "the record's value"
USERS_MAX = 1_000  # in one go
REASONS_MAX = 20
INTERNAL_ERROR = "cannot be accepted because of an error in Tidings: see its log"

Refuse = Callable[[Wire, Record, Refusal, str], None]

logger = logging.getLogger("tidings.kafka")
_decoder = msgspec.json.Decoder(NotificationRequest)


class NotificationRecord(NamedTuple):
    """A record that asks for a notification, and the decoded request."""

    wire: Wire
    record: Record
    tenant: str
    request: NotificationRequest
    since: int | None

    @property
    def users(self) -> int:
        """How many users it is for."""
        return len(self.request.users) or 1


def decode(wire: Wire, record: Record, ask: NotifyAsk) -> NotificationRecord:
    """Decode the notification of a record; raises `Invalid` if it is not one."""
    try:
        request = _decoder.decode(ask.value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusals(error, NotificationRequest, _decoder.decode, ask.value, VALUE) from None
    if request.id is None:
        request = msgspec.structs.replace(request, id=ask.id)
    return NotificationRecord(wire, record, ask.tenant, request, ask.since)


class NotificationIntake:
    """Accepts many notifications at once. Those that cannot be accepted are refused, and do not affect others."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse
        self._waiting: list[NotificationRecord] = []

    def add(self, notification: NotificationRecord) -> None:
        """Queue a notification for `accept`."""
        self._waiting.append(notification)

    async def accept(self, notifying: Acceptance) -> None:
        """Accept all. A failure of the store is raised; another call continues with those that are left."""
        while self._waiting:
            batch = _next_batch(self._waiting)
            results = await asyncio.gather(*(_accept(notifying, each) for each in batch), return_exceptions=True)
            left, failure = [], None
            for notification, result in zip(batch, results, strict=True):
                if isinstance(result, NotOwner | StoreError):
                    left.append(notification)
                    failure = result
                else:
                    self._check(notification, result)
            self._waiting[: len(batch)] = left
            if failure is not None:
                raise failure

    def _check(self, notification: NotificationRecord, result: list[AcceptResult] | BaseException) -> None:
        """Refuse the record if its notification was not accepted, for all users or some."""
        wire, record, tenant, *_ = notification
        match result:
            case Invalid():
                self._refuse(wire, record, wire.refuse(tenant, result), result.field)
            case BaseException():
                origin = record.topic, record.partition, record.offset
                logger.error("%s/%d/%d cannot be accepted", *origin, exc_info=result)
                self._refuse(wire, record, Refusal(tenant, (INTERNAL_ERROR,)), "record")
            case _:
                rejected = [each for each in result if each.outcome in {"rejected", "conflict"}]
                if rejected:
                    refusal = Refusal(tenant, _reasons(notification, rejected))
                    self._refuse(wire, record, refusal, rejected[0].field or "id")


async def _accept(notifying: Acceptance, notification: NotificationRecord) -> list[AcceptResult]:
    """Accept a notification. One that was accepted before is not refused because a template was deleted since."""
    try:
        return await notifying.accept(notification.tenant, notification.request, notification.since)
    except Invalid:
        if await notifying.has(notification.tenant, notification.request):
            return []
        raise


def _next_batch(waiting: Sequence[NotificationRecord]) -> list[NotificationRecord]:
    """As many from the front as can be accepted at once. A second notification with the same id ends the batch."""
    batch: list[NotificationRecord] = []
    names: set[tuple[str, str | None]] = set()
    users = 0
    for notification in waiting:
        name = notification.tenant, notification.request.id
        users += notification.users
        if name in names or (batch and users > USERS_MAX):
            break
        names.add(name)
        batch.append(notification)
    return batch


def _reasons(notification: NotificationRecord, rejected: Sequence[AcceptResult]) -> tuple[str, ...]:
    """The reasons, with the user's name where there are several users; the other users' notifications are accepted."""
    reasons = []
    for each in rejected[:REASONS_MAX]:
        reason = each.reason or "rejected"
        if each.field is not None:
            reason = f"{each.field}: {reason}"
        reasons.append(f"{each.user}: {reason}" if notification.request.users else reason)
    if len(rejected) > REASONS_MAX:
        reasons.append(f"and {len(rejected) - REASONS_MAX} more of its users")
    return tuple(reasons)
