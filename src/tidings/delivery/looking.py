"""Everything that a decision needs, looked up for many at once, and at the moment when it would leave."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery import errands
from tidings.delivery.deciding import Address, Case, addresses, is_over
from tidings.delivery.filing import delivery_key, delivery_name, notification_key, read, suppressed_keys, user_key
from tidings.delivery.gathering import Gathering
from tidings.delivery.suppressions import KeyUpgrade
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.notifications.user import TRANSACTIONAL, User
from tidings.domain.schedules.schedule import Record
from tidings.ports import Document, DocumentStore, Key

Found = Sequence[Document | None]


class Looking:
    """Three reads for each: the notification and its delivery, the user, their addresses."""

    def __init__(self, cabinet: DocumentStore, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._key_upgrade = KeyUpgrade(cabinet, clock)
        self._gathering: Gathering[Sequence[Key], Found] = Gathering(self._get)

    async def look(self, tenant: str, record: Record, errand: DeliveryJob) -> Case | None:
        """All about a record; None if its notification was erased. `Invalid` if it makes no sense."""
        urgent = record.topic.endswith(".high")
        notification = errand.inline
        found, likely, noted = None, None, None
        if notification is None:
            assert errand.notification is not None, "errands that were read name one or carry one"
            likely = errand.delivery or delivery_name(errand.notification, record.number, record.generation)
            keys = [notification_key(tenant, errand.notification), delivery_key(tenant, likely)]
            kept, found = await self._gathering.ask(keys, urgent=urgent)
            if kept is None:
                return None
            notification, noted = read(kept, Notification), kept.version
        if not 0 <= errand.channel < len(notification.channels):
            raise Invalid("channel", f"{errand.channel} is none of the {len(notification.channels)} channels")
        name = errands.named(errand, record, notification)
        if likely != name:
            [found] = await self._gathering.ask([delivery_key(tenant, name)], urgent=urgent)
        return await self._case(tenant, record, errand, notification, name, found, noted)

    async def _case(
        self,
        tenant: str,
        record: Record,
        errand: DeliveryJob,
        notification: Notification,
        name: str,
        found: Document | None,
        noted: int | None,
    ) -> Case:
        """The case with the person, unless there is nothing left to decide."""
        channel = notification.channels[errand.channel]
        if found is None:
            delivery = Delivery(name, notification.id, record.due, channel=channel, user=notification.user)
        else:
            delivery = read(found, Delivery)
        version = 0 if found is None else found.version
        case = Case(tenant, errand, notification, delivery, version, noted=noted)
        if is_over(delivery, errand):
            return case
        urgent = notification.priority == "high"
        user = None
        if notification.user is not None:
            [person] = await self._gathering.ask([user_key(tenant, notification.user)], urgent=urgent)
            user = None if person is None else read(person, User)
        places = addresses(notification, user, channel)
        suppressed = await self._suppressed(case, places, urgent=urgent)
        return msgspec.structs.replace(case, user=user, suppressed=suppressed)

    async def _suppressed(self, case: Case, places: Sequence[Address], *, urgent: bool) -> frozenset[Address]:
        """Those of the addresses that nothing, or nothing of this category, may go to."""
        if not places:
            return frozenset()
        await self._key_upgrade.finish(case.tenant)
        category = case.notification.category
        categories = [None] if category == TRANSACTIONAL else [None, category]
        pairs = [
            (place, key)
            for place in places
            for each in categories
            for key in suppressed_keys(case.tenant, case.channel, place, each)
        ]
        found = await self._gathering.ask([key for _, key in pairs], urgent=urgent)
        return frozenset(place for (place, _), there in zip(pairs, found, strict=True) if there is not None)

    async def again(self, tenant: str, name: str) -> tuple[Delivery, int] | None:
        """A delivery as it stands, and its version."""
        [there] = await self._gathering.ask([delivery_key(tenant, name)], urgent=True)
        return None if there is None else (read(there, Delivery), there.version)

    async def _get(self, asked: Sequence[Sequence[Key]]) -> list[Found]:
        """One look for all of them; what several ask for is read once."""
        wanted = list({key: None for keys in asked for key in keys})
        found = dict(zip(wanted, await self._cabinet.get(wanted, self._clock.now()), strict=True))
        return [[found[key] for key in keys] for keys in asked]
