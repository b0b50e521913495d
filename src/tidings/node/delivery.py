"""The tables of channels, and how a mistake in one is told."""

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
from tidings.domain.facts import Telling
from tidings.domain.notifications.circuit_breaker import Terms as BreakerTerms
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.secret import Secret
from tidings.engine import Engine
from tidings.node.stores import MEMORY, file_of
from tidings.observe.metrics import DeliveryLog, DeliveryMetrics
from tidings.ports import DocumentStore, Erasable, Provider, ProviderContext, ReceiptReader


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Say in whose table it is that something is wrong."""
    try:
        yield
    except Invalid as invalid:
        first, *others = (Invalid(f"channels.{name}.{each.field}", each.detail) for each in invalid.all)
        raise Invalid(first.field, first.detail, tuple(others)) from None


IN_APP, OUTBOX = "in_app", "outbox"

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


def tables_of(config: Config) -> list[Table]:
    """What is opened, in order of preference: inboxes always, and the outbox behind all others, or alone."""
    given = list(config.channels)
    providers = {table.provider for table in given}
    if IN_APP not in providers:
        given.append(Table(IN_APP, IN_APP))
    if not providers - {IN_APP}:
        given.append(Table(OUTBOX, OUTBOX))
    return sorted(given, key=lambda table: table.provider == OUTBOX)


def is_outbox_alone(config: Config) -> bool:
    """Whether nothing leaves this machine."""
    return {table.provider for table in tables_of(config)} == {IN_APP, OUTBOX}


def folder_of(config: Config) -> Path:
    """The folder beside the database; where that is elsewhere, the one that we are in."""
    path = config.store.path
    return Path.cwd() if path == MEMORY or is_postgres(path) else file_of(path).resolve().parent


def ways_of(config: Config) -> list[Way]:
    """The same to be shown. Which channels a provider of somebody else serves only that one knows."""
    tables = tables_of(config)
    served = SERVED | {OUTBOX: _left({table.provider for table in tables})}
    return [Way(table.name, table.provider, served.get(table.provider, ())) for table in tables]


def _left(providers: set[str]) -> tuple[ChannelName, ...]:
    """The channels that these leave to the outbox; push as long as one kind of devices has no provider."""
    taken = {channel for provider in providers - {OUTBOX} for channel in SERVED.get(provider, ())}
    if not providers >= {"apns", "fcm"}:
        taken.discard("push")
    return tuple(channel for channel in SERVED[OUTBOX] if channel not in taken)


def lacks_links(config: Config) -> bool:
    """Whether e-mail leaves by a provider but cannot have a link to unsubscribe, because nobody could reach it."""
    is_sent = any("email" in way.channels and way.provider != OUTBOX for way in ways_of(config))
    return is_sent and config.delivery.public_url is None


def served_of(config: Config) -> frozenset[ChannelName] | None:
    """The channels that something can leave by; None if others know that: nodes that deliver, or a provider itself."""
    ways = ways_of(config)
    if "deliver" not in config.node.roles or not all(way.provider in SERVED for way in ways):
        return None
    return frozenset(channel for way in ways for channel in way.channels)


def rates_of(config: Config) -> Rates:
    """What each provider takes, of all and of each tenant."""
    tables = config.channels
    return Rates(
        {table.name: table.rate for table in tables if table.rate is not None},
        {table.name: table.tenant_rate for table in tables if table.tenant_rate is not None},
        {(table.name, tenant): rate for table in tables for tenant, rate in table.tenant_rates.items()},
    )


def check_channels(config: Config) -> None:
    """Refuse tables that no provider understands, without reading a secret. Nothing may be shown of them before."""
    for table in config.channels:
        with named(table.name):
            check_settings(table.provider, table.settings)
        check_receipts(table)


async def try_channels(config: Config) -> None:
    """Open them once and close them again, so that a start which is refused leaves no new file behind."""
    around = ProviderContext(SystemClock(), folder_of(config))
    async with contextlib.AsyncExitStack() as stack:
        for table in config.channels:
            if table.provider != IN_APP:
                _open(table, config, around, stack)


@contextlib.asynccontextmanager
async def opened(config: Config, clock: Clock, cabinet: DocumentStore) -> AsyncIterator[dict[str, Provider]]:
    """The channels by name, until the end."""
    around = ProviderContext(clock, folder_of(config), cabinet)
    async with contextlib.AsyncExitStack() as stack:
        channels = {table.name: _open(table, config, around, stack) for table in tables_of(config)}
        others = [channel for channel in channels.values() if not isinstance(channel, Outbox)]
        for channel in channels.values():
            if isinstance(channel, Outbox):
                channel.others = others
        yield channels


def _open(table: Table, config: Config, around: ProviderContext, stack: contextlib.AsyncExitStack) -> Provider:
    settings = table.settings
    if table.provider == OUTBOX:  # elsewhere than on a terminal it would lie among the lines of a log
        settings = {"terminal": sys.stderr.isatty(), **settings}
    elif table.provider == "twilio" and (url := callback_url(table, config.delivery.public_url)) is not None:
        settings = {"callback_url": url, **settings}
    with named(table.name):
        channel = open_channel(table.provider, settings, around)
    stack.push_async_callback(channel.close)
    return channel


class SendGrid(msgspec.Struct, frozen=True):
    """The key that SendGrid shows beside its signed event webhook; it is no secret."""

    verification_key: str


class Twilio(msgspec.Struct, frozen=True):
    """The account's token, which signs callbacks; it is the channel's own unless that sends with an API key."""

    token: Secret


class Signed(msgspec.Struct, frozen=True):
    """Everybody else signs as Standard Webhooks says, with a secret, or an older one while it is changed."""

    secret: Secret
    older_secret: Secret | None = None


KINDS: dict[str, type[msgspec.Struct]] = {"sendgrid": SendGrid, "twilio": Twilio}


def check_receipts(table: Table) -> None:
    """Refuse what can be told without reading a secret."""
    if table.receipts is not None:
        with named(f"{table.name}.receipts"):
            check_places(KINDS.get(table.provider, Signed), _given(table))


def readers_of(config: Config) -> dict[str, ReceiptReader]:
    """Who reads the callbacks of each channel that has any, by its name."""
    readers = {}
    for table in config.channels:
        if table.receipts is not None:
            with named(f"{table.name}.receipts"):
                readers[table.name] = _reader(table, config.delivery.public_url)
    return readers


def callback_url(table: Table, public_url: str | None) -> str | None:
    """Where a provider that must be told calls us with what became of a message."""
    return None if table.receipts is None or public_url is None else f"{public_url}/receipts/{table.name}"


def _reader(table: Table, public_url: str | None) -> ReceiptReader:
    match read_settings(KINDS.get(table.provider, Signed), _given(table)):
        case SendGrid(verification_key):
            return SendGridReader(verification_key)
        case Twilio(token):
            if public_url is None:
                raise Invalid("token", "Twilio signs the URL that it calls: set delivery.public_url too")
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


UNSUBSCRIBE = "/unsubscribe"
LINK_KEY_BYTES_MIN = 16
WRITING_US = 5_000_000

logger = logging.getLogger("tidings.delivery")


class People:
    """What a node has for notifications: all services of them, and the figures of its workers."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.office = Office(
            engine.store.documents,
            engine,
            engine.clock,
            keys=link_keys(config.delivery),
            ways=ways_of(config),
            served=served_of(config),
            rates=rates_of(config),
            readers=readers_of(config),
            has_links=not lacks_links(config),
        )
        self.metrics = DeliveryMetrics()
        self._listeners = (self.metrics, DeliveryLog(), self.office.inbox)

    def tell(self, fact: Telling) -> None:
        """Tell everyone what happened."""
        for listener in self._listeners:
            listener(fact)


