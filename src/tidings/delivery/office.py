"""All services of notifications around one store, as an edge and a worker take them."""

from collections.abc import Mapping, Sequence

from tidings.clock import Clock
from tidings.delivery.cancelling import Cancelling
from tidings.delivery.erasing import Erasing
from tidings.delivery.explaining import Explaining
from tidings.delivery.importing import Importing
from tidings.delivery.inbox import Inbox
from tidings.delivery.lookup import Lookup
from tidings.delivery.notifying import Notifying
from tidings.delivery.receiving import Receiving
from tidings.delivery.retrying import Retrying
from tidings.delivery.schedules import Schedules
from tidings.delivery.staffing import NOTICE, nobody_delivers
from tidings.delivery.suppressions import Suppressions
from tidings.delivery.sweeping import Sweeping
from tidings.delivery.throttle import Rates
from tidings.delivery.unsubscribe import NO_LINK
from tidings.delivery.users import Users
from tidings.delivery.versions import Templates
from tidings.delivery.waiting import Waiting
from tidings.delivery.ways import Way, Ways
from tidings.domain.notifications.message import ChannelName
from tidings.ports import DocumentStore, ReceiptReader


class Office:
    """What can be done about notifications.

    `schedules` is the engine; `keys` seal the links that unsubscribe, the first one those that are made from now on;
    `ways` are the providers in their order and `rates` their limits, both only to be shown; `served` are the channels
    that notifications can leave by, None where others know that; `readers` know the callbacks of providers by name;
    `has_links` says that e-mail gets a link to unsubscribe. Whoever runs workers passes their events to `inbox` too, so
    that its followers wake at once.
    """

    def __init__(
        self,
        cabinet: DocumentStore,
        schedules: Schedules,
        clock: Clock,
        *,
        keys: Sequence[bytes] = (),
        ways: Sequence[Way] = (),
        served: frozenset[ChannelName] | None = None,
        rates: Rates | None = None,
        readers: Mapping[str, ReceiptReader] | None = None,
        has_links: bool = True,
    ) -> None:
        self.clock = clock
        self.keys = tuple(keys)
        self.readers = dict(readers or {})
        self.users = Users(cabinet, clock)
        self.importing = Importing(cabinet, clock)
        self.suppressions = Suppressions(cabinet, clock)
        self.templates = Templates(cabinet, clock, Waiting(cabinet, schedules, clock))
        self.notifying = Notifying(
            cabinet, schedules, self.users, self.templates, clock, served=served, has_links=has_links
        )
        self.lookup = Lookup(cabinet, schedules, clock)
        self.cancelling = Cancelling(cabinet, schedules, clock)
        self.explaining = Explaining(cabinet, schedules, clock)
        self.retrying = Retrying(cabinet, schedules, clock)
        self.erasing = Erasing(cabinet, schedules, self.suppressions, clock)
        self.receiving = Receiving(cabinet, self.users, self.suppressions, clock, keys)
        self.inbox = Inbox(cabinet, clock)
        self.sweeping = Sweeping(cabinet, schedules, clock)
        self.ways = Ways(cabinet, clock, ways, rates, () if has_links else (NO_LINK,))
        self._schedules = schedules

    async def notices(self) -> list[str]:
        """What somebody must put right, though nothing is lost: a provider that refuses us, nobody who delivers."""
        missing = [NOTICE] if await nobody_delivers(self._schedules) else []
        return [*await self.ways.notices(), *missing]
