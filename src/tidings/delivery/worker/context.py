"""Everything that the decision on a delivery needs, loaded for a whole batch at the time when it would be sent."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.rows import (
    delivery_key,
    delivery_name,
    generation_of,
    notification_key,
    read,
    suppression_keys,
    user_key,
)
from tidings.delivery.worker import job as jobs
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address_key import address_key
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.notifications.user import TRANSACTIONAL, User
from tidings.domain.schedules.schedule import Record
from tidings.ports import Address
from tidings.ports.tables import Row, RowKey, Tables


class DeliveryContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery and all that decides on it. `version` is that of its row; 0: it has none yet.

    `user` is None if the notification is for an address, or its user does not exist any more; `user_version` is that of
    their row. `notification_version` is that of the notification's row, None if the record carries the notification:
    the delivery is sent only while the row has not changed. `is_channel_removed` says that the notification was
    changed, and does not go to the delivery's channel any more. `is_replaced` says that the delivery is for another
    recipient than the notification has now, or of a former use of its id.
    """

    tenant: str
    job: DeliveryJob
    notification: Notification
    channel: ChannelName  # the one that the job is for
    delivery: Delivery
    version: int
    user: User | None = None
    user_version: int = 0
    suppressed: frozenset[Address] = frozenset()
    notification_version: int | None = None
    is_channel_removed: bool = False
    is_replaced: bool = False


def addresses(notification: Notification, user: User | None, channel: ChannelName) -> tuple[Address, ...]:
    """The addresses of the recipient on a channel."""
    if notification.to is not None:
        return (notification.to,)
    return user.addresses(channel) if user is not None else ()


def replaced_reason(delivery: Delivery, notification: Notification) -> str | None:
    """Why a delivery is not one of the notification as it is now, None if it is: it must not go to its recipient."""
    if notification.generation and generation_of(notification.id, delivery.name) < notification.generation:
        return "it belongs to a former use of its notification's id"
    if delivery.user != notification.user or _is_for_other(delivery, notification.to):
        return "its notification has another recipient now"
    return None


def _is_for_other(delivery: Delivery, to: Address | None) -> bool:
    """Whether it was tried for another address than the one given instead of a user."""
    channel, tried = delivery.channel, delivery.address
    if to is None or channel is None or tried is None:
        return False
    return address_key(channel, tried) != address_key(channel, to)


def is_over(delivery: Delivery, job: DeliveryJob) -> bool:
    """Whether nothing is left to do for the record of this turn."""
    return delivery.is_settled or delivery.turn > job.attempt


class _Lookup(msgspec.Struct, gc=False):
    """A job on its way to its context: the rows that are known so far."""

    tenant: str
    record: Record
    job: DeliveryJob
    notification: Notification | None = None
    notification_version: int | None = None
    name: str = ""
    delivery: Row | None = None
    is_delivery_known: bool = False
    user_id: str | None = None
    user: User | None = None
    user_version: int = 0
    result: DeliveryContext | Invalid | None = None


