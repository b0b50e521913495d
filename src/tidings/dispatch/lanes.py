"""The lanes that this process owns: each has a dispatcher and background services while it is owned."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.clock import Clock
from tidings.dispatch.dispatcher import SLEEP_US_MAX, Dispatcher, Waiter
from tidings.domain.facts import Listener
from tidings.ports import Lane, Store


class BackgroundService(Protocol):
    """A service that runs beside the dispatchers, such as the forwarder to Kafka."""

    @property
    def problem(self) -> str | None:
        """Why it cannot work at the moment; None if it can."""
        ...

    async def run(self) -> None:
        """Work until stopped."""
        ...

    def wake(self) -> None:
        """Records were put into the outbox of the lane."""
        ...

    def stop(self) -> None:
        """Stop once the current batch is finished."""
        ...


class Lanes:
    """Starts work on lanes that were gained and ends it on lanes that were lost; `refresh` finds out which."""

    def __init__(self, store: Store, clock: Clock, on_fact: Listener) -> None:
        self._store = store
        self._clock = clock
        self._on_fact = on_fact
        self._factories: list[Callable[[Lane], Sequence[BackgroundService]]] = []
        self._works: dict[int, _Work] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._over: asyncio.Future[None] | None = None
        self._stopping = False

    def add_services(self, factory: Callable[[Lane], Sequence[BackgroundService]]) -> None:
        """Run the services that the factory builds for a lane beside its dispatcher, while the lane is owned."""
        self._factories.append(factory)

    @property
    def services(self) -> list[BackgroundService]:
        """The services of all lanes."""
        return [service for work in self._works.values() for service in work.services]

    async def run(self) -> None:
        """Work until stopped, and finish the current batches; raises the error that ended the work on a lane."""
        self._over = asyncio.get_running_loop().create_future()
        if self._stopping:
            self._over.set_result(None)
        self.refresh()
        try:
            await self._over
        finally:
            self.stop()
            ending = list(self._ending.values())
            if ending:
                await asyncio.wait(ending)

    def refresh(self) -> None:
        """Start and end work according to the lanes that we own now, and wake all dispatchers."""
        owned = {} if self._stopping else {lane.number: lane for lane in self._store.lanes()}
        for number, work in list(self._works.items()):
            if owned.get(number) is not work.lane:  # also a lane that was lost and regained: it has another lease
                self._end(number)
        for number in owned.keys() - self._works.keys():
            self._works[number] = self._begin(owned[number])
        if self._over is not None:
            for number, work in self._works.items():
                work.start(self._ending.pop(number, None), self._ended)
        self.wake()

    def wake(self) -> None:
        """Wake all dispatchers: something may be due earlier than they know."""
        for work in self._works.values():
            work.waiter.wake()

    def handed(self, number: int) -> None:
        """Wake the services of a lane: records were put into its outbox."""
        work = self._works.get(number)
        for service in work.services if work is not None else ():
            service.wake()

    async def tick(self) -> int:
        """One step on every lane; returns how long to sleep, 0 if there is more."""
        self.refresh()
        pauses = [await work.dispatcher.tick() for work in list(self._works.values())]
        return min(pauses, default=SLEEP_US_MAX)

    def next_due(self) -> int | None:
        """When the next release is due on one of our lanes; None if none is."""
        dues = (lane.next_due() for lane in self._store.lanes())
        return min((due for due in dues if due is not None), default=None)

    def stop(self) -> None:
        """Stop once the current batches are finished."""
        self._stopping = True
        for number in list(self._works):
            self._end(number)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _begin(self, lane: Lane) -> "_Work":
        waiter = Waiter()
        lane.watch(waiter.wake)
        services = [service for factory in self._factories for service in factory(lane)]
        return _Work(lane, waiter, Dispatcher(lane, self._clock, waiter, self._on_fact), services)

    def _end(self, number: int) -> None:
        work = self._works.pop(number)
        work.stop()
        if work.task is None:
            work.waiter.close()
        else:
            self._ending[number] = work.task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """End `run` with the error of a lane that has failed."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._over is not None and not self._over.done():
            self._over.set_exception(error)


class _Work:
    """The work on one lane while we own it."""

    def __init__(self, lane: Lane, waiter: Waiter, dispatcher: Dispatcher, services: list[BackgroundService]) -> None:
        self.lane = lane
        self.waiter = waiter
        self.dispatcher = dispatcher
        self.services = services
        self.task: asyncio.Task[None] | None = None

    def start(self, before: "asyncio.Task[None] | None", ended: "Callable[[asyncio.Task[None]], None]") -> None:
        """Start, once the former work on this lane has ended."""
        if self.task is None:
            self.task = asyncio.create_task(self._run(before), name="tidings-lane")
            self.task.add_done_callback(ended)

    def stop(self) -> None:
        self.dispatcher.stop()
        for service in self.services:
            service.stop()

    async def _run(self, before: "asyncio.Task[None] | None") -> None:
        tasks = []
        try:
            if before is not None:
                await asyncio.wait({before})
            runs = [self.dispatcher.run(), *(service.run() for service in self.services)]
            tasks = [asyncio.create_task(run, name="tidings-lane-work") for run in runs]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            self.waiter.close()
