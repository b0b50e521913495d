"""Notifications on a node: the configured providers, their receipts, unsubscribe links, and the delivery workers."""

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from tidings.channels.callbacks import SendGridReader, SignedReader, TwilioReader
from tidings.channels.loading import check_places, check_settings, open_channel, read_secret, read_settings
from tidings.channels.outbox import Outbox
from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.config.channels import Channel as Table
from tidings.config.checks import is_postgres
from tidings.config.settings import Delivery
from tidings.delivery import unsubscribe
from tidings.delivery.handling import Terms
from tidings.delivery.office import Office
from tidings.delivery.sending import Concurrency
from tidings.delivery.sweeping import Sweeper
from tidings.delivery.throttle import Rates
from tidings.delivery.unsubscribe import Unsubscription
from tidings.delivery.ways import Way
from tidings.delivery.wording import Link, no_link
from tidings.delivery.worker import Settings, Worker
from tidings.domain.errors import Invalid
from tidings.domain.facts import DeliveryFact
from tidings.domain.notifications.circuit_breaker import Terms as BreakerTerms
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.secret import Secret
from tidings.engine import Engine
from tidings.node.stores import MEMORY, file_of
from tidings.observe.metrics import DeliveryLog, DeliveryMetrics
from tidings.ports import DocumentStore, Erasable, Provider, ProviderContext, ReceiptReader

IN_APP, OUTBOX = "in_app", "outbox"
UNSUBSCRIBE = "/unsubscribe"
LINK_KEY_BYTES_MIN = 16
WRITE_US_MAX = 5_000_000  # how long writing before and after a call of a provider may take

# The channels that each provider serves.
SERVED: dict[str, tuple[ChannelName, ...]] = {
    "smtp": ("email",),
    "sendgrid": ("email",),
    "twilio": ("sms",),
    "apns": ("push",),
    "fcm": ("push",),
    "webhook": ("webhook",),
    IN_APP: ("in_app",),
    OUTBOX: tuple(name for name in CHANNEL_NAMES if name != "in_app"),
}


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
    """The providers to open, in order of preference. The inbox is always one of them; the outbox comes last, and is
    added if there is no other provider."""
    given = list(config.channels)
    providers = {table.provider for table in given}
    if IN_APP not in providers:
        given.append(Table(name=IN_APP, provider=IN_APP))
    if not providers - {IN_APP}:
        given.append(Table(name=OUTBOX, provider=OUTBOX))
    return sorted(given, key=lambda table: table.provider == OUTBOX)


def is_outbox_alone(config: Config) -> bool:
    """Whether no provider is configured that sends anything off this machine."""
    return {table.provider for table in provider_tables(config)} == {IN_APP, OUTBOX}


def folder_of(config: Config) -> Path:
    """The folder of the store's file; the current folder if the store is not a file."""
    path = config.store.path
    return Path.cwd() if path == MEMORY or is_postgres(path) else file_of(path).resolve().parent


def providers_of(config: Config) -> list[Way]:
    """The providers to show, with their channels, which are unknown for a provider from another package."""
    tables = provider_tables(config)
    served = SERVED | {OUTBOX: _outbox_channels({table.provider for table in tables})}
    return [Way(table.name, table.provider, served.get(table.provider, ())) for table in tables]


def _outbox_channels(providers: set[str]) -> tuple[ChannelName, ...]:
    """The channels that no other provider serves; push is among them until both kinds of devices have a provider."""
    served = {channel for provider in providers - {OUTBOX} for channel in SERVED.get(provider, ())}
    if not providers >= {"apns", "fcm"}:
        served.discard("push")
    return tuple(channel for channel in SERVED[OUTBOX] if channel not in served)


def lacks_links(config: Config) -> bool:
    """Whether e-mail is sent without unsubscribe links, because `delivery.public_url` is not set."""
    is_sent = any("email" in each.channels and each.provider != OUTBOX for each in providers_of(config))
    return is_sent and config.delivery.public_url is None


