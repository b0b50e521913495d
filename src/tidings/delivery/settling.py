"""Writing down what happens to deliveries: claims before a provider is called, and what came of it afterwards.

Both are group commits. What goes back onto the timeline is put there first: a worker that is killed in between leaves a
turn that nobody needs, never a delivery that nobody takes up.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from tidings import crash
from tidings.clock import Clock
from tidings.delivery import errands
from tidings.delivery.concluding import Conclusion, renumbered, stranded
from tidings.delivery.deciding import Case
from tidings.delivery.filing import delivery_put, notification_key, sent_put
from tidings.delivery.gathering import Gathering
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import DeliveryJob
from tidings.domain.schedules.command import Add, Command, Outcome
from tidings.ports import Change, DocumentStore, Key, Put, Unchanged

Submit = Callable[[Sequence[Command]], Awaitable[Sequence[Outcome]]]
Group = Sequence[Change]

NUMBERS_MAX = 100
REASON_CHARS_MAX = 200

_THERE = frozenset({None, "pending", "paused", "in_flight", "released"})

logger = logging.getLogger("tidings.delivery")


class Settling:
    """Changes of deliveries, many in one transaction."""

    def __init__(self, cabinet: DocumentStore, submit: Submit, clock: Clock) -> None:
        self._cabinet = cabinet
        self._submit = submit
        self._clock = clock
        self._changes: Gathering[Group, int] = Gathering(self._change)

    async def claim(self, case: Case, delivery: Delivery) -> int:
        """Make it ours; answers its version, or 0 if somebody else changed it since it was looked at, or cancelled or
        erased what it is of: nothing leaves any more once either was answered.
        """
        change: list[Change] = [*_resting(case), delivery_put(case.tenant, delivery, case.version)]
        return await self._changes.ask(change, urgent=case.is_urgent)

    async def settle(self, case: Case, conclusion: Conclusion, version: int) -> Conclusion | None:
        """Write down how it stands, behind what must be on the timeline; None if somebody else changed it.

        Answers what was written: another end where the timeline does not take the next turn.
        """
        conclusion = await self._schedule(case, conclusion)
        crash.point("deliver.added")
        now, delivery, tenant = self._clock.now(), conclusion.delivery, case.tenant
        puts = {put.key: put for put in (sent_put(tenant, delivery, *each, now) for each in conclusion.sent)}
        resting = () if version else _resting(case)  # what is not kept yet must not outlive its person
        change: list[Change] = [*resting, *puts.values(), delivery_put(tenant, delivery, version)]
        done = await self._changes.ask(change, urgent=case.is_urgent)
        if not done and puts:
            change = [*resting, *await self._ours(puts), delivery_put(tenant, delivery, version)]
            done = await self._changes.ask(change, urgent=case.is_urgent)
        crash.point("deliver.settled")
        return conclusion if done else None

    async def _ours(self, puts: Mapping[Key, Put]) -> list[Put]:
        """Those of the ids of providers that nothing else stands under: what is another's stays so."""
        found = await self._cabinet.get(list(puts), self._clock.now())
        there = {each.key: each for each in found if each is not None}
        return [
            msgspec.structs.replace(put, expected=there[key].version if key in there else 0)
            for key, put in puts.items()
            if key not in there or there[key].body == put.body
        ]

    async def spread(self, case: Case, errand: DeliveryJob) -> None:
        """Put the errand of another channel onto the timeline, as the first turn of a delivery of its own.

        That delivery is made when it is run; at once if the timeline does not take it, so that it is known why.
        """
        notification, due = case.notification, case.delivery.due
        assert errand.delivery is not None, "it was named"
        channel = notification.channels[errand.channel]
        delivery = Delivery(errand.delivery, notification.id, due, channel=channel, user=notification.user)
        other = msgspec.structs.replace(case, errand=errand, delivery=delivery, version=0)
        conclusion = await self._schedule(other, Conclusion(delivery, errand, due))
        if conclusion.delivery.is_settled:
            await self._changes.ask([delivery_put(case.tenant, conclusion.delivery, 0)])

    async def bury(self, letter: Add) -> None:
        """Put a letter among the dead ones. Where it cannot be put there, somebody has to know."""
        refusal = await self._add(letter)
        if refusal is not None:
            logger.error(
                "the delivery %s of tenant %s cannot be scheduled on %s: %s",
                letter.id,
                letter.tenant,
                letter.topic,
                refusal.reason,
            )

    async def _schedule(self, case: Case, conclusion: Conclusion) -> Conclusion:
        """Have on the timeline what a conclusion needs there. A number that is taken is passed over."""
        refusal = None
        for _ in range(NUMBERS_MAX if conclusion.errand is not None else 0):
            assert conclusion.errand is not None, "it keeps its errand"
            assert conclusion.until is not None, "a turn has a time"
            turn = errands.turn(case.tenant, case.notification, conclusion.errand, conclusion.until)
            refusal = await self._add(turn)
            if refusal is None:
                return conclusion
            if refusal.outcome == "rejected" and refusal.state is None:
                break
            conclusion = renumbered(conclusion)
        if refusal is not None:
            name, why = conclusion.delivery.name, refusal.reason or refusal.outcome
            logger.error(
                "the delivery %s of tenant %s has failed, because its next attempt cannot be scheduled: %s",
                name,
                case.tenant,
                why,
            )
            conclusion = stranded(case, conclusion, f"not_scheduled: {why}"[:REASON_CHARS_MAX], self._clock.now())
        if conclusion.letter is not None:
            await self.bury(conclusion.letter)
        return conclusion

    async def _add(self, add: Add) -> Outcome | None:
        """Have this on the timeline, durably; the refusal if it is not there, nor was.

        What is there already is the same. What was cancelled, or is somebody else's, never comes.
        """
        [outcome] = await self._submit([add])
        if outcome.outcome in {"scheduled", "released"}:
            return None
        return None if outcome.outcome == "unchanged" and outcome.state in _THERE else outcome

    async def _change(self, changes: Sequence[Group]) -> list[int]:
        return await self._cabinet.change(changes, self._clock.now())


def _resting(case: Case) -> tuple[Unchanged, ...]:
    """It goes only while its notification is there, and is what it was."""
    if case.noted is None:
        return ()
    return (Unchanged(notification_key(case.tenant, case.notification.id), case.noted),)
