"""Claim and send: claims deliveries in batches, and calls the providers.

A claimed message waits for a connection here, so that no connection waits for a commit. A call ends before its claim.
If so little of the claim is left that the call might not end in that time, or if the circuit breaker of the provider
has opened meanwhile, the claim is given back without a call.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from tidings import crash
from tidings.clock import Clock
from tidings.delivery.limits.concurrency import SlotLine, SlotLines
from tidings.delivery.limits.router import ProviderRouter
from tidings.delivery.rows import delivery_key, is_readable, read
from tidings.delivery.worker.consumer import JobRecord
from tidings.delivery.worker.context import ContextLoader
from tidings.delivery.worker.policy import Defer, is_expired
from tidings.delivery.worker.reservation import Call, PendingSend
from tidings.delivery.worker.stage import BATCH_MAX, RETRY_S, Stage
from tidings.delivery.worker.transition import Answer, claimed
from tidings.delivery.worker.writer import DeliveryWriter
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Called, DeliveryListener
from tidings.domain.notifications.delivery import Accepted, Claim, Delivery, Verdict
from tidings.ports.tables import RowKey

logger = logging.getLogger("tidings.delivery")

DECISION_US_MAX = 5_000_000  # what was decided longer ago is loaded and decided again instead of being claimed
CALL_SHARE_MIN = 4  # a call is begun only if at least this part of its time-out is left of the claim


class Sender:
    """Sends deliveries. Each ends in `sent` with answers and slots, in `given_back` without a call, or in `again`."""

    def __init__(
        self,
        worker: str,
        clock: Clock,
        loader: ContextLoader,
        writer: DeliveryWriter,
        router: ProviderRouter,
        claim_us: int,
        *,
        listener: DeliveryListener,
        sent: Callable[[PendingSend], None],
        given_back: Callable[[PendingSend], None],
        again: Callable[[JobRecord], None],
        failed: Callable[[JobRecord, Exception], None],
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._loader = loader
        self._writer = writer
        self._router = router
        self._claim_us = claim_us
        self._listener = listener
        self._sent = sent
        self._given_back = given_back
        self._again = again
        self._failed = failed
        self._lines: SlotLines[Call] = SlotLines(self._start_senders)
        self._senders: set[asyncio.Task[None]] = set()
        self._in_progress: set[PendingSend] = set()
        self._is_stopping = False
        self._claims = Stage("claim", self._claim, batch_max=BATCH_MAX, on_error=self._fail)

    def put(self, send: PendingSend) -> None:
        """Send a delivery for which everything is reserved."""
        self._claims.put([send])

    async def drain(self) -> None:
        """Begin no more calls, and give back what is claimed and not begun."""
        self._is_stopping = True
        for send in self._claims.clear():
            self.abandon(send)
        await self._claims.idle()
        for send in [send for send in self._in_progress if not any(call.has_begun for call in send.calls)]:
            self._give_back(send)

    async def idle(self) -> None:
        """Return once no call is in progress."""
        while self._senders:
            await asyncio.wait(self._senders)

    async def stop(self) -> None:
        """End everything."""
        self._is_stopping = True
        await self._claims.stop()
        for task in list(self._senders):
            task.cancel()
        if self._senders:
            await asyncio.wait(self._senders)

    async def _claim(self, sends: list[PendingSend]) -> None:
        now, elapsed = self._clock.now(), self._clock.elapsed()
        claim = Claim(self._worker, now + self._claim_us)
        fresh = [send for send in sends if elapsed - send.loaded_at <= DECISION_US_MAX]
        for send in fresh:
            providers = [call.provider for call in send.calls]
            send.claimed(claimed(send.context, providers, send.addresses, claim, now), claim)
        crash.point("deliver.claiming")
        try:
            versions = await self._writer.claim([(send.context, send.delivery) for send in fresh]) if fresh else []
        except (StoreError, NotOwner) as error:
            if isinstance(error, StoreError) and not error.concerns_all:
                raise  # nothing was written because one of the rows is locked: the others are claimed without it
            versions = await self._claimed_versions(fresh)
        crash.point("deliver.claimed")
        self._go_on(fresh, versions)
        for send in sends:
            if not send.version:
                self._withdraw(send)

    def _go_on(self, sends: Sequence[PendingSend], versions: Sequence[int]) -> None:
        """Call the providers of those that are claimed."""
        for send, version in zip(sends, versions, strict=True):
            if version:
                send.version, send.open = version, len(send.calls)
                self._in_progress.add(send)
        if self._is_stopping:
            for send in sends:
                if send.version:
                    self._give_back(send)
        else:
            self._enter([call for send in sends if send.version for call in send.calls])

    async def _claimed_versions(self, sends: list[PendingSend]) -> list[int]:
        """Look up which claims were written after all: waiting for the end of our own claims would make them late."""
        keys = [delivery_key(send.context.tenant, send.context.delivery.name) for send in sends]
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                rows = await self._loader.rows(keys)
            except (StoreError, NotOwner):
                if all(send.claim is None or self._clock.now() >= send.claim.until for send in sends):
                    return [0] * len(sends)
                continue
            return [
                row.version if row is not None and read(row, Delivery).claim == send.claim else 0
                for send, row in zip(sends, rows, strict=True)
            ]

    def _withdraw(self, send: PendingSend) -> None:
        """It was not claimed: its record is loaded again."""
        self.abandon(send)
        self._again(send.record)

    def abandon(self, send: PendingSend) -> None:
        """Begin no more calls of a delivery; leave its slots, tokens and trial calls to other messages."""
        send.is_over = True
        send.release()
        calls, send.calls = send.calls, []
        self._return(calls)

    def _return(self, calls: Iterable[Call]) -> None:
        """Leave the tokens and trial calls of calls that are not made to other messages."""
        unmade = [call for call in calls if not call.has_begun]
        for call in unmade:
            self._router.limiter.give_back(call.provider, call.send.to.tenant, call.taken_at)
        trials = [call.breaker for call in unmade if call.trial]
        if trials:
            self._start(self._return_trials(trials))

    async def _return_trials(self, breakers: Sequence[RowKey]) -> None:
        for breaker in breakers:
            with contextlib.suppress(StoreError, NotOwner):  # then the trial ends with its time
                await self._router.breakers.give_back(breaker)

    def _enter(self, calls: Iterable[Call]) -> None:
        """Wait for connections; the claims are held meanwhile."""
        entering: dict[SlotLine[Call], list[Call]] = {}
        for call in calls:
            to = call.send.to
            wanted = self._router.call_slots(to, call.provider, call.address)
            entering.setdefault(self._lines.line(wanted, to.tenant, high=to.high), []).append(call)
        for line, some in entering.items():
            self._router.count_claims(some[0].send.to, some[0].provider, some[0].address, len(some))
            line.put(some)

    def _start_senders(self, line: SlotLine[Call], calls: list[Call]) -> None:
        for call in calls:
            self._start(self._send(line, call))

    async def _send(self, line: SlotLine[Call], first: Call) -> None:
        """Make one call after the other in the same slots, as long as there are any and nobody else has a turn."""
        call: Call | None = first
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            while call is not None:
                try:
                    await self._make(call, task)
                except Exception as error:  # a bug: the record is tried again, and the others go on
                    logger.exception("a call of the provider %s cannot be settled", call.provider)
                    self._in_progress.discard(call.send)
                    self._fail(call.send, error)
                call = line.next()
        finally:
            if call is not None:  # this sender was ended
                line.free()

    async def _make(self, call: Call, task: "asyncio.Task[object]") -> None:
        """Make one call in this task, unless its claim might end meanwhile or its provider is stopped."""
        send = call.send
        assert send.claim is not None, "a call is made under a claim"
        if send.is_over:
            return
        begun, send_s = self._clock.now(), self._router.send_s
        left_s = (send.claim.until - begun) / 1_000_000
        obstacle = self._obstacle(call, begun, left_s)
        if obstacle:
            if len(send.calls) == 1:
                self._give_back(send)
                return
            send.waits.append(Defer(begun, obstacle))
            send.calls.remove(call)
            self._return([call])
        else:
            call.has_begun, elapsed = True, self._clock.elapsed()
            within_s = min(send_s, left_s)
            verdict = await self._router.call(call.provider, call.message, within_s, task=task, begun=elapsed)
            message = call.message.id
            own_id = message if not call.number and is_readable(message) else ""
            send.answers.append(Answer(call.number, call.address, call.provider, verdict, call.trial, own_id))
            try:
                self._report(call, verdict, begun, self._clock.elapsed() - elapsed)
                if type(verdict) is not Accepted:
                    await self._record(call, verdict)  # the next turn asks the breaker
                elif call.trial or self._router.breakers.has_failures:
                    self._start(self._record(call, verdict))  # an accepted message does not wait for it
            except Exception:  # of a listener or of a breaker: what the provider answered must be settled
                logger.exception("what follows a call of the provider %s failed", call.provider)
        send.open -= 1
        if not send.open:
            self._finish(send)

    def _obstacle(self, call: Call, now: int, left_s: float) -> str:
        """Why a claimed call is not made now; empty if nothing stands in its way."""
        if self._is_stopping:
            return "worker_stopped"
        if not call.trial and not self._router.breakers.is_closed(call.breaker):
            return "breaker_open"
        if left_s < self._router.send_s / CALL_SHARE_MIN:
            return "claim_ended"
        return "expired" if is_expired(call.send.context, now) else ""

    def _report(self, call: Call, verdict: Verdict, begun: int, took_us: int) -> None:
        """Count a call."""
        to = call.send.to
        outcome = "accepted" if isinstance(verdict, Accepted) else verdict.reason
        late_us = max(0, begun - call.send.context.delivery.was_due)
        self._listener(Called(begun, to.channel, call.provider, outcome, took_us, late_us, bool(to.attempts)))

    async def _record(self, call: Call, verdict: Verdict) -> None:
        """Count the result of a call for its circuit breaker."""
        breakers = self._router.breakers
        if breakers.is_news(call.breaker, verdict, trial=call.trial):
            with contextlib.suppress(StoreError, NotOwner):  # the next calls count again
                await breakers.record(call.breaker, verdict, trial=call.trial)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the calls; it has ended when the sender is idle."""
        task = asyncio.get_running_loop().create_task(work)
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)

    def _finish(self, send: PendingSend) -> None:
        crash.point("deliver.sent")
        if send.answers:
            self._in_progress.discard(send)
            self._sent(send)
        else:
            self._give_back(send)

    def _give_back(self, send: PendingSend) -> None:
        """Undo a claim without a call."""
        self._in_progress.discard(send)
        self.abandon(send)
        self._given_back(send)

    def _fail(self, send: PendingSend, error: Exception) -> None:
        self.abandon(send)
        self._failed(send.record, error)