def served_channels(config: Config) -> frozenset[ChannelName] | None:
    """The channels that have a provider; None if this node cannot know: another node delivers, or a provider comes from
    another package."""
    providers = providers_of(config)
    if "deliver" not in config.node.roles or not all(each.provider in SERVED for each in providers):
        return None
    return frozenset(channel for each in providers for channel in each.channels)


def rates_of(config: Config) -> Rates:
    """The rate limits of each provider: in all, and for each tenant."""
    tables = config.channels
    return Rates(
        {table.name: table.rate for table in tables if table.rate is not None},
        {table.name: table.tenant_rate for table in tables if table.tenant_rate is not None},
        {(table.name, tenant): rate for table in tables for tenant, rate in table.tenant_rates.items()},
    )


def check_channels(config: Config) -> None:
    """Refuse invalid tables without reading a secret. Tables are shown only after this check, because a secret could
    be misplaced in one."""
    for table in config.channels:
        with errors_in_table(table.name):
            check_settings(table.provider, table.settings)
        check_receipts(table)


async def try_channels(config: Config) -> None:
    """Open the providers once and close them again, so that a refused start leaves no new file behind."""
    context = ProviderContext(SystemClock(), folder_of(config))
    async with contextlib.AsyncExitStack() as stack:
        for table in config.channels:
            if table.provider != IN_APP:
                _open(table, config, context, stack)


@contextlib.asynccontextmanager
async def open_providers(config: Config, clock: Clock, documents: DocumentStore) -> AsyncIterator[dict[str, Provider]]:
    """Open the providers, by name, and close them at the end."""
    context = ProviderContext(clock, folder_of(config), documents)
    async with contextlib.AsyncExitStack() as stack:
        providers = {table.name: _open(table, config, context, stack) for table in provider_tables(config)}
        others = [provider for provider in providers.values() if not isinstance(provider, Outbox)]
        for provider in providers.values():
            if isinstance(provider, Outbox):
                provider.others = others
        yield providers


def _open(table: Table, config: Config, context: ProviderContext, stack: contextlib.AsyncExitStack) -> Provider:
    settings = table.settings
    if table.provider == OUTBOX:  # without a terminal, messages would be mixed with log lines
        settings = {"terminal": sys.stderr.isatty(), **settings}
    elif table.provider == "twilio" and (url := callback_url(table, config.delivery.public_url)) is not None:
        settings = {"callback_url": url, **settings}
    with errors_in_table(table.name):
        provider = open_channel(table.provider, settings, context)
    stack.push_async_callback(provider.close)
    return provider


class SendGrid(msgspec.Struct, frozen=True):
    """The public key that SendGrid shows for its signed event webhook; it is not a secret."""

    verification_key: str


class Twilio(msgspec.Struct, frozen=True):
    """The token of the account, which signs callbacks; by default the one that the provider sends with."""

    token: Secret


class Signed(msgspec.Struct, frozen=True):
    """All other providers sign by Standard Webhooks, with a secret, or with the older one while it is rotated."""

    secret: Secret
    older_secret: Secret | None = None


# The table `receipts` of each provider; `Signed` for all others.
RECEIPT_SETTINGS: dict[str, type[msgspec.Struct]] = {"sendgrid": SendGrid, "twilio": Twilio}


def check_receipts(table: Table) -> None:
    """Refuse an invalid table `receipts`, without reading a secret."""
    if table.receipts is not None:
        with errors_in_table(f"{table.name}.receipts"):
            check_places(RECEIPT_SETTINGS.get(table.provider, Signed), _given(table))


def readers_of(config: Config) -> dict[str, ReceiptReader]:
    """The readers of receipts, by the name of their provider's table."""
    readers = {}
    for table in config.channels:
        if table.receipts is not None:
            with errors_in_table(f"{table.name}.receipts"):
                readers[table.name] = _reader(table, config.delivery.public_url)
    return readers


