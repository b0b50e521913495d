"""Notifications on a node: the configured providers, their receipts, unsubscribe links, and the delivery workers."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.config.checks import ProviderTable as Table
from tidings.config.checks import is_postgres
from tidings.config.settings import Delivery
from tidings.delivery.limits.provider_status import ConfiguredProvider
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.limits.router import Concurrency
from tidings.delivery.notifications.pruner import PrunerService
from tidings.delivery.people import unsubscribe
from tidings.delivery.people.unsubscribe import Unsubscription
from tidings.delivery.services import NotificationServices
from tidings.delivery.templates.renderer import Link, no_link
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.delivery.worker.worker import Settings, Worker
from tidings.domain.errors import Invalid
from tidings.domain.facts import Called, DeliveryFact
from tidings.domain.notifications.address import PLATFORMS
from tidings.domain.notifications.circuit_breaker import Terms as BreakerTerms
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.engine import Engine
from tidings.node.stores import MEMORY, file_of
from tidings.observe.delivery import DeliveryLog, DeliveryMetrics
from tidings.ports import Erasable, Provider, ProviderContext, ReceiptReader, WebhookCheck, any_webhook
from tidings.providers.files import FOLDER
from tidings.providers.registry import check_provider, current_name, open_provider, provider_type, receipt_type
from tidings.providers.settings import check_settings, read_secret, read_settings

IN_APP, FILES = "in_app", "files"
UNSUBSCRIBE = "/unsubscribe"
LINK_KEY_BYTES_MIN = 16
WRITE_US_MAX = 5_000_000  # how long writing before and after a call of a provider may take

logger = logging.getLogger("tidings.delivery")


@contextlib.contextmanager
def errors_in_table(name: str) -> Iterator[None]:
    """Prefix the fields of a refusal with the table they are in: `channels.<name>.<field>`."""
    try:
        yield
    except Invalid as invalid:
        first, *others = (Invalid(f"channels.{name}.{each.field}", each.detail) for each in invalid.all)
        raise Invalid(first.field, first.detail, tuple(others)) from None


def provider_tables(config: Config) -> list[Table]:
    """The providers to open, in order of preference. The inbox is always one of them; fallbacks come last, and messages
    are written to files if there is no other provider."""
    given = [msgspec.structs.replace(table, provider=current_name(table.provider)) for table in config.channels]
    kinds = {table.provider for table in given}
    if IN_APP not in kinds:
        given.append(Table(name=IN_APP, provider=IN_APP))
    if not kinds - {IN_APP}:
        given.append(Table(name=FILES, provider=FILES))
    return sorted(given, key=lambda table: provider_type(table.provider).is_fallback)


def sends_nothing(config: Config) -> bool:
    """Whether no provider is configured that sends anything off this machine."""
    return {table.provider for table in provider_tables(config)} == {IN_APP, FILES}


def folder_of(config: Config) -> Path:
    """The folder of the store's file; the current folder if the store is not a file."""
    path = config.store.path
    return Path.cwd() if path == MEMORY or is_postgres(path) else file_of(path).resolve().parent


def providers_of(config: Config) -> list[ConfiguredProvider]:
    """The providers to show, each with the channels that it serves."""
    tables = provider_tables(config)
    return [ConfiguredProvider(table.name, table.provider, _channels(table, tables)) for table in tables]


def _channels(table: Table, tables: list[Table]) -> tuple[ChannelName, ...]:
    """The channels that a provider serves; for a fallback those that no other serves, push included until every push
    service has a provider."""
    found = provider_type(table.provider)
    if not found.is_fallback:
        return found.channels
    others = [other for other in (provider_type(each.provider) for each in tables) if not other.is_fallback]
    served = {channel for other in others for channel in other.channels}
    if {platform for other in others if "push" in other.channels for platform in other.platforms} != set(PLATFORMS):
        served.discard("push")
    return tuple(channel for channel in found.channels if channel not in served)


def lacks_links(config: Config) -> bool:
    """Whether e-mail is sent without unsubscribe links, because `delivery.public_url` is not set."""
    is_sent = any("email" in each.channels and each.provider != FILES for each in providers_of(config))
    return is_sent and config.delivery.public_url is None


def served_channels(config: Config) -> frozenset[ChannelName] | None:
    """The channels that have a provider; None if this node cannot know, because another node delivers, to some at
    least."""
    if "deliver" not in config.node.roles or set(config.node.channels) != set(CHANNEL_NAMES):
        return None
    return frozenset(channel for each in providers_of(config) for channel in each.channels)


