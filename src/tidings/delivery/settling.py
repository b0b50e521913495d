"""Writing down what happens to deliveries: claims before a provider is called, and what came of it afterwards.

Both are group commits. What goes back onto the timeline is put there first: a worker that is killed in between leaves a
turn that nobody needs, never a delivery that nobody takes up.
"""

from collections.abc import Awaitable, Callable, Sequence

from tidings import crash
from tidings.clock import Clock
from tidings.delivery.concluding import Conclusion
from tidings.delivery.deciding import Case
from tidings.delivery.filing import delivery_put, notification_key, sent_put
from tidings.delivery.gathering import Gathering
from tidings.domain.command import Add, Command, Outcome
from tidings.domain.delivery import Delivery
from tidings.domain.errors import StoreError
from tidings.ports import Cabinet, Change, Unchanged

Submit = Callable[[Sequence[Command]], Awaitable[Sequence[Outcome]]]
Group = Sequence[Change]


class Settling:
    """Changes of deliveries, many in one transaction."""

    def __init__(self, cabinet: Cabinet, submit: Submit, clock: Clock) -> None:
        self._cabinet = cabinet
        self._submit = submit
        self._clock = clock
        self._changes: Gathering[Group, bool] = Gathering(self._change)

    async def claim(self, case: Case, delivery: Delivery) -> bool:
        """Make it ours; False if somebody else changed it since it was looked at, or cancelled or erased what it is of.

        So nothing leaves any more once either was answered.
        """
        change: list[Change] = [*_resting(case), delivery_put(case.tenant, delivery, case.version)]
        return await self._changes.ask(change, urgent=case.is_urgent)

    async def settle(self, case: Case, conclusion: Conclusion, version: int) -> bool:
        """Write down how it stands, behind what must be on the timeline; False if somebody else changed it."""
        await self.add(conclusion.adds)
        crash.point("deliver.added")
        now, delivery = self._clock.now(), conclusion.delivery
        puts = {put.key: put for put in (sent_put(case.tenant, delivery, *each, now) for each in conclusion.sent)}
        resting = () if version else _resting(case)  # what is not kept yet must not outlive its person
        change: list[Change] = [*resting, delivery_put(case.tenant, delivery, version), *puts.values()]
        done = await self._changes.ask(change, urgent=case.is_urgent)
        crash.point("deliver.settled")
        return done

    async def add(self, adds: Sequence[Add]) -> None:
        """Have these on the timeline, durably. Those that are there already are the same."""
        if not adds:
            return
        for outcome in await self._submit(adds):
            if outcome.outcome == "rejected":
                raise StoreError(f"{outcome.id} cannot be put onto the timeline: {outcome.reason}")

    async def _change(self, changes: Sequence[Group]) -> list[bool]:
        return await self._cabinet.change(changes, self._clock.now())


def _resting(case: Case) -> tuple[Unchanged, ...]:
    """It goes only while its notification is there, and is what it was."""
    if case.noted is None:
        return ()
    return (Unchanged(notification_key(case.tenant, case.notification.id), case.noted),)
