"""Workers, joined to an engine: what is due to people is read from its topics and told to them."""

import logging
from contextlib import AsyncExitStack

from tidings.channels.loading import read_secret
from tidings.config import Config
from tidings.config.settings import Delivery
from tidings.delivery import unsubscribe
from tidings.delivery.handling import Terms
from tidings.delivery.office import Office
from tidings.delivery.sending import Concurrency
from tidings.delivery.sweeping import Sweeper
from tidings.delivery.throttle import Rates
from tidings.delivery.unsubscribe import Unsubscription
from tidings.delivery.wording import Link, no_link
from tidings.delivery.worker import Settings, Worker
from tidings.domain.breaker import Terms as BreakerTerms
from tidings.domain.errors import Invalid
from tidings.domain.rendered import CHANNEL_NAMES, ChannelName
from tidings.domain.retry import Backoff
from tidings.domain.telling import DeliveryFact
from tidings.engine import Engine
from tidings.node.channels import folder_of, is_outbox_alone, lacks_links, opened, rates_of, served_of, ways_of
from tidings.node.receipts import readers_of
from tidings.observe.delivery import DeliveryLog, DeliveryMetrics
from tidings.ports import Keeper

UNSUBSCRIBE = "/unsubscribe"
LINK_KEY_BYTES_MIN = 16
WRITING_US = 5_000_000

logger = logging.getLogger("tidings.delivery")


class People:
    """What a node has for notifications: all services of them, and the figures of its workers."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.office = Office(
            engine.store.cabinet,
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

    def tell(self, fact: DeliveryFact) -> None:
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
    channels = await last.enter_async_context(opened(config, clock, engine.store.cabinet))
    people.office.erasing.keepers |= {name: each for name, each in channels.items() if isinstance(each, Keeper)}
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
    engine.add_service(worker, Sweeper(engine.store, people.office.sweeping, clock), stops_first=True)
    if lacks_links(config):
        logger.warning("%s", unsubscribe.NO_LINK)
    if is_outbox_alone(config):
        logger.info("no channel is configured: messages are written to %s", folder_of(config) / "outbox")
    return people