def webhook_check_of(config: Config) -> WebhookCheck:
    """The check of URLs where they are given: refused is what every provider of webhooks in the configuration refuses,
    also if only other nodes deliver. Without such a provider here nothing is refused: another node may have one."""
    checks: list[WebhookCheck] = []
    for table in provider_tables(config):
        kind = provider_type(table.provider)
        if "webhook" in kind.channels and not kind.is_fallback:
            with errors_in_table(table.name):
                checks.append(any_webhook if kind.webhook_check is None else kind.webhook_check(table.settings))

    def check(url: str, field: str) -> None:
        refusals: list[Invalid] = []
        for each in checks:
            try:
                each(url, field)
            except Invalid as invalid:
                refusals.append(invalid)
        if checks and len(refusals) == len(checks):
            raise refusals[0]

    return check


def rates_of(config: Config) -> RateLimits:
    """The rate limits of each provider: in all, and for each tenant."""
    tables = config.channels
    return RateLimits(
        {table.name: table.rate for table in tables if table.rate is not None},
        {table.name: table.tenant_rate for table in tables if table.tenant_rate is not None},
        {(table.name, tenant): rate for table in tables for tenant, rate in table.tenant_rates.items()},
    )


def check_channels(config: Config) -> None:
    """Refuse invalid tables without reading a secret. Tables are shown only after this check, because a secret could
    be misplaced in one."""
    for table in config.channels:
        with errors_in_table(table.name):
            check_provider(table.provider, table.settings)
        check_receipts(table)


async def try_channels(config: Config) -> None:
    """Open the providers once and close them again, so that a refused start leaves no new file behind."""
    context = ProviderContext(clock=SystemClock(), folder=folder_of(config))
    async with contextlib.AsyncExitStack() as stack:
        for table in config.channels:
            _open(table, config, context, stack)


@contextlib.asynccontextmanager
async def open_providers(config: Config, clock: Clock) -> AsyncIterator[dict[str, Provider]]:
    """Open the providers, by name, and close them at the end."""
    context = ProviderContext(clock=clock, folder=folder_of(config))
    providers: dict[str, Provider] = {}
    async with contextlib.AsyncExitStack() as stack:
        for table in provider_tables(config):
            if not provider_type(table.provider).is_fallback:
                providers[table.name] = _open(table, config, context, stack)
        others = msgspec.structs.replace(context, others=tuple(providers.values()))
        for table in provider_tables(config):
            if table.name not in providers:
                providers[table.name] = _open(table, config, others, stack)
        yield providers


def _open(table: Table, config: Config, context: ProviderContext, stack: contextlib.AsyncExitStack) -> Provider:
    context = msgspec.structs.replace(context, receipts_url=callback_url(table, config.delivery.public_url))
    with errors_in_table(table.name):
        provider = open_provider(table.provider, table.settings, context)
    stack.push_async_callback(provider.close)
    return provider


def check_receipts(table: Table) -> None:
    """Refuse an invalid table `receipts`, without reading a secret."""
    if table.receipts is not None:
        with errors_in_table(f"{table.name}.receipts"):
            found = receipt_type(table.provider)
            check_settings(found.settings, {**found.defaults(table.settings), **table.receipts})


def readers_of(config: Config) -> dict[str, ReceiptReader]:
    """The readers of receipts, by the name of their provider's table."""
    readers = {}
    for table in config.channels:
        if table.receipts is not None:
            with errors_in_table(f"{table.name}.receipts"):
                found = receipt_type(table.provider)
                settings = read_settings(found.settings, {**found.defaults(table.settings), **table.receipts})
                readers[table.name] = found.open(settings, config.delivery.public_url)
    return readers


def callback_url(table: Table, public_url: str | None) -> str | None:
    """The URL to which a provider sends its receipts; None if it sends none."""
    return None if table.receipts is None or public_url is None else f"{public_url}/receipts/{table.name}"


