"""Receipts of providers move a delivery forward, and suppress addresses that must not be used again.

A receipt may come before the worker has stored the provider's id of its message. It is kept under that id, in the row
which the worker is about to write: so the worker finds it there, on whichever node it runs, and applies it when it
settles the delivery.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from tidings.clock import Clock
from tidings.delivery.people import unsubscribe
from tidings.delivery.people.suppressions import Suppressions
from tidings.delivery.people.users import Users
from tidings.delivery.rows import (
    PROVIDER_ID_BYTES_MAX,
    RETENTION_US,
    ProviderMessage,
    change,
    delivery_key,
    delivery_of,
    delivery_put,
    kept_receipts_put,
    owner_of,
    provider_message_key,
    read,
)
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.names import is_storable
from tidings.domain.notifications.delivery import Delivery, DeliveryReceipt, ProviderEvent, State, state_after
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.tables import PROVIDER_MESSAGES_KEPT, SHARED
from tidings.domain.notifications.user import TRANSACTIONAL
from tidings.ports.tables import Remove, Tables

NEWS_MAX = 20
REASON_CHARS_MAX = 150
TRIES_MAX = 20

# Of the receipts that wait for their message, for each provider, and each tenant where it is known.
KEPT_ROWS_MAX = 5_000
KEPT_BYTES_MAX = 4 * 1024 * 1024
KEPT_ROW_BYTES_MAX = 16 * 1024

_OWN_ID = re.compile(r"/(?:(?:[0-9]+\.)?-?[0-9.]+|" + "|".join(CHANNEL_NAMES) + r")(?:@[^/]*)?\Z")


class ReceiptResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a receipt changed. `kept` waits for a message with this id, `unknown` is about one that is forgotten."""

    outcome: Literal["applied", "unchanged", "kept", "unknown"]
    tenant: str | None = None
    delivery: str | None = None
    state: State | None = None
    suppressed: bool = False


class Unsubscribed(msgspec.Struct, frozen=True):
    """What a link has ended: for which address and category, and for which users that are known to have it."""

    tenant: str
    channel: ChannelName
    address: str
    category: str
    users: tuple[str, ...]
    changed: bool


