"""Writing down what happens to deliveries: claims before a provider is called, and what came of it afterwards.

Both are group commits. What goes back onto the timeline is put there first: a worker that is killed in between leaves a
turn that nobody needs, never a delivery that nobody takes up.
"""

from collections.abc import Awaitable, Callable, Sequence

from tidings import crash
from tidings.clock import Clock
from tidings.delivery.concluding import Conclusion
from tidings.delivery.filing import delivery_put, sent_put
from tidings.delivery.gathering import Gathering
from tidings.domain.command import Add, Command, Outcome
from tidings.domain.delivery import Delivery
from tidings.domain.errors import StoreError
from tidings.ports import Cabinet, Put, Remove

Submit = Callable[[Sequence[Command]], Awaitable[Sequence[Outcome]]]
Change = Sequence[Put | Remove]


class Settling:
    """Changes of deliveries, many in one transaction."""

    def __init__(self, cabinet: Cabinet, submit: Submit, clock: Clock) -> None:
        self._cabinet = cabinet
        self._submit = submit
        self._clock = clock
        self._changes: Gathering[Change, bool] = Gathering(self._change)

    async def claim(self, tenant: str, delivery: Delivery, version: int, *, urgent: bool) -> bool:
        """Make it ours; False if somebody else changed it since it was looked at."""
        return await self._changes.begin([delivery_put(tenant, delivery, version)], urgent=urgent)

    async def settle(self, tenant: str, conclusion: Conclusion, version: int, *, urgent: bool) -> bool:
        """Write down how it stands, behind what must be on the timeline; False if somebody else changed it."""
        await self.add(conclusion.adds)
        crash.point("deliver.added")
        now, delivery = self._clock.now(), conclusion.delivery
        puts = {put.key: put for put in (sent_put(tenant, delivery, *each, now) for each in conclusion.sent)}
        change = [delivery_put(tenant, delivery, version), *puts.values()]
        done = await self._changes.begin(change, urgent=urgent)
        crash.point("deliver.settled")
        return done

    async def add(self, adds: Sequence[Add]) -> None:
        """Have these on the timeline, durably. Those that are there already are the same."""
        if not adds:
            return
        for outcome in await self._submit(adds):
            if outcome.outcome == "rejected":
                raise StoreError(f"{outcome.id} cannot be put onto the timeline: {outcome.reason}")

    async def _change(self, changes: Sequence[Change]) -> list[bool]:
        return await self._cabinet.change(changes, self._clock.now())
