"""All services of notifications around one store, as an edge and a worker take them."""

from collections.abc import Mapping, Sequence

from tidings.clock import Clock
from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.change import NotificationChanges
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.limits.provider_status import ConfiguredProvider, ProviderDirectory
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.notifications.cancellation import Cancellation
from tidings.delivery.notifications.history import NotificationHistory
from tidings.delivery.notifications.pruner import Pruner
from tidings.delivery.notifications.reader import NotificationReader
from tidings.delivery.notifications.resend import Resend
from tidings.delivery.notifications.status import delivery_notices
from tidings.delivery.notifications.template_usage import TemplateUsage
from tidings.delivery.people.erasure import Erasure
from tidings.delivery.people.inbox import Inbox
from tidings.delivery.people.suppressions import Suppressions
from tidings.delivery.people.unsubscribe import NO_LINK
from tidings.delivery.people.user_import import UserImport
from tidings.delivery.people.users import Users
from tidings.delivery.receipts import ReceiptHandler
from tidings.delivery.rows import RETENTION_US
from tidings.delivery.templates.repository import TemplateRepository
from tidings.domain.notifications.message import ChannelName
from tidings.ports import ReceiptReader, WebhookCheck, any_webhook
from tidings.ports.tables import Tables


class NotificationServices:
    """What can be done about notifications.

    `schedules` is the engine; `keys` seal the links that unsubscribe, the first one those that are made from now on;
    `configured` are the providers in their order and `rates` their limits, both only to be shown; `served` are the
    channels that notifications can leave by, None where others know that; `webhook_check` refuses URLs that are never
    called; `readers` know the callbacks of providers by name; `has_links` says that e-mail gets a link to unsubscribe;
    `retention_us` is how long finished notifications can be looked up. Whoever runs workers passes their events to
    `inbox` too, so that its followers wake at once.
    """

    def __init__(
        self,
        tables: Tables,
        schedules: NotificationEngine,
        clock: Clock,
        *,
        keys: Sequence[bytes] = (),
        configured: Sequence[ConfiguredProvider] = (),
        served: frozenset[ChannelName] | None = None,
        webhook_check: WebhookCheck = any_webhook,
        rates: RateLimits | None = None,
        readers: Mapping[str, ReceiptReader] | None = None,
        has_links: bool = True,
        retention_us: int = RETENTION_US,
    ) -> None:
        self.clock = clock
        self.keys = tuple(keys)
        self.readers = dict(readers or {})
        self.users = Users(tables, schedules, clock, webhook_check)
        self.user_import = UserImport(tables, schedules, clock, webhook_check)
        self.suppressions = Suppressions(tables, clock)
        self.templates = TemplateRepository(tables, clock, TemplateUsage(tables, schedules, clock))
        self.acceptance = Acceptance(
            tables,
            schedules,
            self.templates,
            clock,
            served=served,
            webhook_check=webhook_check,
            has_links=has_links,
            retention_us=retention_us,
        )
        self.changes = NotificationChanges(tables, schedules, self.acceptance, clock, retention_us)
        self.reader = NotificationReader(tables, schedules, clock)
        self.cancellation = Cancellation(tables, schedules, clock, retention_us)
        self.history = NotificationHistory(schedules)
        self.resend = Resend(tables, schedules, clock)
        self.erasure = Erasure(tables, schedules, self.suppressions, clock)
        self.receipts = ReceiptHandler(tables, self.users, self.suppressions, clock, keys, retention_us)
        self.inbox = Inbox(tables, clock)
        self.pruner = Pruner(tables, schedules, clock, retention_us)
        self.providers = ProviderDirectory(tables, clock, configured, rates, () if has_links else (NO_LINK,))
        self._schedules = schedules

    async def notices(self) -> list[str]:
        """What somebody must put right, though nothing is lost: a provider that refuses us, nobody who delivers."""
        return [*await self.providers.notices(), *await delivery_notices(self._schedules)]
