"""An engine of one's own inside a Python program."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Unpack

import msgspec

from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.domain.command import Add, Cancel, Fire, Outcome, Pause, Resume, State
from tidings.domain.errors import Invalid, NotOwner
from tidings.domain.facts import Fact, Standing
from tidings.domain.request import Request
from tidings.domain.schedule import Event, Query, Schedule
from tidings.engine import Engine
from tidings.library.values import HeadersGiven, Options, Record, Text, make_request, record_of
from tidings.node import build_engine, open_store

BATCH_REQUESTS = 1_000
OWNER_PATIENCE_S = 5.0
BEGINNING = "beginning"


class Tidings:
    """An engine of one's own, as one tenant. Use it as an asynchronous context manager."""

    def __init__(self, path: str, config: Config, tenant: str, clock: Clock) -> None:
        self._path = path
        self._config = config
        self._clock = clock
        self._engine: Engine | None = None
        self.tenant = tenant

    async def __aenter__(self) -> "Tidings":
        store = await open_store(self._path, self._config, self._clock)
        engine = build_engine(store, self._config, self._clock)
        try:
            await _start(engine, self._path)
        except BaseException:
            await engine.stop()
            raise
        self._engine = engine
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, self._engine = self.engine, None
        await engine.stop()

    @property
    def engine(self) -> Engine:
        """What lies below, for what this surface does not offer."""
        if self._engine is None:
            raise RuntimeError("Tidings is not open: use `async with tidings.open(...) as t:`")
        return self._engine

    # Changes

    async def schedule(
        self, topic: str, value: Any = None, *, id: str | None = None, **options: Unpack[Options]
    ) -> Outcome:
        """Schedule a value: bytes and text as they are, anything else as JSON."""
        return await self.engine.schedule(self.tenant, make_request(topic, value, id, **options))

    async def schedule_many(self, requests: Iterable[Request]) -> Sequence[Outcome]:
        """Schedule many, a batch a commit; each is answered in order, a bad one as `rejected`."""
        outcomes: list[Outcome] = []
        pending = iter(requests)
        while batch := [*islice(pending, BATCH_REQUESTS)]:
            outcomes += await self._submit(batch)
        return outcomes

    async def replace(
        self, id: str, topic: str, value: Any = None, *, reuse: bool = False, **options: Unpack[Options]
    ) -> Outcome:
        """Put this in place of what the id holds; `reuse` begins again with a finished one."""
        request = make_request(topic, value, id, **options)
        return await self.engine.replace(self.tenant, request, reuse=reuse)

    async def publish(
        self, topic: str, value: Any = None, *, key: Text | None = None, headers: HeadersGiven = ()
    ) -> Outcome:
        """Put a record on a topic now."""
        return await self.schedule(topic, value, key=key, headers=headers)

    async def cancel(self, id: str) -> Outcome:
        """Nothing of this schedule leaves any more, if the answer is `cancelled`."""
        return (await self.engine.submit([Cancel(self.tenant, id)]))[0]

    async def pause(self, id: str) -> Outcome:
        """Hold a schedule until it is resumed."""
        return (await self.engine.submit([Pause(self.tenant, id)]))[0]

    async def resume(self, id: str) -> Outcome:
        """Let a paused schedule go on."""
        return (await self.engine.submit([Resume(self.tenant, id)]))[0]

    async def fire(self, id: str) -> Outcome:
        """Release now: a one-shot instead of at its time, a recurring one in addition."""
        return (await self.engine.submit([Fire(self.tenant, id)]))[0]

    # Reads

    async def find(self, id: str) -> Schedule | None:
        """A schedule as it stands, None if it is not (or no longer) known."""
        return await self.engine.find(self.tenant, id)

    async def explain(self, id: str) -> Sequence[Event]:
        """What happened to a schedule and when, oldest first."""
        return await self.engine.history(self.tenant, id)

    async def list(
        self,
        *,
        topic: str | None = None,
        state: State | None = None,
        prefix: str | None = None,
        label: tuple[str, str] | None = None,
    ) -> AsyncIterator[Schedule]:
        """Every schedule that fits, in due order."""
        query = Query(topic=topic, state=state, prefix=prefix, label=label, limit=500)
        while True:
            page = await self.engine.page(self.tenant, query)
            for schedule in page.schedules:
                yield schedule
            if page.cursor is None:
                return
            query = msgspec.structs.replace(query, after=page.cursor)

    async def follow(self, topic: str, start: str = BEGINNING) -> AsyncIterator[Record]:
        """Records of a topic without end, from the `beginning`, the `latest`, or a cursor on."""
        cursor = None if start == BEGINNING else start
        async with self.engine.follow(self.tenant, topic, cursor) as batches:
            async for records, _ in batches:
                for record in records:
                    yield record_of(record)

    async def _submit(self, batch: Sequence[Request]) -> Iterator[Outcome]:
        admitted = [self._admit(request) for request in batch]
        adds = [add for add in admitted if isinstance(add, Add)]
        answers = iter(await self.engine.submit(adds) if adds else ())
        return (next(answers) if isinstance(add, Add) else add for add in admitted)

    def _admit(self, request: Request) -> Add | Outcome:
        try:
            return self.engine.admit(self.tenant, request)
        except Invalid as invalid:
            return Outcome(request.id or "", "rejected", reason=str(invalid))


def open(
    path: str = "tidings.db",
    *,
    tenant: str = "default",
    config: Config | None = None,
    clock: Clock | None = None,
) -> Tidings:
    """Tidings in this process, on a file or `:memory:`: `async with tidings.open("tidings.db") as t:`."""
    return Tidings(path, config or Config(), tenant, clock or SystemClock())


async def _start(engine: Engine, path: str) -> None:
    """Start and wait until this process owns the store; a killed owner's lease runs out meanwhile."""
    owned = asyncio.Event()

    def hear(fact: Fact) -> None:
        if isinstance(fact, Standing) and fact.owner:
            owned.set()

    engine.listen(hear)
    await engine.start()
    try:
        await asyncio.wait_for(owned.wait(), OWNER_PATIENCE_S)
    except TimeoutError:
        reason = engine.readiness()[1]
        raise NotOwner(f"{path}: {reason}; stop it, or talk to it over HTTP") from None
