"""The lanes at work: for each one that this process owns a dispatcher and its companions, from gain to loss."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.clock import Clock
from tidings.dispatch.dispatcher import SLEEP_US_MAX, Dispatcher, Waiter
from tidings.domain.facts import Listener
from tidings.ports import Lane, Store


class BackgroundService(Protocol):
    """What runs beside a dispatcher, such as the way to Kafka."""

    @property
    def problem(self) -> str | None:
        """What it waits for; None if all is well."""
        ...

    async def run(self) -> None: ...

    def wake(self) -> None:
        """Something was put into the outbox."""
        ...

    def stop(self) -> None: ...


class Lanes:
    """Begins work on lanes that are gained and ends it on those that are lost; `follow` looks which those are."""

    def __init__(self, store: Store, clock: Clock, tell: Listener) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell
        self._makers: list[Callable[[Lane], Sequence[BackgroundService]]] = []
        self._works: dict[int, _Work] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._over: asyncio.Future[None] | None = None
        self._stopping = False

    def accompany(self, make: Callable[[Lane], Sequence[BackgroundService]]) -> None:
        """Let what is made for a lane run beside its dispatcher, for as long as we own the lane."""
        self._makers.append(make)

    @property
    def companions(self) -> list[BackgroundService]:
        """Those of all lanes."""
        return [companion for work in self._works.values() for companion in work.companions]

    async def run(self) -> None:
        """Work until stopped, and finish what is in hand; raises what ended the work on a lane."""
        self._over = asyncio.get_running_loop().create_future()
        if self._stopping:
            self._over.set_result(None)
        self.follow()
        try:
            await self._over
        finally:
            self.stop()
            ending = list(self._ending.values())
            if ending:
                await asyncio.wait(ending)

    def follow(self) -> None:
        """Look which lanes we own now, and wake their dispatchers."""
        owned = {} if self._stopping else {lane.number: lane for lane in self._store.lanes()}
        for number, work in list(self._works.items()):
            if owned.get(number) is not work.lane:  # also one that was lost and came back: it is another lease
                self._end(number)
        for number in owned.keys() - self._works.keys():
            self._works[number] = self._begin(owned[number])
        if self._over is not None:
            for number, work in self._works.items():
                work.start(self._ending.pop(number, None), self._ended)
        self.wake()

    def wake(self) -> None:
        """Something may fall due earlier than it seemed."""
        for work in self._works.values():
            work.waiter.wake()

    def handed(self, number: int) -> None:
        """Something was put into the outbox of a lane: what runs beside its dispatcher has work to do."""
        work = self._works.get(number)
        for companion in work.companions if work is not None else ():
            companion.wake()

    async def tick(self) -> int:
        """One step on every lane; answers how long to sleep, 0 if there is more."""
        self.follow()
        pauses = [await work.dispatcher.tick() for work in list(self._works.values())]
        return min(pauses, default=SLEEP_US_MAX)

    def next_due(self) -> int | None:
        """When the next release on one of our lanes has work to do."""
        dues = (lane.next_due() for lane in self._store.lanes())
        return min((due for due in dues if due is not None), default=None)

    def stop(self) -> None:
        """End after the batches in hand."""
        self._stopping = True
        for number in list(self._works):
            self._end(number)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _begin(self, lane: Lane) -> "_Work":
        waiter = Waiter()
        lane.watch(waiter.wake)
        companions = [companion for make in self._makers for companion in make(lane)]
        return _Work(lane, waiter, Dispatcher(lane, self._clock, waiter, self._tell), companions)

    def _end(self, number: int) -> None:
        work = self._works.pop(number)
        work.stop()
        if work.task is None:
            work.waiter.close()
        else:
            self._ending[number] = work.task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A lane that ends by itself has failed: so has the whole."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._over is not None and not self._over.done():
            self._over.set_exception(error)


class _Work:
    """What is done on one lane while we own it."""

    def __init__(self, lane: Lane, waiter: Waiter, dispatcher: Dispatcher, companions: list[BackgroundService]) -> None:
        self.lane = lane
        self.waiter = waiter
        self.dispatcher = dispatcher
        self.companions = companions
        self.task: asyncio.Task[None] | None = None

    def start(self, before: "asyncio.Task[None] | None", ended: "Callable[[asyncio.Task[None]], None]") -> None:
        """Begin, once whoever worked here before has ended."""
        if self.task is None:
            self.task = asyncio.create_task(self._run(before), name="tidings-lane")
            self.task.add_done_callback(ended)

    def stop(self) -> None:
        self.dispatcher.stop()
        for companion in self.companions:
            companion.stop()

    async def _run(self, before: "asyncio.Task[None] | None") -> None:
        tasks = []
        try:
            if before is not None:
                await asyncio.wait({before})
            runs = [self.dispatcher.run(), *(companion.run() for companion in self.companions)]
            tasks = [asyncio.create_task(run, name="tidings-lane-work") for run in runs]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            self.waiter.close()
