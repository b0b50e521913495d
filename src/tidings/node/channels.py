"""The ways out to people that the settings name, opened; without any, files beside the database."""

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tidings.channels.loading import check_settings, open_channel
from tidings.channels.outbox import Outbox
from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.config.addresses import is_postgres
from tidings.config.channels import Channel as Table
from tidings.delivery.throttle import Rates
from tidings.delivery.ways import Way
from tidings.domain.rendered import CHANNEL_NAMES, ChannelName
from tidings.node.receipts import callback_url, check_receipts
from tidings.node.stores import MEMORY, file_of
from tidings.node.tables import named
from tidings.ports import Cabinet, Channel, Surroundings

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
    around = Surroundings(SystemClock(), folder_of(config))
    async with contextlib.AsyncExitStack() as stack:
        for table in config.channels:
            if table.provider != IN_APP:
                _open(table, config, around, stack)


@contextlib.asynccontextmanager
async def opened(config: Config, clock: Clock, cabinet: Cabinet) -> AsyncIterator[dict[str, Channel]]:
    """The channels by name, until the end."""
    around = Surroundings(clock, folder_of(config), cabinet)
    async with contextlib.AsyncExitStack() as stack:
        channels = {table.name: _open(table, config, around, stack) for table in tables_of(config)}
        others = [channel for channel in channels.values() if not isinstance(channel, Outbox)]
        for channel in channels.values():
            if isinstance(channel, Outbox):
                channel.others = others
        yield channels


def _open(table: Table, config: Config, around: Surroundings, stack: contextlib.AsyncExitStack) -> Channel:
    settings = table.settings
    if table.provider == OUTBOX:  # elsewhere than on a terminal it would lie among the lines of a log
        settings = {"terminal": sys.stderr.isatty(), **settings}
    elif table.provider == "twilio" and (url := callback_url(table, config.delivery.public_url)) is not None:
        settings = {"callback_url": url, **settings}
    with named(table.name):
        channel = open_channel(table.provider, settings, around)
    stack.push_async_callback(channel.close)
    return channel
