"""One record of a notification, from its look-up to its end or its next turn."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Protocol, assert_never

import msgspec

from tidings import crash
from tidings.clock import Clock
from tidings.delivery import errands
from tidings.delivery.burying import Burying
from tidings.delivery.concluding import Answer, Conclusion, claimed, conclude, parts_of, without_attempt
from tidings.delivery.deciding import Case, Decision, End, Hold, Next, Pass, Send, Wait, decide, onwards
from tidings.delivery.looking import Looking
from tidings.delivery.naming import message_id
from tidings.delivery.reader import Read
from tidings.delivery.sending import Ready, Sending, Target
from tidings.delivery.settling import Settling
from tidings.delivery.wording import Wording
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.domain.facts import Deferred, DeliveryListener, Ended, Poisoned
from tidings.domain.notifications.address_key import digest
from tidings.domain.notifications.delivery import Claim, Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.retry_backoff import Backoff

STALE_US = 1_000_000  # what was looked up is looked up again if its turn came later than that
LOOK_AGAIN_S = 0.25
HOLD_S = 1.0


class Terms(msgspec.Struct, frozen=True):
    """How failures are tried again, and how long a claim lasts: longer than any call may take."""

    backoff: Backoff = Backoff()
    claim_us: int = 45_000_000


class Tools(msgspec.Struct, frozen=True):
    """What an errand is run with."""

    looking: Looking
    settling: Settling
    sending: Sending
    wording: Wording
    burying: Burying


class Holding(Protocol):
    """Who must know that a record waits for somebody else, and no longer does."""

    def hold(self, read: Read) -> None: ...

    def resume(self, read: Read) -> None: ...


class _Heard(msgspec.Struct, frozen=True):
    """A delivery that we claimed, the version of that, and what the providers said to it."""

    delivery: Delivery
    version: int
    answers: list[Answer]
    later: Wait | None


class Handling:
    """Runs errands. What it cannot write down it tries again until it is written, or this process ends."""

    def __init__(
        self, worker: str, clock: Clock, tools: Tools, holding: Holding, terms: Terms, tell: DeliveryListener
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._tools = tools
        self._holding = holding
        self._terms = terms
        self._tell = tell
        self._random = random.Random()
        self.claiming: set[asyncio.Task[None] | None] = set()  # those who are not to be disturbed: they hold a claim

    async def run(self, read: Read) -> None:
        """Do all that a record asks for. While the store is away it waits."""
        crash.point("deliver.read")
        while True:
            try:
                if await self._try(read):
                    return
            except (StoreError, NotOwner):
                await asyncio.sleep(LOOK_AGAIN_S)

    async def give_up(self, read: Read, reason: str) -> None:
        """A record that this worker cannot run for a mistake of its own: its delivery fails, and can be sent again.

        While the store is away it waits: a record that is neither run nor given up would be lost.
        """
        while True:
            try:
                if await self._try_giving_up(read, reason):
                    return
            except (StoreError, NotOwner):
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _try_giving_up(self, read: Read, reason: str) -> bool:
        errand = errands.read(read.record, read.tenant)
        case = await self._tools.looking.look(read.tenant, read.record, errand)
        if case is None or isinstance(self._decide(case), Pass):
            return True
        end = without_attempt(case, End("failed", reason), self._clock.now())
        return await self._settle(case, end, case.version)

    async def _try(self, read: Read) -> bool:
        """One look and what follows from it; False if it has to be looked at again."""
        try:
            errand = errands.read(read.record, read.tenant)
            case = await self._tools.looking.look(read.tenant, read.record, errand)
        except Invalid as invalid:
            await self._poison(read, str(invalid))
            return True
        if case is None:
            return True
        await self._spread(case)
        looked_at = self._clock.elapsed()
        decision = self._decide(case)
        if not isinstance(decision, Send):
            return await self._without(read, case, decision)
        task = asyncio.current_task()
        try:
            async with self._tools.sending.slot(case, decision.addresses):
                if self._clock.elapsed() - looked_at > STALE_US:
                    fresh = await self._tools.looking.look(read.tenant, read.record, errand)
                    if fresh is None:
                        return True
                    case, decision = fresh, self._decide(fresh)
                sent = await self._send(read, case, decision, task) if isinstance(decision, Send) else decision
            # The provider has answered: while that is written down, another one may be sent.
            if isinstance(sent, _Heard):
                return await self._write_down(case, sent)
        finally:
            self.claiming.discard(task)
        return sent if isinstance(sent, bool) else await self._without(read, case, sent)

    def _decide(self, case: Case) -> Decision:
        return decide(case, self._terms.backoff, self._clock.now())

    async def _poison(self, read: Read, reason: str) -> None:
        """Out of the way, with all that it said, and told once."""
        now, record = self._clock.now(), read.record
        await self._tools.settling.bury(errands.poison_letter(read.tenant, record, reason, now))
        self._tell(Poisoned(now, read.tenant, record.topic, record.partition, record.offset, reason))

    async def _spread(self, case: Case) -> None:
        """For each of the other channels an errand of its own, if it goes to all of them."""
        notification, errand = case.notification, case.errand
        if notification.spread != "all" or errand.delivery is not None or errand.channel or case.version:
            return
        name = case.delivery.name.removesuffix(notification.channels[0])
        others = [
            msgspec.structs.replace(errand, delivery=f"{name}{channel}", channel=number)
            for number, channel in enumerate(notification.channels)
            if number
        ]
        await asyncio.gather(*(self._tools.settling.spread(case, each) for each in others))

    async def _without(self, read: Read, case: Case, decision: Decision) -> bool:
        """What is to be done without a call; False to look again."""
        match decision:
            case Pass():
                return True
            case Hold():
                await self._hold(read, decision.until)
                return False
            case Wait() | Next():
                return await self._put_back(case, decision)
            case End():
                conclusion = without_attempt(case, decision, self._clock.now())
                return await self._settle(case, conclusion, case.version)
            case Send():
                return False
            case _:
                assert_never(decision)

    async def _put_back(self, case: Case, decision: Wait | Next) -> bool:
        """Back onto the timeline, under a claim: of two who decide at once only one says for when."""
        now = self._clock.now()
        claim = Claim(self._worker, now + self._terms.claim_us)
        ours = msgspec.structs.replace(case.delivery, claim=claim, turn=case.errand.attempt, changed=now)
        version = await self._claim(case, ours, claim)
        if not version:
            return False
        claimed_case = msgspec.structs.replace(case, delivery=ours)
        return await self._settle(case, without_attempt(claimed_case, decision, now), version)

    async def _hold(self, read: Read, until: int) -> None:
        """Wait for the end of another worker's claim, and check now and then whether the delivery is settled."""
        self._holding.hold(read)
        try:
            await asyncio.sleep(min((until - self._clock.now()) / 1_000_000, HOLD_S))
        finally:
            self._holding.resume(read)

    async def _send(
        self, read: Read, case: Case, send: Send, task: "asyncio.Task[None] | None"
    ) -> "_Heard | bool | Decision":
        """Claim and call; a decision if nothing can be called now, False if it has to be looked at again."""
        try:
            targets = await self._targets(case, send)
        except Invalid as invalid:
            return onwards(case, "failed", f"content_refused: {invalid}"[:200])
        if not targets:
            return onwards(case, "failed", "no_address")
        if not all(self._tools.sending.takes(target.message) for target in targets):
            return onwards(case, "failed", "no_provider")
        ready, later = await self._tools.sending.prepare(case, targets)
        if not ready:
            assert later is not None, "who may not go has to wait"
            return later
        now = self._clock.now()
        claim = Claim(self._worker, now + self._terms.claim_us)
        delivery = claimed(case, [each.provider for each in ready], send.addresses, claim, now)
        crash.point("deliver.claiming")
        self.claiming.add(task)
        version = 0
        try:
            version = await self._claim(case, delivery, claim)
        finally:
            if not version:
                await self._tools.sending.withdraw(ready)
        if not version:
            return False
        crash.point("deliver.claimed")
        if self._clock.now() >= claim.until:
            return False  # this process stood still: another one may be at it
        answers = await self._call(case.channel, read.record.due, claim.until, ready)
        return _Heard(delivery, version, answers, later)

    async def _claim(self, case: Case, ours: Delivery, claim: Claim) -> int:
        """The version of what is ours now, 0 if it is not. Where the store's answer was lost, it is looked up: to wait
        for the end of a claim of our own would make it late."""
        try:
            return await self._tools.settling.claim(case, ours)
        except (StoreError, NotOwner):
            while self._clock.now() < claim.until:
                await asyncio.sleep(LOOK_AGAIN_S)
                with contextlib.suppress(StoreError, NotOwner):
                    found = await self._tools.looking.again(case.tenant, ours.name)
                    return found[1] if found is not None and found[0].claim == claim else 0
            return 0

    async def _call(self, channel: ChannelName, due: int, until: int, ready: Sequence[Ready]) -> list[Answer]:
        """Call the providers, before our claim ends."""
        calls = [self._tools.sending.call(each, channel, due, until) for each in ready]
        verdicts = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        return [
            Answer(each.target.number, each.target.address, each.provider, verdict, each.trial)
            for each, verdict in zip(ready, verdicts, strict=True)
        ]

    async def _write_down(self, case: Case, heard: "_Heard") -> bool:
        """Keep what the providers said; while the store is away, wait for it."""
        crash.point("deliver.sent")
        while True:
            try:
                return await self._conclude(case, heard)
            except (StoreError, NotOwner):
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _conclude(self, case: Case, heard: "_Heard") -> bool:
        """Write it down as long as it is ours. If it is not, whoever took it over writes down what came of that."""
        share, now = self._random.random(), self._clock.now()
        conclusion = conclude(case, heard.delivery, heard.answers, heard.later, self._terms.backoff, share, now)
        for address, reason in conclusion.dead:
            await self._tools.burying.bury(case, address, reason)
        version = heard.version
        while not await self._settle(case, conclusion, version):
            found = await self._tools.looking.again(case.tenant, heard.delivery.name)
            if found is None:
                sent = [message_id(case.tenant, heard.delivery.name, answer.number) for answer in heard.answers]
                await self._tools.sending.erase(case.tenant, sent)
            if found is None or found[0].claim != heard.delivery.claim:
                return False
            told, version = found  # a receipt came meanwhile: it stays ours, and keeps the news
            delivery = msgspec.structs.replace(conclusion.delivery, news=told.news)
            conclusion = msgspec.structs.replace(conclusion, delivery=delivery)
        return True

    async def _settle(self, case: Case, conclusion: Conclusion, version: int) -> bool:
        written = await self._tools.settling.settle(case, conclusion, version)
        if written is None:
            return False
        delivery, now = written.delivery, self._clock.now()
        if written.until is not None:
            self._tell(Deferred(now, case.channel, delivery.reason, written.until))
        else:
            self._tell(Ended(now, case.channel, delivery.state, delivery.reason))
        return True

    async def _targets(self, case: Case, send: Send) -> list[Target]:
        """The messages: for a push one for each device that has not got it, under a number that stays its own."""
        content = await self._tools.wording.content(case)
        if case.channel != "push":
            [address] = send.addresses
            name = message_id(case.tenant, case.delivery.name)
            return [Target(0, address, self._tools.wording.message(case, content, address, name))]
        numbers = {part.digest: part.number for part in parts_of(case, send.addresses) if not part.outcome}
        targets = []
        for address in send.addresses:
            number = numbers.get(digest("push", address))
            if number is not None:
                name = message_id(case.tenant, case.delivery.name, number)
                message = self._tools.wording.message(case, content, address, name)
                targets.append(Target(number, address, message))
        return targets