class ReceiptHandler:
    """Takes receipts and unsubscriptions; whoever calls has checked that they are genuine."""

    def __init__(
        self,
        tables: Tables,
        users: Users,
        suppressions: Suppressions,
        clock: Clock,
        keys: Sequence[bytes] = (),
        retention_us: int = RETENTION_US,
    ) -> None:
        self._tables = tables
        self._users = users
        self._suppressions = suppressions
        self._clock = clock
        self._keys = list(keys)
        self._retention_us = retention_us
        self._kept = _KeptReceipts(tables, clock)

    async def apply(self, provider: str, receipt: DeliveryReceipt, tenant: str | None = None) -> ReceiptResult:
        """Move the delivery that a receipt speaks of, or keep it until there is one. Late, or for the second time, it
        changes nothing.

        `tenant` is needed only to find a delivery by our own message id, where the provider's is not known and the
        receipt does not say it. If it is given, no other tenant's is moved.
        """
        for _ in range(TRIES_MAX):
            whose = await self._find(provider, receipt, tenant)
            if whose is None:
                result = await self._kept.keep(provider, receipt, tenant or receipt.tenant)
            else:
                result = await self._move(whose, receipt)
            if result is not None:
                return result
        raise Conflict("the delivery is being changed by other requests: send the receipt again")

    async def _move(self, whose: ProviderMessage, receipt: DeliveryReceipt) -> ReceiptResult | None:
        """Apply a receipt to its delivery; None if that was changed meanwhile."""
        now = self._clock.now()
        [there] = await self._tables.get([delivery_key(whose.tenant, whose.delivery)], now)
        if there is None:
            return ReceiptResult("unknown")
        before = read(there, Delivery)
        after = after_receipt(before, receipt, now)
        if after != before:
            put = delivery_put(whose.tenant, after, there.version, self._retention_us)
            [done] = await change(self._tables, [[put]], now)
            if not done:
                return None
        closed = await self._suppress(whose.tenant, after, receipt)
        word: Literal["applied", "unchanged"] = "applied" if closed or after != before else "unchanged"
        return ReceiptResult(word, whose.tenant, after.name, after.state, closed)

    async def apply_all(
        self, provider: str, receipts: Sequence[DeliveryReceipt], tenant: str | None = None
    ) -> list[ReceiptResult]:
        """Several, in order: providers send them in batches."""
        return [await self.apply(provider, receipt, tenant) for receipt in receipts]

    def unsubscription(self, token: str) -> unsubscribe.Unsubscription:
        """What a link unsubscribes from; `Invalid` if it is not one of our links."""
        return unsubscribe.read(self._keys, token)

    async def unsubscribe(self, token: str) -> Unsubscribed:
        """End a category for an address, by the link that was in a message; `Invalid` if it is not one of ours.

        The address is suppressed for that category, whoever it belongs to, and its users are opted out.
        """
        ended = self.unsubscription(token)
        if ended.category == TRANSACTIONAL:
            raise Invalid(
                "link",
                "is for transactional messages, such as receipts and passwords, which cannot be unsubscribed from",
            )
        users = await self._users.with_address(ended.tenant, ended.channel, ended.address)
        names = tuple(user.id for user in users)
        changed = await self._suppressions.add(
            ended.tenant,
            ended.channel,
            ended.address,
            "unsubscribed",
            category=ended.category,
            user=names[0] if len(names) == 1 else None,
        )
        for name in names:
            opt_out = {"preferences": {f"{ended.channel}/{ended.category}": False}}
            await self._users.patch(ended.tenant, name, opt_out)
        return Unsubscribed(ended.tenant, ended.channel, ended.address, ended.category, names, changed)

    async def _find(self, provider: str, receipt: DeliveryReceipt, tenant: str | None) -> ProviderMessage | None:
        """By the provider's id, else by ours; if the receipt names a tenant, only a delivery of that tenant."""
        whose = tenant or receipt.tenant
        [there] = await self._tables.get([provider_message_key(provider, receipt.provider_id)], self._clock.now())
        found = None if there is None else read(there, ProviderMessage)
        if found is not None and found.delivery and whose in {None, found.tenant}:
            return found
        if whose is not None and receipt.message is not None:
            name = delivery_of(whose, receipt.message)
            return None if name is None else ProviderMessage(whose, name)
        return await self._by_own_id(provider, receipt.provider_id, whose)

    async def _by_own_id(self, provider: str, message: str, tenant: str | None) -> ProviderMessage | None:
        """The delivery of a provider that uses our message id as its own, if it was sent through this provider."""
        owner = owner_of(message)
        if owner is None or tenant not in {None, owner[0]}:
            return None
        [row] = await self._tables.get([delivery_key(*owner)], self._clock.now())
        if row is None or all(attempt.provider != provider for attempt in read(row, Delivery).attempts):
            return None
        return ProviderMessage(*owner)

    async def _suppress(self, tenant: str, delivery: Delivery, receipt: DeliveryReceipt) -> bool:
        """An address that bounced, or whose owner complained, gets nothing any more."""
        address = receipt.address or delivery.address
        if address is None or not suppresses(delivery, receipt):
            return False
        assert delivery.channel is not None
        reason = suppression_reason(receipt)
        try:
            return await self._suppressions.add(tenant, delivery.channel, address, reason, user=delivery.user)
        except Invalid:
            return False  # a provider may call an address what is none


