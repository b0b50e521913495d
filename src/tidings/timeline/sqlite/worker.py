"""One thread that owns a connection; the event loop hands it work and awaits the answer."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from tidings.domain.errors import StoreError
from tidings.timeline.sqlite.database import explain

Answer = TypeVar("Answer")
_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]


class Worker:
    """Runs calls one after the other, in the order in which they came."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, call: Callable[..., Answer], *arguments: object) -> asyncio.Future[Answer]:
        """Hand a call to the thread at once. It is carried out, even if nobody waits any more."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self._closed:
            future.set_exception(StoreError("the store is closed"))
        else:
            self._jobs.put((call, arguments, future))
        return future

    async def run(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        """Hand a call to the thread and wait for its answer."""
        return await self.start(call, *arguments)

    def post(self, call: Callable[[], object]) -> None:
        """Run a call on the thread when its turn comes; for other threads, which wait for nothing."""
        self._loop.call_soon_threadsafe(self._post_here, call)

    def _post_here(self, call: Callable[[], object]) -> None:
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(_look)
        self._jobs.put((call, (), future))

    async def close(self) -> None:
        """Finish what was handed over, then end the thread."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, arguments, future = job
            try:
                answer = call(*arguments)
            except apsw.Error as error:
                self._post(_fail, future, StoreError(explain(error)))
            except BaseException as error:  # noqa: BLE001 - whoever awaits the answer gets it
                self._post(_fail, future, error)
            else:
                self._post(_resolve, future, answer)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop has closed: nobody waits for the answer
            return


def _look(future: "asyncio.Future[Any]") -> None:
    """Take note of an error that nobody waits for; the call will be made again."""
    future.exception()


def _resolve(future: "asyncio.Future[Any]", answer: object) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
