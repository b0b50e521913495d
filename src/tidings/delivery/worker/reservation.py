"""Reserve: what a delivery needs before it is claimed: slots, its rendered messages, providers and tokens.

Nothing is claimed here, and no connection is held. A delivery that has to wait long for a token goes back to the
timeline; one that waits for a slot stays, and is loaded again before it goes on.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.limits.concurrency import SlotLine, SlotLines
from tidings.delivery.limits.router import Option, ProviderRouter, Recipient, Route, choose
from tidings.delivery.rows import message_id
from tidings.delivery.templates.renderer import Renderer, Templates
from tidings.delivery.worker.consumer import JobRecord
from tidings.delivery.worker.context import ContextLoader, DeliveryContext
from tidings.delivery.worker.policy import AlreadyDone, Defer, NotSent, Send, decide, fallback_or_finish
from tidings.delivery.worker.stage import TURN_MAX, Stage
from tidings.delivery.worker.transition import REASON_CHARS_MAX, Answer, parts_of
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address_key import digest
from tidings.domain.notifications.delivery import Claim, Delivery
from tidings.domain.notifications.message import Rendered
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.schedules.lateness import jittered
from tidings.ports import Address
from tidings.ports.tables import RowKey

STALE_US = 1_000_000  # what was loaded longer ago is loaded again before it is claimed
SPREAD_US = 1_000_000  # deliveries that an open breaker stopped do not all return at the same instant

logger = logging.getLogger("tidings.delivery")


class Call(msgspec.Struct, eq=False):
    """One message for one address, and its provider; `number` is that of the device, 0 if there are not several.

    `trial` says that it is the trial call of a half-open circuit breaker; `taken_at` is the moment of elapsed time at
    which it got its rate limit tokens.
    """

    send: "PendingSend"
    number: int
    address: Address
    message: Rendered
    route: Route
    provider: str = ""
    trial: bool = False
    has_begun: bool = False
    taken_at: int = 0

    @property
    def breaker(self) -> RowKey:
        """The circuit breaker that its result counts for."""
        return self.route.breakers[self.route.index(self.provider)]


class PendingSend:
    """A delivery that is to be sent, from the decision to its settlement.

    `calls` are those that may be made now, `waits` says when the others may; `undecided` counts those that are neither
    yet. `delivery`, `claim` and `version` are those of its claim, `open` counts the calls that have not ended. `line`
    is where its slots are from; None before it has them, and after they are freed. `is_over`: it was abandoned, and
    none of its calls may begin.
    """

    __slots__ = (
        "addresses",
        "answers",
        "calls",
        "claim",
        "context",
        "delivery",
        "is_high",
        "is_over",
        "line",
        "loaded_at",
        "open",
        "record",
        "to",
        "undecided",
        "version",
        "waits",
    )

    def __init__(
        self, record: JobRecord, context: DeliveryContext, addresses: tuple[Address, ...], loaded_at: int
    ) -> None:
        self.record = record
        self.is_high = record.priority == "high"  # that of its topic: the notification's may change meanwhile
        self.loaded_at = loaded_at
        self.line: SlotLine[PendingSend] | None = None
        self.calls: list[Call] = []
        self.waits: list[Defer] = []
        self.undecided = 0
        self.claim: Claim | None = None
        self.delivery = context.delivery
        self.version = 0
        self.open = 0
        self.answers: list[Answer] = []
        self.is_over = False
        self.update(context, addresses)

    def update(self, context: DeliveryContext, addresses: tuple[Address, ...]) -> None:
        """Take over what was loaded."""
        self.context = context
        self.addresses = addresses
        attempts = context.delivery.attempts
        self.to = Recipient(
            context.tenant,
            context.channel,
            self.is_high,
            tuple(each for each in attempts if each.channel == context.channel) if attempts else (),
            context.delivery.reason == "rate_limited",
        )

    def claimed(self, delivery: Delivery, claim: Claim) -> None:
        """Take over a claim that is about to be written; it has a version once it is."""
        self.delivery, self.claim, self.version = delivery, claim, 0

    def release(self) -> None:
        """Give back the reserved slots."""
        release([self])


def release(sends: Sequence[PendingSend]) -> None:
    """Give back the reserved slots of these, those of each line together."""
    counts = Counter(send.line for send in sends if send.line is not None)
    for send in sends:
        send.line = None
    for line, count in counts.items():
        line.free(count)


class Reservation:
    """Reserves for deliveries. Each ends in `ready`, or in `decided` if it is not sent now."""

    def __init__(
        self,
        clock: Clock,
        loader: ContextLoader,
        router: ProviderRouter,
        renderer: Renderer,
        backoff: Backoff,
        *,
        ready: Callable[[PendingSend], None],
        abandon: Callable[[PendingSend], None],
        decided: Callable[[JobRecord, DeliveryContext | None, NotSent], None],
        failed: Callable[[JobRecord, Exception], None],
    ) -> None:
        self._clock = clock
        self._loader = loader
        self._router = router
        self._renderer = renderer
        self._backoff = backoff
        self._ready = ready
        self._abandon = abandon
        self._decided = decided
        self._failed = failed
        self._lines: SlotLines[PendingSend] = SlotLines(self._reserved)
        self._prepares = Stage("prepare", self._prepare, batch_max=TURN_MAX, on_error=self._fail)
        self._trials = Stage("trial", self._try_breakers, batch_max=1, on_error=self._fail_trial)

    async def stop(self) -> None:
        """Reserve no more."""
        await self._prepares.stop()
        await self._trials.stop()

    async def refresh(self, sends: Sequence[PendingSend]) -> None:
        """Read the circuit breakers that decide on these, as far as they are not known."""
        route_of = self._router.route
        routes = {route_of(send.to.tenant, send.to.channel, each): None for send in sends for each in send.addresses}
        await self._router.breakers.refresh(key for route in routes for key in route.breakers)

    def enter(self, sends: Sequence[PendingSend]) -> None:
        """Wait for slots at the providers and in the channel, then for the rest."""
        self._router.drop_idle_pools()
        entering: dict[SlotLine[PendingSend], list[PendingSend]] = {}
        for send in sends:
            to = send.to
            line = self._lines.line(self._router.reservations(to, send.addresses), to.tenant, high=to.high)
            entering.setdefault(line, []).append(send)
        for line, some in entering.items():
            line.put(some)

    def _reserved(self, line: SlotLine[PendingSend], sends: list[PendingSend]) -> None:
        for send in sends:
            send.line = line
        self._prepares.put(sends)

    async def _prepare(self, sends: list[PendingSend]) -> None:
        """Render, choose providers and take tokens."""
        fresh = await self._reload([send for send in sends if send.line is not None])
        await self.refresh(fresh)
        templates = await self._renderer.templates(send.context for send in fresh)
        for send in fresh:
            try:
                self._prepare_one(send, templates)
            except Exception as error:  # a bug: it must not prepare the others a second time
                logger.exception("the delivery %s cannot be prepared", send.context.delivery.name)
                self._fail(send, error)
        await asyncio.sleep(0)  # rendering many has taken a while

    def _prepare_one(self, send: PendingSend, templates: Templates) -> None:
        calls = self._messages(send, templates)
        if isinstance(calls, NotSent):
            self._not_sent(send, calls)
            return
        send.calls, send.waits, send.undecided = [], [], len(calls)
        for call in calls:
            self._choose(call)

    async def _reload(self, sends: list[PendingSend]) -> list[PendingSend]:
        """Those that are still to be sent; what waited long for its slots is loaded and decided again."""
        elapsed = self._clock.elapsed()
        stale = [send for send in sends if elapsed - send.loaded_at > STALE_US]
        if not stale:
            return sends
        wanted = [(send.context.tenant, send.record.record, send.context.job) for send in stale]
        now, dropped = self._clock.now(), set[PendingSend]()
        for send, context in zip(stale, await self._loader.load(wanted), strict=True):
            send.loaded_at = elapsed
            known = context if isinstance(context, DeliveryContext) else None
            decision = AlreadyDone() if known is None else decide(known, self._backoff, now)
            if isinstance(decision, Send):
                assert known is not None, "it was decided on"
                send.update(known, decision.addresses)
            else:
                dropped.add(send)
                send.release()
                self._decided(send.record, known, decision)
        return [send for send in sends if send not in dropped]

    def _messages(self, send: PendingSend, templates: Templates) -> list[Call] | NotSent:
        """The messages, or what to do instead if there are none that a provider sends."""
        context = send.context
        try:
            calls = self._render(send, templates)
        except Invalid as invalid:
            reason = f"content_refused: {invalid}"[:REASON_CHARS_MAX]
            return fallback_or_finish(context, "failed", reason)
        if not calls:
            return fallback_or_finish(context, "failed", "no_address")
        for call in calls:
            if not call.route.options:
                return fallback_or_finish(context, "failed", "no_provider")
        return calls

    def _render(self, send: PendingSend, templates: Templates) -> list[Call]:
        """The messages: of a push one for each device that has not got it, under a number that stays its own."""
        context = send.context
        content = self._renderer.content(context, templates)
        if context.channel != "push":
            [address] = send.addresses
            name = message_id(context.tenant, context.delivery.name)
            return [self._call(send, 0, address, self._renderer.message(context, content, address, name))]
        numbers = {part.digest: part.number for part in parts_of(context, send.addresses) if not part.outcome}
        calls = []
        for address in send.addresses:
            number = numbers.get(digest("push", address))
            if number is not None:
                name = message_id(context.tenant, context.delivery.name, number)
                calls.append(self._call(send, number, address, self._renderer.message(context, content, address, name)))
        return calls

    def _call(self, send: PendingSend, number: int, address: Address, message: Rendered) -> Call:
        return Call(send, number, address, message, self._router.route(send.to.tenant, send.to.channel, address))

    def _choose(self, call: Call, options: Sequence[Option] = ()) -> None:
        """Ask the rate limit before the trial call, so that a message that has to wait does not hold the trial."""
        send, router, route = call.send, self._router, call.route
        if not options and router.is_plain(route, send.to.attempts):
            options = route.options
            chosen: Option | int = options[0]
        else:
            options = options or router.options(route)
            chosen = choose(options, send.to.attempts)
        if not isinstance(chosen, Option):
            moment = jittered(chosen, SPREAD_US, send.context.delivery.name.encode())
            self._wait(send, Defer(moment, "breaker_open", self._why(call, options)))
            return
        call.provider = chosen.provider
        if self._router.limiter.is_unlimited and chosen.breaker == "closed":
            self._go(call)
            return

        def answered(until: int | None) -> None:
            call.taken_at = self._clock.elapsed()
            if until is not None:
                self._wait(send, Defer(until, "rate_limited"))
            elif chosen.breaker == "due":
                self._trials.put([(call, options, chosen)])
            else:
                self._go(call)

        self._router.limiter.enter(
            chosen.provider, send.to.tenant, answered, high=send.to.high, returning=send.to.returning
        )

    def _why(self, call: Call, options: Sequence[Option]) -> str:
        """Which providers do not work, why, and where to look."""
        names = [each.provider for each in options]
        keys = [(name, call.route.breakers[call.route.index(name)]) for name in names]
        texts = (f"{name} {self._router.breakers.why(key)}".rstrip() for name, key in keys)
        return f"{', '.join(texts)}; see `tidings channels`"

    async def _try_breakers(self, trials: list[tuple[Call, Sequence[Option], Option]]) -> None:
        """Make calls the trials of half-open breakers, unless another message is one already."""
        for call, options, chosen in trials:
            to = call.send.to
            if await self._router.breakers.try_one(call.breaker):
                call.trial = True
                self._go(call)
            else:
                self._router.limiter.give_back(chosen.provider, to.tenant, call.taken_at)
                opened = msgspec.structs.replace(chosen, breaker="open", until=self._clock.now() + SPREAD_US)
                self._choose(call, [opened if each is chosen else each for each in options])

    def _go(self, call: Call) -> None:
        call.send.calls.append(call)
        self._one_less(call.send)

    def _wait(self, send: PendingSend, wait: Defer) -> None:
        send.waits.append(wait)
        self._one_less(send)

    def _one_less(self, send: PendingSend) -> None:
        send.undecided -= 1
        if send.is_over:
            self._abandon(send)  # with the call that was decided on last
            return
        if send.undecided:
            return
        if send.calls:
            self._ready(send)
        else:
            self._not_sent(send, min(send.waits, key=lambda each: each.until))

    def _not_sent(self, send: PendingSend, decision: NotSent) -> None:
        send.release()
        self._decided(send.record, send.context, decision)

    def _fail(self, send: PendingSend, error: Exception) -> None:
        self._abandon(send)
        self._failed(send.record, error)

    def _fail_trial(self, trial: tuple[Call, Sequence[Option], Option], error: Exception) -> None:
        call, send = trial[0], trial[0].send
        send.calls.append(call)  # it has a token
        if send.is_over:
            self._abandon(send)
        else:
            self._fail(send, error)