class _KeptReceipts:
    """Receipts that came before the id of their message was stored. Those that waited longest make room for others:
    a message is stored within seconds, and what still waits is probably about another system's messages."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._added: Counter[str] = Counter()  # since the space was last checked

    async def keep(self, provider: str, receipt: DeliveryReceipt, tenant: str | None) -> ReceiptResult | None:
        """Keep a receipt; None if its row was changed meanwhile."""
        names_another = tenant is not None and receipt.message is not None  # otherwise it would have been found
        if names_another or not _can_be_kept(receipt.provider_id):
            return ReceiptResult("unknown")
        now, key = self._clock.now(), provider_message_key(provider, receipt.provider_id)
        [row] = await self._tables.get([key], now)
        known = ProviderMessage() if row is None else read(row, ProviderMessage)
        if known.delivery:  # stored meanwhile, or another tenant's
            is_ours = tenant in {None, known.tenant}
            return None if is_ours else ReceiptResult("unknown")
        if any(each.event == receipt.event for each in known.receipts):
            return ReceiptResult("kept")
        receipts = (*known.receipts, _nameless(receipt, tenant, now))[-NEWS_MAX:]
        kept_for = provider if tenant is None else f"{provider}/{tenant}"
        put = kept_receipts_put(key, kept_for, receipts, 0 if row is None else row.version, now)
        if len(put.body) > KEPT_ROW_BYTES_MAX:
            return ReceiptResult("unknown")
        [done] = await change(self._tables, [[put]], now)
        if not done:
            return None
        await self._make_room(kept_for, now)
        return ReceiptResult("kept")

    async def _make_room(self, kept_for: str, now: int) -> None:
        """Now and then, delete those that have waited longest if there are too many."""
        self._added[kept_for] += 1
        if 1 < self._added[kept_for] < KEPT_ROWS_MAX // 10:
            return
        self._added[kept_for] = 1
        found = await self._tables.find(
            PROVIDER_MESSAGES_KEPT, SHARED, (kept_for,), now, limit=2 * KEPT_ROWS_MAX, newest=True
        )
        space, fitting = KEPT_BYTES_MAX, 0
        for row in found[:KEPT_ROWS_MAX]:
            space -= len(row.body)
            if space < 0:
                break
            fitting += 1
        await change(self._tables, [[Remove(row.key, row.version)] for row in found[fitting:]], now)


def _can_be_kept(provider_id: str) -> bool:
    """Whether it can be a key. An id of our own has a delivery before its message is sent, or was erased."""
    if not provider_id or len(provider_id.encode(errors="replace")) > PROVIDER_ID_BYTES_MAX:
        return False
    return is_storable(provider_id) and not _OWN_ID.search(provider_id)


def _nameless(receipt: DeliveryReceipt, tenant: str | None, now: int) -> DeliveryReceipt:
    """A receipt without what names a person: the erasure of a person does not find it."""
    reason = receipt.reason[:REASON_CHARS_MAX]
    if receipt.address:
        reason = re.sub(re.escape(receipt.address), "<address>", receipt.reason, flags=re.IGNORECASE)[:REASON_CHARS_MAX]
    at = now if receipt.at is None else receipt.at
    return msgspec.structs.replace(receipt, message=None, address=None, tenant=tenant, at=at, reason=reason)


def suppresses(delivery: Delivery, receipt: DeliveryReceipt) -> bool:
    """Whether nothing else may be sent to the address of a delivery."""
    return receipt.suppress and delivery.channel not in {None, "push", "in_app"}


def suppression_reason(receipt: DeliveryReceipt) -> str:
    """Why, in one line."""
    reason = f"{receipt.state}: {receipt.reason}" if receipt.reason else receipt.state
    return " ".join(reason.split())[:REASON_CHARS_MAX]


def after_receipt(delivery: Delivery, receipt: DeliveryReceipt, now: int) -> Delivery:
    """The delivery with the news; the same one if they were told before."""
    if any(news.event == receipt.event for news in delivery.news):
        return delivery
    at = receipt.at if receipt.at is not None else now
    told = ProviderEvent(at, receipt.state, receipt.event, receipt.reason[:REASON_CHARS_MAX])
    news = (*delivery.news, told)[-NEWS_MAX:]
    state = None if _is_past(delivery, receipt) else state_after(delivery.state, receipt.state)
    if state is None:
        return msgspec.structs.replace(delivery, news=news)
    return msgspec.structs.replace(
        delivery, state=state, reason=told.reason, changed=now, news=news, claim=None, next_try=None
    )


def _is_past(delivery: Delivery, receipt: DeliveryReceipt) -> bool:
    """Whether it says how an attempt failed that was given up before somebody had it sent again.

    That one arrived after all is news at any time: nobody is told twice.
    """
    if not delivery.given_up or receipt.state not in {"bounced", "failed"}:
        return False
    fresh = delivery.fresh
    if not fresh:
        return True
    parts = [part.provider_id for part in delivery.parts]
    former = [attempt.provider_id for attempt in delivery.attempts if attempt.number <= delivery.given_up]
    return receipt.provider_id in former and receipt.provider_id not in [*parts, *(one.provider_id for one in fresh)]
