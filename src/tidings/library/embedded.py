"""An engine of one's own inside a Python program."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import date, datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, get_args

import msgspec

from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.domain.errors import Invalid, NotOwner, TidingsError
from tidings.domain.facts import Fact, OwnershipChanged
from tidings.domain.names import check_name
from tidings.domain.recurrence.ics_calendar import parse_calendar
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Pause, Resume, State, refused
from tidings.domain.schedules.command import Outcome as StoredOutcome
from tidings.domain.schedules.lateness import Policy
from tidings.domain.schedules.request import Request
from tidings.domain.schedules.schedule import Query
from tidings.domain.schedules.schedule import Record as StoredRecord
from tidings.domain.schedules.when import DAY_US
from tidings.engine import Engine
from tidings.intake.schedule_time import passed_note
from tidings.library.arguments import Preview, check_text, check_when, checked, moments, wrong
from tidings.library.schedule_values import (
    Event,
    HeadersGiven,
    Options,
    Outcome,
    Record,
    Schedule,
    Text,
    event_of,
    instant_of,
    make_request,
    outcome_of,
    record_of,
    schedule_of,
)
from tidings.node import build_engine, open_store

if TYPE_CHECKING:
    from tidings.domain.notifications.address import Device
    from tidings.library.notification_values import Notified
    from tidings.library.notifications import (
        Deliveries,
        Inbox,
        Notifications,
        NotifyOptions,
        People,
        Suppressions,
        Templates,
        Users,
    )


BATCH_REQUESTS = 1_000
PAGE_ROWS = 500
OWNER_PATIENCE_S = 5.0
END_PATIENCE_S = 1.0
BEGINNING = "beginning"


class Tidings:
    """An engine of one's own, as one tenant. Use it as an asynchronous context manager."""

    def __init__(self, path: str, config: Config, tenant: str, clock: Clock) -> None:
        check_name(tenant, "tenant")
        self._path = path
        self._config = msgspec.structs.replace(config, store=msgspec.structs.replace(config.store, path=path))
        self._clock = clock
        self._engine: Engine | None = None
        self._told: People | None = None
        self._last = AsyncExitStack()  # what is closed once the engine has stopped
        self._working: asyncio.Task[None] | None = None  # until the engine is stopped, or one of its tasks fails
        self.tenant = tenant

    async def __aenter__(self) -> "Tidings":
        from tidings.node.delivery import check_delivery, try_channels

        check_delivery(self._config)
        await try_channels(self._config)
        store = await open_store(self._path, self._config, self._clock)
        engine = build_engine(store, self._config, self._clock)
        try:
            await self._join_people(engine)
            await _start(engine, self._path)
        except BaseException:
            await engine.stop()
            await self._last.aclose()
            raise
        self._engine = engine
        self._working = asyncio.create_task(engine.wait(), name="tidings-library")
        self._working.add_done_callback(lambda _: engine.following.close())  # who follows learns of the end
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, self._engine = self._engine, None
        assert engine is not None, "it was opened"
        await engine.stop()
        await self._last.aclose()
        if self._working is not None:
            await asyncio.wait({self._working}, timeout=END_PATIENCE_S)
        if error is None:
            self._check_working()

    @property
    def engine(self) -> Engine:
        """What lies below, for what this surface does not offer."""
        if self._engine is None:
            raise RuntimeError("Tidings is not open: use `async with tidings.open(...) as t:`")
        self._check_working()
        return self._engine

    def _check_working(self) -> None:
        """Raise if a task of the engine has failed: nothing is released from then on."""
        working = self._working
        if working is None or not working.done() or working.cancelled():
            return
        if failure := working.exception():
            raise TidingsError(f"Tidings has failed and releases no more: {failure!r}; open it again") from failure

    async def _join_people(self, engine: Engine) -> None:
        """Let workers run beside the engine."""
        from tidings.library.notifications import People
        from tidings.node.delivery import add_delivery

        people = await add_delivery(engine, self._config, self._last)
        self._told = People(people.office, self.tenant)

    # Changes

    async def schedule(
        self, topic: str, value: Any = None, *, id: str | None = None, **options: Unpack[Options]
    ) -> Outcome:
        """Schedule a value: bytes and text as they are, anything else as JSON."""
        return outcome_of(await self.engine.schedule(self.tenant, make_request(topic, value, id, **options)))

    async def schedule_many(self, requests: Iterable[Request]) -> Sequence[Outcome]:
        """Schedule many, a batch a commit; each is answered in order, a bad one as `rejected`."""
        outcomes: list[Outcome] = []
        pending = iter(requests)
        while batch := [*islice(pending, BATCH_REQUESTS)]:
            outcomes += map(outcome_of, await self._submit(batch))
        return outcomes

    async def replace(
        self,
        id: str,
        topic: str,
        value: Any = None,
        *,
        reuse: bool = False,
        keep_count: bool = False,
        **options: Unpack[Options],
    ) -> Outcome:
        """Put this in place of what the id holds; `reuse` begins again with a finished one.

        With `keep_count` what a recurring one gave before counts against the end of the new one.
        """
        check_text(id, "id")
        request = make_request(topic, value, id, **options)
        outcome = await self.engine.replace(self.tenant, request, reuse=reuse, keep_count=keep_count)
        return outcome_of(outcome)

    async def publish(
        self, topic: str, value: Any = None, *, key: Text | None = None, headers: HeadersGiven = ()
    ) -> Outcome:
        """Put a record on a topic now."""
        return await self.schedule(topic, value, key=key, headers=headers)

    async def cancel(self, id: str) -> Outcome:
        """Nothing of this schedule leaves any more, if the answer is `cancelled`."""
        return await self._change(Cancel, id)

    async def pause(self, id: str) -> Outcome:
        """Hold a schedule until it is resumed."""
        return await self._change(Pause, id)

    async def resume(self, id: str, missed: Policy | None = None) -> Outcome:
        """Let a paused schedule go on; `missed` says what becomes of what fell due meanwhile, else `late` does."""
        if missed not in {None, *get_args(Policy)}:
            raise Invalid("missed", "give 'fire_all', 'fire_latest' or 'skip'")
        return await self._change(partial(Resume, missed=missed), id)

    async def fire(self, id: str) -> Outcome:
        """Release now: a one-shot instead of at its time, a recurring one in addition."""
        return await self._change(Fire, id)

    # People

    async def notify(
        self, user: str | None = None, *, to: "str | Device | None" = None, **options: Unpack["NotifyOptions"]
    ) -> "Notified":
        """Tell a user something, or whoever is behind an address; now, or at her hour."""
        [notified] = await self._people.tell({"user": user, "to": to}, options)
        return notified

    async def notify_many(self, users: Sequence[str], **options: Unpack["NotifyOptions"]) -> "Sequence[Notified]":
        """The same for up to 1,000 users, each at her own hour and answered in order; who cannot be is `rejected`."""
        return await self._people.tell({"users": [*users]}, options)

    @property
    def users(self) -> "Users":
        """Who can be told something."""
        return self._people.users

    @property
    def templates(self) -> "Templates":
        """What is said."""
        return self._people.templates

    @property
    def notifications(self) -> "Notifications":
        """What people were to be told, and what became of it."""
        return self._people.notifications

    @property
    def deliveries(self) -> "Deliveries":
        """What was sent, through what, and how late."""
        return self._people.deliveries

    @property
    def inbox(self) -> "Inbox":
        """What people were told inside the product."""
        return self._people.inbox

    @property
    def suppressions(self) -> "Suppressions":
        """Addresses that nothing is sent to."""
        return self._people.suppressions

    @property
    def _people(self) -> "People":
        _ = self.engine  # raises if it is not open, or has failed
        assert self._told is not None
        return self._told

    # Calendars

    async def put_calendar(self, name: str, dates: Iterable[date | str] | str) -> int:
        """Keep days on which nothing happens: dates, or the text of an .ics file. Answers how many moved by it."""
        check_name(name, "calendar")
        text = dates if isinstance(dates, str) else "\n".join(str(day) for day in dates)
        today = self._clock.now() // DAY_US
        days = await asyncio.to_thread(parse_calendar, text, "dates", today)  # a long text takes a while
        return (await self.engine.revision.put_calendar(self.tenant, name, days)).moved

    async def drop_calendar(self, name: str) -> bool:
        """Forget a calendar; what is pending by it goes on without. False if there is none."""
        check_name(name, "calendar")
        return await self.engine.revision.drop_calendar(self.tenant, name) is not None

    # Reads

    async def preview(self, *, after: datetime | None = None, limit: int = 10, **options: Unpack[Options]) -> Preview:
        """The next moments of a `when`, up to `limit` (1 to 1,000); nothing is stored. `count` is the rule's own."""
        check_when(options)
        request = make_request("preview", **options)
        now = self._clock.now()
        when = self.engine.admission.admit(self.tenant, request, now).when
        when = await self.engine.dated(self.tenant, when)
        shown, more = moments(when, now if after is None else instant_of(after), limit)
        passed, note = passed_note(when, now, self.engine.settings.limits)
        return Preview(shown, more=more, passed=passed, note=note)

    async def find(self, id: str) -> Schedule | None:
        """A schedule as it stands, None if it is not (or no longer) known."""
        check_text(id, "id")
        found = await self.engine.find(self.tenant, id)
        return None if found is None else schedule_of(found)

    async def explain(self, id: str) -> Sequence[Event]:
        """What happened to a schedule and when, oldest first."""
        check_text(id, "id")
        return [event_of(event) for event in await self.engine.history(self.tenant, id)]

    def list(
        self,
        *,
        topic: str | None = None,
        state: State | None = None,
        prefix: str | None = None,
        label: tuple[str, str] | None = None,
    ) -> AsyncIterator[Schedule]:
        """Every schedule that fits, in due order."""
        return self._pages(checked(Query(topic=topic, state=state, prefix=prefix, label=label, limit=PAGE_ROWS)))

    def follow(self, topic: str, start: str = BEGINNING) -> AsyncIterator[Record]:
        """Records of a topic without end, from the `beginning`, the `latest`, or a cursor on."""
        check_text(topic, "topic")
        check_text(start, "start")
        self.engine.admission.check_topic(topic)
        cursor = None if start == BEGINNING else start
        return self._records(self.engine.following.follow(self.tenant, topic, cursor, PAGE_ROWS))

    async def _pages(self, query: Query) -> AsyncIterator[Schedule]:
        while True:
            page = await self.engine.page(self.tenant, query)
            for schedule in page.schedules:
                yield schedule_of(schedule)
            if page.cursor is None:
                return
            query = msgspec.structs.replace(query, after=page.cursor)

    async def _records(
        self, batches: AsyncGenerator[tuple[Sequence[StoredRecord], str], None]
    ) -> AsyncIterator[Record]:
        async with aclosing(batches):
            async for records, _ in batches:
                for record in records:
                    yield record_of(record)
        self._check_working()

    async def _change(self, command: Callable[[str, str], Command], id: str) -> Outcome:
        check_text(id, "id")
        outcome = self.engine.accepted(await self.engine.submit([command(self.tenant, id)]))
        return outcome_of(outcome)

    async def _submit(self, batch: Sequence[Request]) -> Iterator[StoredOutcome]:
        admitted = [self._admit(request) for request in batch]
        adds = [add for add in admitted if isinstance(add, Add)]
        answers = iter(await self.engine.submit(adds) if adds else ())
        return (next(answers) if isinstance(add, Add) else add for add in admitted)

    def _admit(self, request: Request) -> Add | StoredOutcome:
        if not isinstance(request, Request):
            raise wrong("requests")
        try:
            return self.engine.admit(self.tenant, checked(request))
        except Invalid as invalid:
            return refused(str(request.id or ""), invalid)


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
        if isinstance(fact, OwnershipChanged) and fact.owner:
            owned.set()

    engine.listen(hear)
    await engine.start()
    try:
        await asyncio.wait_for(owned.wait(), OWNER_PATIENCE_S)
    except TimeoutError:
        reason = engine.readiness()[1]
        raise NotOwner(f"{path}: {reason}; stop it, or talk to it over HTTP") from None