class ContextLoader:
    """Loads contexts: one read for notifications, deliveries and users, and one for suppressions."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    async def load(self, wanted: Sequence[tuple[str, Record, DeliveryJob]]) -> list[DeliveryContext | Invalid | None]:
        """The context of each job; None if its notification was erased or has begun again, `Invalid` if it is wrong."""
        lookups = [_Lookup(*each) for each in wanted]
        await self._load_notifications(lookups)
        alive = [each for each in lookups if each.notification is not None and each.result is None]
        await self._load_missing(alive)
        for each in alive:
            each.result = _context(each)
        await self._load_suppressions([each for each in alive if isinstance(each.result, DeliveryContext)])
        return [each.result for each in lookups]

    async def rows(self, keys: Sequence[RowKey]) -> list[Row | None]:
        """Rows as they are now."""
        return await self._tables.get(keys, self._clock.now())

    async def _load_notifications(self, lookups: Sequence[_Lookup]) -> None:
        """The notifications, with the deliveries that they most probably have."""
        named = [each for each in lookups if each.job.notification is not None and each.job.inline is None]
        names = [_likely_name(each) for each in named]
        keys = [notification_key(each.tenant, each.job.notification or "") for each in named]
        keys += [delivery_key(each.tenant, name) for each, name in zip(named, names, strict=True)]
        rows = await self.rows(keys) if keys else []
        for each, name, row, delivery in zip(named, names, rows, rows[len(named) :], strict=False):
            notification = None if row is None else read(row, Notification)
            if row is not None and notification is not None and not _is_superseded(each, notification, name, delivery):
                each.notification, each.notification_version = notification, row.version
                each.name, each.delivery, each.is_delivery_known = name, delivery, True
        for each in lookups:
            if each.job.inline is not None:
                each.notification = each.job.inline
            if each.notification is not None:
                _check_channel(each)

    async def _load_missing(self, lookups: Sequence[_Lookup]) -> None:
        """The users, and the deliveries that have another name than expected."""
        unknown = [each for each in lookups if not each.is_delivery_known]
        people = {(each.tenant, each.user_id): None for each in lookups if each.user_id is not None}
        keys = [delivery_key(each.tenant, each.name) for each in unknown]
        keys += [user_key(*person) for person in people]
        if not keys:
            return
        rows = await self.rows(keys)
        for each, row in zip(unknown, rows, strict=False):
            each.delivery = row
        found = ((None, 0) if row is None else (read(row, User), row.version) for row in rows[len(unknown) :])
        users = dict(zip(people, found, strict=True))
        for each in lookups:
            if each.user_id is not None:
                each.user, each.user_version = users[each.tenant, each.user_id]

    async def _load_suppressions(self, lookups: Sequence[_Lookup]) -> None:
        """Which of the addresses nothing, or nothing of this category, may be sent to."""
        wanted: dict[_Recipient, list[_Lookup]] = {}
        for each in lookups:
            context = each.result
            assert isinstance(context, DeliveryContext)
            if is_over(context.delivery, context.job):
                continue
            for address in addresses(context.notification, context.user, context.channel):
                key = context.tenant, context.channel, address, context.notification.category
                wanted.setdefault(key, []).append(each)
        keys = {recipient: _suppressions(recipient) for recipient in wanted}
        distinct = list(dict.fromkeys(key for some in keys.values() for key in some))
        if not distinct:
            return
        found = {key for key, row in zip(distinct, await self.rows(distinct), strict=True) if row is not None}
        for recipient in wanted if found else ():
            if not found.isdisjoint(keys[recipient]):
                for each in wanted[recipient]:
                    context = each.result
                    assert isinstance(context, DeliveryContext)
                    each.result = msgspec.structs.replace(context, suppressed=context.suppressed | {recipient[2]})


_Recipient = tuple[str, ChannelName, Address, str]  # tenant, channel, address, category


def _suppressions(recipient: _Recipient) -> list[RowKey]:
    """The keys of the suppressions that forbid something: of everything, and of the category."""
    tenant, channel, address, category = recipient
    categories = [None] if category == TRANSACTIONAL else [None, category]
    return [key for one in categories for key in suppression_keys(tenant, channel, address, one)]


def _check_channel(lookup: _Lookup) -> None:
    """The channel of a job whose notification is known, and the name of its delivery."""
    job, notification = lookup.job, lookup.notification
    assert notification is not None
    count = len(notification.channels)
    if job.delivery is not None and job.channel >= count > 0:
        job = lookup.job = msgspec.structs.replace(job, channel=0)  # its channel was removed: see `_context`
    if not 0 <= job.channel < count:
        lookup.result = Invalid("channel", f"{job.channel} is none of the {count} channels")
        return
    lookup.user_id = notification.user
    name = jobs.delivery_name_of(job, lookup.record, notification)
    if name != lookup.name:
        lookup.name, lookup.delivery, lookup.is_delivery_known = name, None, False


def _is_superseded(lookup: _Lookup, notification: Notification, name: str, delivery: Row | None) -> bool:
    """Whether a job belongs to an earlier generation than the one with which its notification began again.

    A delivery that has a row is decided on by that row.
    """
    if not notification.generation:
        return False
    if lookup.job.delivery is None:
        return lookup.record.generation < notification.generation
    return delivery is None and generation_of(notification.id, name) < notification.generation


def _likely_name(lookup: _Lookup) -> str:
    """The name of the delivery, unless its notification goes to all channels."""
    job, record = lookup.job, lookup.record
    assert job.notification is not None
    return job.delivery or delivery_name(job.notification, record.number, record.generation)


def _context(lookup: _Lookup) -> DeliveryContext:
    notification = lookup.notification
    assert notification is not None
    channel = notification.channels[lookup.job.channel]
    if lookup.delivery is None:
        delivery = Delivery(lookup.name, notification.id, lookup.record.due, channel=channel, user=notification.user)
    else:
        delivery = read(lookup.delivery, Delivery)
    job, is_removed = lookup.job, False
    is_replaced = job.inline is None and replaced_reason(delivery, notification) is not None
    its = delivery.channel
    if job.delivery is not None and its is not None and its != channel:  # the channels were changed meanwhile
        is_removed = its not in notification.channels
        if not is_removed:
            job, channel = msgspec.structs.replace(job, channel=notification.channels.index(its)), its
    return DeliveryContext(
        tenant=lookup.tenant,
        job=job,
        is_channel_removed=is_removed,
        is_replaced=is_replaced,
        notification=notification,
        channel=channel,
        delivery=delivery,
        version=0 if lookup.delivery is None else lookup.delivery.version,
        user=lookup.user,
        user_version=lookup.user_version,
        notification_version=lookup.notification_version,
    )
