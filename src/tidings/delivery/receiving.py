"""What providers tell later: receipts move a delivery forward, and close addresses that must not be used again."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from tidings.clock import Clock
from tidings.delivery import unsubscribe
from tidings.delivery.filing import Sent, delivery_key, delivery_put, read, sent_key
from tidings.delivery.naming import named_by
from tidings.delivery.suppressions import Suppressions
from tidings.delivery.users import Users
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.notifications.delivery import Delivery, DeliveryReceipt, ProviderEvent, State, state_after
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.user import TRANSACTIONAL
from tidings.ports import DocumentStore

NEWS_MAX = 20
REASON_CHARS_MAX = 150
TRIES_MAX = 20


class Applied(msgspec.Struct, frozen=True, omit_defaults=True):
    """What news changed. `unknown` is about nothing that we sent, or no longer know."""

    outcome: Literal["applied", "unchanged", "unknown"]
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


class Receiving:
    """Takes receipts and unsubscriptions; whoever calls has checked that they are genuine."""

    def __init__(
        self, cabinet: DocumentStore, users: Users, suppressions: Suppressions, clock: Clock, keys: Sequence[bytes] = ()
    ) -> None:
        self._cabinet = cabinet
        self._users = users
        self._suppressions = suppressions
        self._clock = clock
        self._keys = list(keys)

    async def apply(self, provider: str, receipt: DeliveryReceipt, tenant: str | None = None) -> Applied:
        """Move the delivery that a receipt speaks of. Late, or for the second time, it changes nothing.

        `tenant` is needed only to find a delivery by our own message id, where the provider's is not known and the
        receipt does not say it. If it is given, no other tenant's is moved.
        """
        whose = await self._find(provider, receipt, tenant)
        if whose is None:
            return Applied("unknown")
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [there] = await self._cabinet.get([delivery_key(whose.tenant, whose.delivery)], now)
            if there is None:
                return Applied("unknown")
            before = read(there, Delivery)
            after = _after(before, receipt, now)
            done = 1
            if after != before:
                [done] = await self._cabinet.change([[delivery_put(whose.tenant, after, there.version)]], now)
            if done:
                closed = await self._suppress(whose.tenant, after, receipt)
                word: Literal["applied", "unchanged"] = "applied" if closed or after != before else "unchanged"
                return Applied(word, whose.tenant, after.name, after.state, closed)
        raise Conflict("the delivery is being changed by other requests: send the receipt again")

    async def apply_all(
        self, provider: str, receipts: Sequence[DeliveryReceipt], tenant: str | None = None
    ) -> list[Applied]:
        """Several, in order: providers send them in batches."""
        return [await self.apply(provider, receipt, tenant) for receipt in receipts]

    def wish(self, token: str) -> unsubscribe.Unsubscription:
        """What a link would end; `Invalid` if it is not one of ours."""
        return unsubscribe.read(self._keys, token)

    async def unsubscribe(self, token: str) -> Unsubscribed:
        """End a category for an address, by the link that was in a message; `Invalid` if it is not one of ours.

        The address is suppressed for that category, whoever it belongs to, and users who have it get it as a wish.
        """
        wish = self.wish(token)
        if wish.category == TRANSACTIONAL:
            raise Invalid(
                "link",
                "is for transactional messages, such as receipts and passwords, which cannot be unsubscribed from",
            )
        users = await self._users.with_address(wish.tenant, wish.channel, wish.address)
        names = tuple(user.id for user in users)
        changed = await self._suppressions.add(
            wish.tenant,
            wish.channel,
            wish.address,
            "unsubscribed",
            category=wish.category,
            user=names[0] if len(names) == 1 else None,
        )
        for name in names:
            wishes = {"preferences": {f"{wish.channel}/{wish.category}": False}}
            await self._users.patch(wish.tenant, name, wishes)
        return Unsubscribed(wish.tenant, wish.channel, wish.address, wish.category, names, changed)

    async def _find(self, provider: str, receipt: DeliveryReceipt, tenant: str | None) -> Sent | None:
        """By the provider's id, else by ours. Who said whose it is speaks of nobody else's, whatever id it has."""
        whose = tenant or receipt.tenant
        [there] = await self._cabinet.get([sent_key(provider, receipt.provider_id)], self._clock.now())
        found = None if there is None else read(there, Sent)
        if found is not None and whose in {None, found.tenant}:
            return found
        name = None if whose is None or receipt.message is None else named_by(whose, receipt.message)
        return None if whose is None or name is None else Sent(whose, name)

    async def _suppress(self, tenant: str, delivery: Delivery, receipt: DeliveryReceipt) -> bool:
        """An address that bounced, or whose owner complained, gets nothing any more."""
        address = receipt.address or delivery.address
        if not receipt.suppress or address is None or delivery.channel in {None, "push", "in_app"}:
            return False
        assert delivery.channel is not None
        reason = f"{receipt.state}: {receipt.reason}" if receipt.reason else receipt.state
        line = " ".join(reason.split())[:REASON_CHARS_MAX]
        try:
            return await self._suppressions.add(tenant, delivery.channel, address, line, user=delivery.user)
        except Invalid:
            return False  # a provider may call an address what is none


def _after(delivery: Delivery, receipt: DeliveryReceipt, now: int) -> Delivery:
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