def check_delivery(config: Config) -> None:
    """Refuse what can be told before anything is opened."""
    delivery = config.delivery
    if delivery.concurrency_reserved >= delivery.concurrency:
        told = f"must be less than delivery.concurrency ({delivery.concurrency}): else only high priority could be sent"
        raise Invalid("delivery.concurrency_reserved", told)
    readers_of(config)
    keys = link_keys(delivery)
    if delivery.public_url is not None and not keys:
        raise Invalid(
            "delivery.link_key",
            "links to unsubscribe are sealed with it, and delivery.public_url is set: write "
            '{env = "NAME"} or {file = "/path"}, and keep there a long random text (openssl rand -hex 32)',
        )


def link_keys(delivery: Delivery) -> list[bytes]:
    """The keys that seal links: the one of today first, then the one before it."""
    found = []
    for name, kept in (("link_key", delivery.link_key), ("older_link_key", delivery.older_link_key)):
        if not kept:
            continue
        try:
            key = read_secret(kept).reveal().encode()
        except ValueError as error:
            raise Invalid(f"delivery.{name}", str(error)) from None
        if len(key) < LINK_KEY_BYTES_MIN:
            raise Invalid(f"delivery.{name}", f"is shorter than {LINK_KEY_BYTES_MIN} bytes: openssl rand -hex 32")
        found.append(key)
    return found


def link_of(delivery: Delivery) -> Link:
    """What makes the link that ends a category for an address; none without a URL that people can reach."""
    keys = link_keys(delivery)
    if delivery.public_url is None or not keys:
        return no_link
    base, key = delivery.public_url + UNSUBSCRIBE, keys[0]

    def link(tenant: str, channel: ChannelName, address: str, category: str) -> str | None:
        return unsubscribe.link(base, key, Unsubscription(tenant, channel, address, category))

    return link


def settings_of(delivery: Delivery, rates: Rates) -> Settings:
    """What a worker is told. A claim, and who tries a provider again, outlast the longest call.

    A claim has room for what is written before and after the call, and no more: a killed worker's claim is waited for.
    """
    send_us = delivery.send_timeout_us
    room_us = min(send_us // 2, WRITING_US)
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


async def join_people(engine: Engine, config: Config, last: AsyncExitStack) -> People:
    """Let workers run beside the engine, if that is among the roles. `last` is closed once the engine has stopped."""
    people = People(engine, config)
    if "deliver" not in config.node.roles:
        return people
    clock = engine.clock
    channels = await last.enter_async_context(opened(config, clock, engine.store.documents))
    people.office.erasing.keepers |= {name: each for name, each in channels.items() if isinstance(each, Erasable)}
    worker = Worker(
        engine.store,
        engine.submit,
        channels,
        people.office.templates,
        clock,
        settings_of(config.delivery, rates_of(config)),
        tell=people.tell,
        link=link_of(config.delivery),
        is_ready=lambda: engine.readiness()[0],
    )
    engine.listen(worker)
    engine.accompany(worker, Sweeper(engine.store, people.office.sweeping, clock), aside=True)
    if lacks_links(config):
        logger.warning("%s", unsubscribe.NO_LINK)
    if is_outbox_alone(config):
        logger.info("no channel is configured: messages are written to %s", folder_of(config) / "outbox")
    return people