def callback_url(table: Table, public_url: str | None) -> str | None:
    """The URL to which a provider sends its receipts; None if it sends none."""
    return None if table.receipts is None or public_url is None else f"{public_url}/receipts/{table.name}"


def _reader(table: Table, public_url: str | None) -> ReceiptReader:
    match read_settings(RECEIPT_SETTINGS.get(table.provider, Signed), _given(table)):
        case SendGrid(verification_key):
            return SendGridReader(verification_key)
        case Twilio(token):
            if public_url is None:
                raise Invalid("token", "Twilio's signature includes the URL that it calls: set delivery.public_url too")
            return TwilioReader(token, public_url)
        case Signed(secret, older):
            return SignedReader([secret, *([older] if older is not None else [])])
        case other:
            raise AssertionError(f"no reader for {type(other).__name__}")


def _given(table: Table) -> Mapping[str, Any]:
    receipts = table.receipts or {}
    if table.provider == "twilio" and "key" not in table.settings and "token" in table.settings:
        return {"token": table.settings["token"], **receipts}
    return receipts


class NotificationRuntime:
    """What a node has for notifications: the services behind the API, and the metrics of its workers."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.office = Office(
            engine.store.documents,
            engine,
            engine.clock,
            keys=link_keys(config.delivery),
            ways=providers_of(config),
            served=served_channels(config),
            rates=rates_of(config),
            readers=readers_of(config),
            has_links=not lacks_links(config),
        )
        self.metrics = DeliveryMetrics()
        self._listeners = (self.metrics, DeliveryLog(), self.office.inbox)

    def on_fact(self, fact: DeliveryFact) -> None:
        """Pass a fact to metrics, log and inbox readers."""
        for listener in self._listeners:
            listener(fact)


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


def settings_of(delivery: Delivery, rates: Rates) -> Settings:
    """The settings of a worker. A claim, and the trial call of a circuit breaker, outlast the longest call.

    A claim is only as long as the call and the writes before and after it, because the claim of a killed worker must
    expire before another worker continues.
    """
    send_us = delivery.send_timeout_us
    room_us = min(send_us // 2, WRITE_US_MAX)
    backoff = Backoff(delivery.retry_first_us, delivery.retry_longest_us, delivery.attempts_max, delivery.age_max_us)
    return Settings(
        terms=Terms(backoff, claim_us=send_us + room_us),
        breaker=BreakerTerms(
            delivery.breaker_failures, delivery.breaker_first_us, delivery.breaker_longest_us, send_us * 4 // 3
        ),
        rates=rates,
        concurrency=dict.fromkeys(CHANNEL_NAMES, Concurrency(delivery.concurrency, delivery.concurrency_reserved)),
        send_s=send_us / 1_000_000,
    )


async def add_delivery(engine: Engine, config: Config, last: AsyncExitStack) -> NotificationRuntime:
    """Run delivery workers beside the engine, if the node has that role. `last` is closed after the engine stops."""
    runtime = NotificationRuntime(engine, config)
    if "deliver" not in config.node.roles:
        return runtime
    clock = engine.clock
    providers = await last.enter_async_context(open_providers(config, clock, engine.store.documents))
    runtime.office.erasing.keepers |= {name: each for name, each in providers.items() if isinstance(each, Erasable)}
    worker = Worker(
        engine.store,
        engine.submit,
        providers,
        runtime.office.templates,
        clock,
        settings_of(config.delivery, rates_of(config)),
        tell=runtime.on_fact,
        link=link_of(config.delivery),
        is_ready=lambda: engine.readiness()[0],
    )
    engine.listen(worker)
    engine.add_service(worker, Sweeper(engine.store, runtime.office.sweeping, clock), stops_first=True)
    if lacks_links(config):
        logger.warning("%s", unsubscribe.NO_LINK)
    if is_outbox_alone(config):
        logger.info("no provider is configured: messages are written to %s", folder_of(config) / "outbox")
    return runtime
