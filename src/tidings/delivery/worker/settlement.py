"""Settle: writes what became of deliveries, a batch in one transaction, with their next turns and dead letters.

A delivery to an inbox has no other step: its entry is written in the same transaction.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidings import crash
from tidings.clock import Clock
from tidings.delivery.limits.router import ProviderRouter
from tidings.delivery.people.suppressions import DeadAddressHandler
from tidings.delivery.receipts import NEWS_MAX, after_receipt, suppresses, suppression_reason
from tidings.delivery.rows import ProviderMessage, delivery_key, inbox_put, message_id, provider_message_key, read
from tidings.delivery.templates.renderer import Renderer, Templates
from tidings.delivery.worker.consumer import JobRecord
from tidings.delivery.worker.context import ContextLoader, DeliveryContext
from tidings.delivery.worker.policy import Defer, NotSent, fallback_or_finish
from tidings.delivery.worker.reservation import STALE_US, PendingSend
from tidings.delivery.worker.stage import BATCH_MAX, TURN_MAX, Stage
from tidings.delivery.worker.transition import (
    REASON_CHARS_MAX,
    ProviderId,
    Transition,
    delivered,
    unschedulable,
    with_next_attempt,
)
from tidings.delivery.worker.writer import DeliveryWriter
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.domain.facts import Called, Deferred, DeliveryFact, DeliveryListener, Ended
from tidings.domain.notifications.delivery import Delivery, State
from tidings.domain.notifications.message import ChannelName, InApp
from tidings.domain.schedules.command import Add, Outcome
from tidings.ports import InboxProvider
from tidings.ports.tables import GroupResult, Row

NUMBERS_MAX = 100
DEAD_BATCH_MAX = 16  # each takes reads and commits of its own

_ON_TIMELINE = frozenset({None, "pending", "paused", "in_flight", "released"})

logger = logging.getLogger("tidings.delivery")


class InboxDelivery(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A delivery that is to be written to an inbox, and the provider that says how."""

    record: JobRecord
    context: DeliveryContext
    provider_name: str
    provider: InboxProvider


class Settlement(msgspec.Struct, eq=False, gc=False):
    """A transition that is to be written over the row of this version.

    `send` is set if it was claimed. `again` loads the record once more afterwards, `numbers` counts turns whose ids
    were taken, `without_command` says that its schedule is there already or is not accepted. `called` is reported
    once it is written. `decided_at` is the monotonic time at which an inbox delivery was decided and got its rate limit
    tokens: if it is not written soon, it is decided again.
    """

    record: JobRecord
    context: DeliveryContext
    transition: Transition
    version: int
    send: PendingSend | None = None
    again: bool = False
    numbers: int = 0
    without_command: bool = False
    called: Called | None = None
    decided_at: int | None = None
    is_over: bool = False