class NotificationRuntime:
    """What a node has for notifications: the services behind the API, and the metrics of its workers."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.services = NotificationServices(
            engine.store.tables,
            engine,
            engine.clock,
            keys=link_keys(config.delivery),
            configured=providers_of(config),
            served=served_channels(config),
            webhook_check=webhook_check_of(config),
            rates=rates_of(config),
            readers=readers_of(config),
            has_links=not lacks_links(config),
            retention_us=config.delivery.retention_us,
        )
        self.metrics = DeliveryMetrics()
        self._log = DeliveryLog()

    def on_fact(self, fact: DeliveryFact) -> None:
        """Pass a fact to metrics, log and inbox readers. Calls, of which there are most, are only counted."""
        if type(fact) is Called:
            self.metrics.called(fact)
        else:
            self.metrics(fact)
            self._log(fact)
            self.services.inbox(fact)


def check_delivery(config: Config) -> None:
    """Refuse invalid settings before anything is opened."""
    delivery = config.delivery
    if delivery.concurrency_reserved >= delivery.concurrency:
        detail = (
            f"must be less than delivery.concurrency ({delivery.concurrency}): else only high priority could be sent"
        )
        raise Invalid("delivery.concurrency_reserved", detail)
    readers_of(config)
    keys = link_keys(delivery)
    if delivery.public_url is not None and not keys:
        raise Invalid(
            "delivery.link_key",
            "unsubscribe links are encrypted with it, and delivery.public_url is set: write "
            '{env = "NAME"} or {file = "/path"}, and store a long random text there (openssl rand -hex 32)',
        )


def link_keys(delivery: Delivery) -> list[bytes]:
    """The keys that encrypt unsubscribe links: the current one, then the older one."""
    found = []
    for name, source in (("link_key", delivery.link_key), ("older_link_key", delivery.older_link_key)):
        if not source:
            continue
        try:
            key = read_secret(source).reveal().encode()
        except ValueError as error:
            raise Invalid(f"delivery.{name}", str(error)) from None
        if len(key) < LINK_KEY_BYTES_MIN:
            raise Invalid(
                f"delivery.{name}", f"is shorter than {LINK_KEY_BYTES_MIN} bytes: create one with openssl rand -hex 32"
            )
        found.append(key)
    return found


def link_of(delivery: Delivery) -> Link:
    """The function that makes the unsubscribe link of an address and category; no link without `public_url`."""
    keys = link_keys(delivery)
    if delivery.public_url is None or not keys:
        return no_link
    base, key = delivery.public_url + UNSUBSCRIBE, keys[0]

    def link(tenant: str, channel: ChannelName, address: str, category: str) -> str | None:
        return unsubscribe.link(base, key, Unsubscription(tenant, channel, address, category))

    return link


def settings_of(delivery: Delivery, rates: RateLimits) -> Settings:
    """The settings of a worker. A claim, and the trial call of a circuit breaker, outlast the longest call.

    A claim is only as long as the call and the writes before and after it, because the claim of a killed worker must
    expire before another worker continues.
    """
    send_us = delivery.send_timeout_us
    room_us = min(send_us // 2, WRITE_US_MAX)
    backoff = Backoff(delivery.retry_first_us, delivery.retry_longest_us, delivery.attempts_max, delivery.age_max_us)
    return Settings(
        policy=RetryPolicy(backoff, claim_us=send_us + room_us),
        breaker=BreakerTerms(
            delivery.breaker_failures, delivery.breaker_first_us, delivery.breaker_longest_us, send_us * 4 // 3
        ),
        rates=rates,
        concurrency=dict.fromkeys(CHANNEL_NAMES, Concurrency(delivery.concurrency, delivery.concurrency_reserved)),
        send_s=send_us / 1_000_000,
        retention_us=delivery.retention_us,
    )


async def add_delivery(engine: Engine, config: Config, last: AsyncExitStack) -> NotificationRuntime:
    """Run delivery workers beside the engine, if the node has that role. `last` is closed after the engine stops."""
    runtime = NotificationRuntime(engine, config)
    if "deliver" not in config.node.roles:
        return runtime
    clock = engine.clock
    providers = await last.enter_async_context(open_providers(config, clock))
    runtime.services.erasure.erasable |= {name: each for name, each in providers.items() if isinstance(each, Erasable)}
    settings = msgspec.structs.replace(
        settings_of(config.delivery, rates_of(config)),
        channels=config.node.channels,
        receipts_from=frozenset(table.name for table in config.channels if table.receipts is not None),
    )
    worker = Worker(
        engine.store,
        providers,
        runtime.services.templates,
        clock,
        settings,
        submit=engine.submit,
        commit=engine.commit,
        commit_urgent=engine.commit_urgent,
        listener=runtime.on_fact,
        link=link_of(config.delivery),
        is_ready=lambda: engine.readiness()[0],
    )
    engine.following.watch(worker.topics, worker.notify)
    runtime.metrics.watch(worker.backlog, clock)
    engine.add_service(worker, PrunerService(engine.store, runtime.services.pruner, clock), stops_first=True)
    if "email" in config.node.channels and lacks_links(config):
        logger.warning("%s", unsubscribe.NO_LINK)
    if sends_nothing(config):
        logger.info("no provider is configured: messages are written to %s", folder_of(config) / FOLDER)
    return runtime
