"""The pipeline of a delivery worker: load, decide, reserve, claim, send, settle, each for a batch of records.

A record that is due takes these steps. `load` reads its notification, delivery, user and suppressions, and `decide`
says what to do. If it is to be sent, it waits for a slot at its provider and for a token of its rate limits, without a
claim (`reservation`). When it has both, the claim is written into the delivery's row, conditional on the rows of the
notification, the user and the delivery as they were loaded, and a provider is called (`sender`). What came of it is
written together with the next turn or the dead letter (`settlement`). A delivery to an inbox goes from its decision
directly to its settlement, which writes the entry too.

Two pipelines run side by side, one for high priority: its commits do not wait for the large batches of the other.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, assert_never

import msgspec

from tidings import crash
from tidings.clock import Clock
from tidings.delivery.limits.router import ProviderRouter
from tidings.delivery.people.suppressions import DeadAddressHandler
from tidings.delivery.templates.renderer import Renderer
from tidings.delivery.worker import job as jobs
from tidings.delivery.worker.consumer import JobRecord
from tidings.delivery.worker.context import ContextLoader, DeliveryContext
from tidings.delivery.worker.policy import (
    AlreadyDone,
    ClaimedElsewhere,
    Decision,
    Defer,
    Fallback,
    Finish,
    NotSent,
    Send,
    decide,
)
from tidings.delivery.worker.reservation import PendingSend, Reservation, release
from tidings.delivery.worker.sender import Sender
from tidings.delivery.worker.settlement import (
    InboxDeliveries,
    InboxDelivery,
    Settlement,
    Settlements,
    is_refused,
    log_refusal,
)
from tidings.delivery.worker.stage import BATCH_MAX, TURN_MAX, Stage
from tidings.delivery.worker.transition import (
    REASON_CHARS_MAX,
    Transition,
    after_answers,
    after_decision,
    unclaimed,
    unschedulable,
)
from tidings.delivery.worker.writer import DeliveryWriter
from tidings.domain.errors import Invalid
from tidings.domain.facts import DeliveryListener, Poisoned
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import DeliveryJob
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.schedules.command import Command, Outcome

HOLD_US = 1_000_000  # how often a delivery that another worker has claimed is looked at
TRIES_MAX = 3
PAUSE_S = 0.5
UNSETTLED_PAUSE_US = 15_000_000
UNSETTLED_TRIES_MAX = 30
POISON_PAUSE_S = 30.0

logger = logging.getLogger("tidings.delivery")

Submit = Callable[[Sequence[Command]], Awaitable[Sequence[Outcome]]]


class RetryPolicy(msgspec.Struct, frozen=True):
    """How failures are retried, and how long a claim lasts: longer than any call."""

    backoff: Backoff = Backoff()
    claim_us: int = 45_000_000


class Records(Protocol):
    """The source of the records: it bounds those in progress, and commits positions behind the settled ones."""

    def done(self, record: JobRecord) -> None:
        """A record is settled."""
        ...

    def hold(self, record: JobRecord) -> None:
        """A record waits for another worker: others may be read meanwhile."""
        ...

    def resume(self, record: JobRecord) -> None:
        """A record goes on."""
        ...


class Pipeline:
    """The steps over batches of records, from the first `put` to `stop`."""

    def __init__(
        self,
        worker: str,
        clock: Clock,
        *,
        records: Records,
        loader: ContextLoader,
        writer: DeliveryWriter,
        router: ProviderRouter,
        renderer: Renderer,
        dead_addresses: DeadAddressHandler,
        submit: Submit,
        policy: RetryPolicy,
        listener: DeliveryListener,
    ) -> None:
        self._clock, self._records, self._loader, self._writer = clock, records, loader, writer
        self._router, self._submit, self._policy, self._listener = router, submit, policy, listener
        self._errors, self._timers = Counter[tuple[str, str, int, int]](), set[asyncio.TimerHandle]()
        self._is_stopping = False
        # To load a message takes half as long as to render it.
        self._loads = Stage("load", self._load, batch_max=2 * TURN_MAX, on_error=self._failed)
        self._answers = Stage("answer", self._answered, batch_max=BATCH_MAX, on_error=self._fail_answered)
        self._fails = Stage("fail", self._fail, batch_max=BATCH_MAX, on_error=self._unsettleable)
        self._poisons = Stage("poison", self._poison, batch_max=BATCH_MAX, on_error=self._leave_unsettled)
        self._reservation = Reservation(
            clock,
            loader,
            router,
            renderer,
            policy.backoff,
            ready=self._ready,
            abandon=self._abandon,
            decided=self._decided,
            failed=self._failed,
        )
        self._sender = Sender(
            worker,
            clock,
            loader,
            writer,
            router,
            policy.claim_us,
            listener=listener,
            sent=lambda send: self._answers.put((send,)),
            given_back=self._given_back,
            again=self._again,
            failed=self._failed,
        )
        self._settlements = Settlements(
            clock,
            loader,
            writer,
            router,
            dead_addresses,
            listener=listener,
            done=self._done,
            again=self._again,
            failed=self._failed,
        )
        self._inbox_deliveries = self._inboxes(renderer)

    def _inboxes(self, renderer: Renderer) -> InboxDeliveries:
        settle = self._settlements.put_all
        return InboxDeliveries(
            self._clock, self._router, renderer, settle=settle, decided=self._decided, failed=self._failed
        )

    def put(self, records: Iterable[JobRecord]) -> None:
        """Take records in."""
        self._loads.put(records)

    async def drain(self, within_s: float) -> None:
        """Begin nothing new; let the calls in progress end and settle, and give back what was claimed but not sent."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(within_s):
                await self._sender.drain()
                await self._sender.idle()
                await self._answers.idle()
                await self._settlements.idle()
        except TimeoutError:
            return

    async def stop(self) -> None:
        """End everything."""
        self._is_stopping = True
        for timer in self._timers:
            timer.cancel()
        await self._loads.stop()
        await self._fails.stop()
        await self._poisons.stop()
        await self._inbox_deliveries.stop()
        await self._reservation.stop()
        await self._sender.stop()
        await self._answers.stop()
        await self._settlements.stop()

    # Load and decide

    async def _load(self, records: list[JobRecord]) -> None:
        if self._is_stopping:
            return
        crash.point("deliver.read")
        wanted: list[tuple[JobRecord, DeliveryJob]] = []
        poison: list[tuple[JobRecord, Invalid]] = []
        for record in records:
            try:
                wanted.append((record, jobs.read_job(record.record, record.tenant)))
            except Invalid as invalid:
                poison.append((record, invalid))
        loaded_at = self._clock.elapsed()
        found = await self._loader.load([(record.tenant, record.record, job) for record, job in wanted])
        contexts: list[tuple[JobRecord, DeliveryContext]] = []
        erased: list[JobRecord] = []
        for (record, _), context in zip(wanted, found, strict=True):
            if isinstance(context, Invalid):
                poison.append((record, context))
            elif context is None:
                erased.append(record)  # with its notification
            else:
                contexts.append((record, context))
        await self._spread([context for _, context in contexts])
        await self._write_dead_letters(poison)
        now = self._clock.now()
        decisions = [decide(context, self._policy.backoff, now) for _, context in contexts]
        sends, entries = self._divided(contexts, decisions, loaded_at)
        await self._reservation.refresh(sends)
        self._poisoned(poison, now)
        for record in erased:
            self._done(record)
        for (record, context), decision in zip(contexts, decisions, strict=True):
            if not isinstance(decision, Send):
                self._try_decided(record, context, decision)
        self._inbox_deliveries.put(entries)
        self._reservation.enter(sends)

    def _divided(
        self, contexts: Sequence[tuple[JobRecord, DeliveryContext]], decisions: Sequence[Decision], loaded_at: int
    ) -> tuple[list[PendingSend], list[InboxDelivery]]:
        """Those that are to be sent, and those that are to be written to inboxes."""
        sends: list[PendingSend] = []
        entries: list[InboxDelivery] = []
        for (record, context), decision in zip(contexts, decisions, strict=True):
            if isinstance(decision, Send):
                inbox = self._router.inbox(decision.channel, decision.addresses[0])
                if inbox is None:
                    sends.append(PendingSend(record, context, decision.addresses, loaded_at))
                else:
                    entries.append(InboxDelivery(record, context, *inbox))
        return sends, entries

    def _decided(self, record: JobRecord, context: DeliveryContext | None, decision: NotSent) -> None:
        """Carry out a decision not to send now."""
        match decision:
            case AlreadyDone():
                self._done(record)
            case ClaimedElsewhere():
                self._hold(record, decision.until)
            case Defer() | Fallback() | Finish():
                assert context is not None, "something was decided on"
                transition = after_decision(context, decision, self._clock.now())
                self._settlements.put(Settlement(record, context, transition, context.version))
            case _:
                assert_never(decision)

    def _try_decided(self, record: JobRecord, context: DeliveryContext, decision: NotSent) -> None:
        """The same; a bug concerns this record alone, and must not repeat what was done for the others."""
        try:
            self._decided(record, context, decision)
        except Exception as error:
            logger.exception("the decision on a delivery cannot be carried out")
            self._failed(record, error)

    def _hold(self, record: JobRecord, until: int, most_us: int = HOLD_US) -> None:
        """Look again when another worker's claim ends, and now and then whether the delivery is settled."""
        self._records.hold(record)

        def resume() -> None:
            self._records.resume(record)
            self._loads.put([record])

        self._call_later(min(until - self._clock.now(), most_us) / 1_000_000, resume)

    async def _write_dead_letters(self, poison: Sequence[tuple[JobRecord, Invalid]]) -> None:
        """Copy records that are not valid jobs to the dead letters, with everything they contain; repeated, it changes
        nothing."""
        if not poison:
            return
        now = self._clock.now()
        adds = [jobs.poison_record(each.tenant, each.record, str(invalid), now) for each, invalid in poison]
        for add, outcome in zip(adds, await self._submit(adds), strict=True):
            if is_refused(outcome):
                log_refusal(add, outcome)

    async def _spread(self, contexts: Sequence[DeliveryContext]) -> None:
        """Give each of the other channels of a notification for all channels a job of its own."""
        others: list[tuple[DeliveryContext, Transition]] = []
        for context in contexts:
            notification, job = context.notification, context.job
            if notification.spread != "all" or job.delivery is not None or job.channel or context.version:
                continue
            prefix, due = context.delivery.name.removesuffix(notification.channels[0]), context.delivery.due
            for number, channel in enumerate(notification.channels[1:], start=1):
                name = f"{prefix}{channel}"
                delivery = Delivery(name, notification.id, due, channel=channel, user=notification.user)
                other = msgspec.structs.replace(job, delivery=name, channel=number)
                others.append(
                    (
                        msgspec.structs.replace(context, job=other, channel=channel, delivery=delivery, version=0),
                        Transition(delivery, other, due),
                    )
                )
        if not others:
            return
        adds = [jobs.retry_schedule(its.tenant, its.notification, its.job, its.delivery.due) for its, _ in others]
        for (its, transition), outcome in zip(others, await self._submit(adds), strict=True):
            if is_refused(outcome):
                now = self._clock.now()
                await self._writer.settle([(its, unschedulable(its, transition, outcome, now), 0)], now)

    # Send and settle

    def _ready(self, send: PendingSend) -> None:
        if self._is_stopping:
            self._abandon(send)
        else:
            self._sender.put(send)

    def _abandon(self, send: PendingSend) -> None:
        self._sender.abandon(send)

    async def _answered(self, sends: list[PendingSend]) -> None:
        """All calls of these deliveries have ended; a stage, so that those of one turn of the loop settle together."""
        now = self._clock.now()
        settlements = [
            Settlement(send.record, send.context, self._after_answers(send, now), send.version, send) for send in sends
        ]
        release(sends)
        for send in sends:
            send.calls = []  # each refers to its send: without them it is freed at once, not by the garbage collector
        self._settlements.put_all(settlements)

    def _after_answers(self, send: PendingSend, now: int) -> Transition:
        later = min(send.waits, key=lambda each: each.until) if send.waits else None
        share = random.random()
        return after_answers(send.context, send.delivery, send.answers, later, self._policy.backoff, share, now)

    def _fail_answered(self, send: PendingSend, error: Exception) -> None:
        self._abandon(send)
        self._failed(send.record, error)

    def _given_back(self, send: PendingSend) -> None:
        """A claim is undone: the delivery becomes what it was, and its record is loaded again."""
        transition = unclaimed(send.context, self._clock.now())
        self._settlements.put(Settlement(send.record, send.context, transition, send.version, send, again=True))

    def _done(self, record: JobRecord) -> None:
        if self._errors:
            self._errors.pop(_place(record), None)
        self._records.done(record)

    def _again(self, record: JobRecord) -> None:
        """Load a record again."""
        if not self._is_stopping:
            self._loads.put([record])

    def _call_later(self, pause_s: float, call: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            if not self._is_stopping:
                call()

        timer = asyncio.get_running_loop().call_later(max(0.0, pause_s), run)
        self._timers.add(timer)

    # Errors

    def _failed(self, record: JobRecord, error: Exception) -> None:
        """A bug must not hold up the records behind this one: after some tries the delivery fails with a reason."""
        self._errors[_place(record)] += 1
        if self._errors[_place(record)] < TRIES_MAX:
            self._call_later(PAUSE_S, lambda: self._loads.put([record]))
        elif self._errors[_place(record)] > 2 * TRIES_MAX:
            self._unsettleable((record, ""), error)
        else:
            self._fails.put([(record, f"worker_error: {type(error).__name__}")])

    async def _fail(self, failed: list[tuple[JobRecord, str]]) -> None:
        """Settle deliveries as failed that this worker cannot process; they can be sent again by hand."""
        wanted = [(each.tenant, each.record, jobs.read_job(each.record, each.tenant)) for each, _ in failed]
        for (record, reason), context in zip(failed, await self._loader.load(wanted), strict=True):
            if not isinstance(context, DeliveryContext):
                self._done(record)
                continue
            decision = decide(context, self._policy.backoff, self._clock.now())
            if isinstance(decision, Send | Defer | Fallback):
                decision = Finish("sent" if context.delivery.has_arrived else "failed", reason)
            self._try_decided(record, context, decision)

    def _unsettleable(self, failed: tuple[JobRecord, str], error: Exception) -> None:
        """Its delivery cannot even be marked as failed: try again for some minutes, then make it a dead letter.

        For good, it would hold up the position of its partition, and so the records behind it.
        """
        record = failed[0]
        self._errors[_place(record)] += 1
        if self._errors[_place(record)] >= UNSETTLED_TRIES_MAX:
            why = " ".join(f"its delivery cannot be settled: {type(error).__name__}: {error}".split())
            self._poisons.put([(record, Invalid("record", why[:REASON_CHARS_MAX]))])
            return
        where = record.record
        text = "marking the record %s/%d/%d of %s as failed did not work either (%s): it is tried again"
        logger.error(text, where.topic, where.partition, where.offset, record.tenant, error)
        self._hold(record, self._clock.now() + UNSETTLED_PAUSE_US, UNSETTLED_PAUSE_US)

    async def _poison(self, poison: list[tuple[JobRecord, Invalid]]) -> None:
        await self._write_dead_letters(poison)
        self._poisoned(poison, self._clock.now())

    def _poisoned(self, poison: Sequence[tuple[JobRecord, Invalid]], now: int) -> None:
        """Nothing is left to do for records that became dead letters."""
        for record, why in poison:
            where = record.record
            try:
                self._listener(Poisoned(now, record.tenant, where.topic, where.partition, where.offset, str(why)))
            except Exception:
                logger.exception("the listener of a poison message failed")
            self._done(record)

    def _leave_unsettled(self, poison: tuple[JobRecord, Invalid], error: Exception) -> None:
        """Not even a dead letter can be written: try again later."""
        record = poison[0]
        where = record.record
        text = "the dead letter of the record %s/%d/%d of %s cannot be written: %s"
        logger.error(text, where.topic, where.partition, where.offset, record.tenant, error)
        self._records.hold(record)

        def resume() -> None:
            self._records.resume(record)
            self._poisons.put([poison])

        self._call_later(POISON_PAUSE_S, resume)


def _place(record: JobRecord) -> tuple[str, str, int, int]:
    return record.tenant, record.record.topic, record.record.partition, record.record.offset