class Settlements:
    """Writes settlements. Each ends in `done`, or in `again` if the delivery was changed meanwhile."""

    def __init__(
        self,
        clock: Clock,
        loader: ContextLoader,
        writer: DeliveryWriter,
        router: ProviderRouter,
        dead_addresses: DeadAddressHandler,
        *,
        listener: DeliveryListener,
        done: Callable[[JobRecord], None],
        again: Callable[[JobRecord], None],
        failed: Callable[[JobRecord, Exception], None],
    ) -> None:
        self._clock = clock
        self._loader = loader
        self._writer = writer
        self._router = router
        self._dead_addresses = dead_addresses
        self._listener = listener
        self._done = done
        self._again = again
        self._failed = failed
        self._settles = Stage("settle", self._settle, batch_max=BATCH_MAX, on_error=self._fail)
        self._dead_stage = Stage("dead_address", self._handle_dead, batch_max=DEAD_BATCH_MAX, on_error=self._fail)

    def put(self, settlement: Settlement) -> None:
        """Write a settlement; one with dead addresses after these are handled, without holding up the others."""
        self.put_all([settlement])

    def put_all(self, settlements: Sequence[Settlement]) -> None:
        """The same for several."""
        self._dead_stage.put([each for each in settlements if each.transition.dead])
        self._settles.put([each for each in settlements if not each.transition.dead])

    async def idle(self) -> None:
        """Return once everything is written. What was written may lead to a dead address."""
        while not (self._dead_stage.is_idle and self._settles.is_idle):
            await self._dead_stage.idle()
            await self._settles.idle()

    async def stop(self) -> None:
        await self._dead_stage.stop()
        await self._settles.stop()

    async def _handle_dead(self, settlements: list[Settlement]) -> None:
        """Let nothing be sent to the dead addresses any more. It comes before the settlement, so no crash loses it."""
        for each in settlements:
            for address, reason in each.transition.dead:
                await self._dead_addresses.handle(each.context, address, reason)
        self._settles.put(settlements)

    async def _settle(self, settlements: list[Settlement]) -> None:
        crash.point("deliver.settling")
        now = self._clock.now()
        settlements = self._still_valid(settlements)
        if not settlements:
            return
        results = await self._writer.settle([_writable(each) for each in settlements], now)
        crash.point("deliver.settled")
        written = [each for each, result in zip(settlements, results, strict=True) if result.version]
        self._report([each for each in written if not each.again], now)
        for each in written:
            (self._again if each.again else self._done)(each.record)
        for each, result in zip(settlements, results, strict=True):
            if not result.version:
                await self._follow_up(each, result)

    def _still_valid(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Those that may be written. An inbox entry has the time of its decision, and may have expired since."""
        since = self._clock.elapsed() - STALE_US
        for each in settlements:
            if each.decided_at is not None and each.decided_at < since and not each.is_over:
                each.is_over = True
                self._return_token(each)
                self._again(each.record)
        return [each for each in settlements if not each.is_over]

    async def _follow_up(self, settlement: Settlement, result: GroupResult) -> None:
        """Go on with a settlement that was not written."""
        try:
            if result.outcome is not None:
                self._command_refused(settlement, result)
            else:
                await self._changed_meanwhile(settlement)
        except (StoreError, NotOwner):
            self.put(settlement)
        except Exception as error:  # of this one alone: the others are written, and must not be again
            logger.exception("what follows the settlement of %s failed", settlement.transition.delivery.name)
            self._fail(settlement, error)

    def _report(self, settlements: Sequence[Settlement], now: int) -> None:
        """Tell the listener what was written; whatever it does, the deliveries are settled."""
        facts: list[DeliveryFact] = [each.called for each in settlements if each.called is not None]
        ended: Counter[tuple[ChannelName, State, str]] = Counter()
        for each in settlements:
            channel, delivery, until = each.context.channel, each.transition.delivery, each.transition.until
            if until is None:
                ended[channel, delivery.state, delivery.reason] += 1
            else:
                facts.append(Deferred(now, channel, delivery.reason, until, each.context.notification.priority))
        facts += [Ended(now, *key, count) for key, count in ended.items()]
        for fact in facts:
            try:
                self._listener(fact)
            except Exception:
                logger.exception("the listener of a settled delivery failed")

    def _command_refused(self, settlement: Settlement, result: GroupResult) -> None:
        """The timeline did not accept the next turn, or the dead letter."""
        context, transition, outcome = settlement.context, settlement.transition, result.outcome
        assert outcome is not None
        if not is_refused(outcome):  # it is there already
            settlement.without_command = True
        elif transition.job is None:
            assert transition.letter is not None, "a transition without a next turn has only a dead letter"
            log_refusal(transition.letter, outcome)
            settlement.without_command = True
        elif (outcome.outcome == "rejected" and outcome.state is None) or settlement.numbers >= NUMBERS_MAX:
            name, why = transition.delivery.name, outcome.reason or outcome.outcome
            logger.error(
                "the delivery %s of tenant %s has failed, because its next attempt cannot be scheduled: %s",
                name,
                context.tenant,
                why,
            )
            settlement.transition = unschedulable(context, transition, outcome, self._clock.now())
        else:
            settlement.numbers += 1
            settlement.transition = with_next_attempt(transition)
        self.put(settlement)

    async def _changed_meanwhile(self, settlement: Settlement) -> None:
        """A row did not have its expected version: find out which, and go on accordingly."""
        context, send, transition = settlement.context, settlement.send, settlement.transition
        accepted = list(dict.fromkeys(transition.accepted))
        keys = [
            delivery_key(context.tenant, context.delivery.name),
            *(provider_message_key(each.provider, each.id) for each in accepted),
        ]
        if transition.entry is not None:
            keys.append(transition.entry.key)
        row, *messages = await self._loader.rows(keys)
        is_entered = transition.entry is not None and messages.pop() is not None
        version = 0 if row is None else row.version
        stored = None if row is None else read(row, Delivery)
        if version == settlement.version and accepted:
            found = list(zip(accepted, messages, strict=True))
            settlement.transition = _with_receipts(context, transition, found, self._clock.now())
        elif version == settlement.version and is_entered:  # sent again by hand: the entry stays as it is, read or not
            settlement.transition = msgspec.structs.replace(transition, entry=None)
        elif send is not None and stored is not None and stored.claim == send.claim:
            # A receipt came meanwhile: the delivery is still ours, and keeps the receipt.
            delivery = _with_news(transition.delivery, stored)
            settlement.transition = msgspec.structs.replace(transition, delivery=delivery)
            settlement.version = version
        else:
            if send is not None and row is None:  # its recipient was erased
                ids = [message_id(context.tenant, context.delivery.name, answer.number) for answer in send.answers]
                await self._router.erase(context.tenant, ids)
            self._return_token(settlement)
            self._again(settlement.record)
            return
        self.put(settlement)

    def _return_token(self, settlement: Settlement) -> None:
        """An inbox entry that is not written leaves its token to other messages."""
        if settlement.called is not None:
            provider, tenant = settlement.called.provider, settlement.context.tenant
            self._router.limiter.give_back(provider, tenant, settlement.decided_at or 0)

    def _fail(self, settlement: Settlement, error: Exception) -> None:
        self._return_token(settlement)
        self._failed(settlement.record, error)


class InboxDeliveries:
    """Delivers to inboxes: renders messages, and puts their entries into the settlements of their deliveries."""

    def __init__(
        self,
        clock: Clock,
        router: ProviderRouter,
        renderer: Renderer,
        *,
        settle: Callable[[Sequence[Settlement]], None],
        decided: Callable[[JobRecord, DeliveryContext, NotSent], None],
        failed: Callable[[JobRecord, Exception], None],
    ) -> None:
        self._clock = clock
        self._router = router
        self._renderer = renderer
        self._settle = settle
        self._decided = decided
        self._failed = failed
        self._deliveries = Stage(
            "inbox", self._deliver, batch_max=TURN_MAX, on_error=lambda each, error: failed(each.record, error)
        )

    def put(self, deliveries: Iterable[InboxDelivery]) -> None:
        self._deliveries.put(deliveries)

    async def stop(self) -> None:
        await self._deliveries.stop()

    async def _deliver(self, deliveries: list[InboxDelivery]) -> None:
        templates = await self._renderer.templates(each.context for each in deliveries)
        now, ready = self._clock.now(), list[Settlement]()
        for each in deliveries:
            try:
                found = self._build(each, templates, now)
                if not isinstance(found, Transition):
                    self._decided(each.record, each.context, found)
                elif self._router.limiter.is_unlimited:
                    ready.append(self._settlement(each, found, now))
                else:
                    self._limit(each, found, now)
            except Exception as error:  # a bug: it must not deliver the others a second time
                logger.exception("the delivery %s to an inbox failed", each.context.delivery.name)
                self._failed(each.record, error)
        self._settle(ready)
        await asyncio.sleep(0)  # rendering many has taken a while

    def _build(self, delivery: InboxDelivery, templates: Templates, now: int) -> Transition | NotSent:
        context = delivery.context
        if context.user is None:
            return fallback_or_finish(context, "failed", "address_refused")  # only a user has an inbox
        name = message_id(context.tenant, context.delivery.name)
        try:
            content = self._renderer.content(context, templates)
            message = self._renderer.message(context, content, context.user.id, name)
            assert isinstance(message, InApp)
            entry, until = delivery.provider.entry(message, now)
            put = inbox_put(context.tenant, entry, 0, until)
        except (Invalid, UnicodeError) as error:
            return fallback_or_finish(context, "failed", f"content_refused: {error}"[:REASON_CHARS_MAX])
        return delivered(context, delivery.provider_name, name, put, now)

    def _limit(self, delivery: InboxDelivery, transition: Transition, now: int) -> None:
        """Settle it as soon as its rate limits allow."""
        record, context, name = delivery.record, delivery.context, delivery.provider_name

        def answered(until: int | None) -> None:
            if until is not None:
                self._decided(record, context, Defer(until, "rate_limited"))
            else:
                self._settle([self._settlement(delivery, transition, now)])

        is_returning = context.delivery.reason == "rate_limited"
        self._router.limiter.enter(
            name, context.tenant, answered, high=record.priority == "high", returning=is_returning
        )

    def _settlement(self, delivery: InboxDelivery, transition: Transition, now: int) -> Settlement:
        """The settlement of an inbox delivery, which is its call too."""
        context, before, at = delivery.context, delivery.context.delivery, self._clock.elapsed()
        late_us = max(0, now - before.was_due)
        called = Called(now, context.channel, delivery.provider_name, "accepted", None, late_us, bool(before.attempts))
        return Settlement(delivery.record, context, transition, context.version, called=called, decided_at=at)


def _with_receipts(
    context: DeliveryContext, transition: Transition, found: Sequence[tuple[ProviderId, Row | None]], now: int
) -> Transition:
    """With the receipts that came before the ids of their messages were stored.

    A provider's id that is taken stays with its first delivery.
    """
    delivery, accepted, dead = transition.delivery, list[ProviderId](), dict.fromkeys(transition.dead)
    for each, row in found:
        message = ProviderMessage() if row is None else read(row, ProviderMessage)
        if message.delivery:
            continue
        accepted.append(msgspec.structs.replace(each, row_version=0 if row is None else row.version))
        for receipt in message.receipts:
            if receipt.tenant not in {None, context.tenant}:
                continue
            delivery = after_receipt(delivery, receipt, now)
            if delivery.address is not None and suppresses(delivery, receipt):
                dead[delivery.address, suppression_reason(receipt)] = None
    return msgspec.structs.replace(transition, delivery=delivery, accepted=tuple(accepted), dead=tuple(dead))


def _with_news(delivery: Delivery, stored: Delivery) -> Delivery:
    """With the receipts that are stored, and its own."""
    events = {each.event for each in stored.news}
    own = (each for each in delivery.news if each.event not in events)
    return msgspec.structs.replace(delivery, news=(*stored.news, *own)[-NEWS_MAX:])


def _writable(settlement: Settlement) -> tuple[DeliveryContext, Transition, int]:
    transition = settlement.transition
    if settlement.without_command:
        transition = msgspec.structs.replace(transition, job=None, until=None, letter=None)
    return settlement.context, transition, settlement.version


def is_refused(outcome: Outcome) -> bool:
    """Whether a schedule is neither on the timeline nor was: one that is there already is the same one."""
    if outcome.outcome in {"scheduled", "released"}:
        return False
    return not (outcome.outcome == "unchanged" and outcome.state in _ON_TIMELINE)


def log_refusal(add: Add, outcome: Outcome) -> None:
    """Report a dead letter that the timeline does not accept."""
    logger.error(
        "the dead letter %s of tenant %s cannot be scheduled on %s: %s",
        add.id,
        add.tenant,
        add.topic,
        outcome.reason or outcome.outcome,
    )
