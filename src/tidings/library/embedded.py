"""`tidings.open`: an engine with its own store inside a Python program."""

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
from tidings.domain.schedules.command import Cancel, Command, CommandBatch, Fire, Pause, Resume, State, refused
from tidings.domain.schedules.command import Outcome as StoredOutcome
from tidings.domain.schedules.lateness import Policy
from tidings.domain.schedules.schedule import Query, Request
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
        NotificationCalls,
        Notifications,
        NotifyOptions,
        Suppressions,
        Templates,
        Users,
    )


BATCH_REQUESTS = 1_000
PAGE_ROWS = 500
OWNERSHIP_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 1.0
BEGINNING = "beginning"


class Tidings:
    """An engine inside this process, used as one tenant. It is an asynchronous context manager."""

    def __init__(self, path: str, config: Config, tenant: str, clock: Clock) -> None:
        check_name(tenant, "tenant")
        self._path = path
        self._config = msgspec.structs.replace(config, store=msgspec.structs.replace(config.store, path=path))
        self._clock = clock
        self._engine: Engine | None = None
        self._services: NotificationCalls | None = None
        self._after_stop = AsyncExitStack()  # closed once the engine has stopped
        self._running: asyncio.Task[None] | None = None  # ends when the engine stops, or one of its tasks fails
        self.tenant = tenant

    async def __aenter__(self) -> "Tidings":
        from tidings.node.delivery import check_delivery, try_channels

        check_delivery(self._config)
        await try_channels(self._config)
        store = await open_store(self._path, self._config, self._clock)
        engine = build_engine(store, self._config, self._clock)
        try:
            await self._start_delivery(engine)
            await _start(engine, self._path)
        except BaseException:
            await engine.stop()
            await self._after_stop.aclose()
            raise
        self._engine = engine
        self._running = asyncio.create_task(engine.wait(), name="tidings-library")
        self._running.add_done_callback(lambda _: engine.following.close())  # ends the loops over `follow`
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, self._engine = self._engine, None
        assert engine is not None, "the context was entered"
        await engine.stop()
        await self._after_stop.aclose()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=STOP_TIMEOUT_S)
        if error is None:
            self._check_running()

    @property
    def engine(self) -> Engine:
        """The engine itself, for what the library does not offer."""
        if self._engine is None:
            raise RuntimeError("Tidings is not open: use `async with tidings.open(...) as t:`")
        self._check_running()
        return self._engine

    def _check_running(self) -> None:
        """Raise if a task of the engine has failed: nothing is released from then on."""
        running = self._running
        if running is None or not running.done() or running.cancelled():
            return
        if failure := running.exception():
            raise TidingsError(
                f"Tidings has failed and releases nothing any more: {failure!r}; open it again"
            ) from failure

    async def _start_delivery(self, engine: Engine) -> None:
        """Attach the delivery of notifications to the engine."""
        from tidings.library.notifications import NotificationCalls
        from tidings.node.delivery import add_delivery

        delivery = await add_delivery(engine, self._config, self._after_stop)
        self._services = NotificationCalls(delivery.services, self.tenant)

    # Changes

    async def schedule(
        self, topic: str, value: Any = None, *, id: str | None = None, **options: Unpack[Options]
    ) -> Outcome:
        """Schedule a message: bytes and text as they are, other values as JSON."""
        return outcome_of(await self.engine.schedule(self.tenant, make_request(topic, value, id, **options)))

    async def schedule_many(self, requests: Iterable[Request]) -> Sequence[Outcome]:
        """Schedule many, one commit for each batch. The outcomes are in order; an invalid request is `rejected`."""
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
        """Replace the schedule with this id, or add it; `reuse` starts a finished one again.

        With `keep_count` the numbering continues, and earlier occurrences count towards the end.
        """
        check_text(id, "id")
        request = make_request(topic, value, id, **options)
        outcome = await self.engine.replace(self.tenant, request, reuse=reuse, keep_count=keep_count)
        return outcome_of(outcome)

    async def publish(
        self, topic: str, value: Any = None, *, key: Text | None = None, headers: HeadersGiven = ()
    ) -> Outcome:
        """Publish a record to a topic now."""
        return await self.schedule(topic, value, key=key, headers=headers)

    async def cancel(self, id: str) -> Outcome:
        """Cancel a schedule; if the outcome is `cancelled`, nothing more is released."""
        return await self._change(Cancel, id)

    async def pause(self, id: str) -> Outcome:
        """Pause a schedule until it is resumed."""
        return await self._change(Pause, id)

    async def resume(self, id: str, missed: Policy | None = None) -> Outcome:
        """Resume a schedule; `missed` (default: its `late`) decides about occurrences that fell due meanwhile."""
        if missed not in {None, *get_args(Policy)}:
            raise Invalid("missed", "give 'fire_all', 'fire_latest' or 'skip'")
        return await self._change(partial(Resume, missed=missed), id)

    async def fire(self, id: str) -> Outcome:
        """Release now: a one-shot instead of at its time, a recurring schedule additionally."""
        return await self._change(Fire, id)

    # Notifications

    async def notify(
        self, user: str | None = None, *, to: "str | Device | None" = None, **options: Unpack["NotifyOptions"]
    ) -> "Notified":
        """Notify a user, or a bare address, now or later; local times are in the user's time zone."""
        [notified] = await self._notifications.notify({"user": user, "to": to}, options)
        return notified

    async def notify_many(self, users: Sequence[str], **options: Unpack["NotifyOptions"]) -> "Sequence[Notified]":
        """The same for up to 1,000 users, each in their own time zone. The outcomes are in the order of `users`."""
        if isinstance(users, str):
            raise Invalid("users", "give a list of user ids, such as ['ada', 'bob']")
        return await self._notifications.notify({"users": [*users]}, options)

    @property
    def users(self) -> "Users":
        """People who can be notified."""
        return self._notifications.users

    @property
    def templates(self) -> "Templates":
        """What messages say, by channel and language."""
        return self._notifications.templates

    @property
    def notifications(self) -> "Notifications":
        """Notifications and what happened to them."""
        return self._notifications.notifications

    @property
    def deliveries(self) -> "Deliveries":
        """What was sent, by which provider, and how late."""
        return self._notifications.deliveries

    @property
    def inbox(self) -> "Inbox":
        """The in-app notifications of users."""
        return self._notifications.inbox

    @property
    def suppressions(self) -> "Suppressions":
        """Addresses that nothing is sent to."""
        return self._notifications.suppressions

    @property
    def _notifications(self) -> "NotificationCalls":
        _ = self.engine  # raises if it is not open, or has failed
        assert self._services is not None
        return self._services

    # Calendars

    async def put_calendar(self, name: str, dates: Iterable[date | str] | str) -> int:
        """Store a calendar: dates, or the text of an .ics file. Returns how many pending occurrences moved."""
        check_name(name, "calendar")
        text = dates if isinstance(dates, str) else "\n".join(str(day) for day in dates)
        today = self._clock.now() // DAY_US
        days = await asyncio.to_thread(parse_calendar, text, "dates", today)  # a long text takes a while
        return (await self.engine.rule_changes.put_calendar(self.tenant, name, days)).moved

    async def drop_calendar(self, name: str) -> bool:
        """Delete a calendar; schedules that use it continue without it. False if there is none."""
        check_name(name, "calendar")
        return await self.engine.rule_changes.drop_calendar(self.tenant, name) is not None

    # Reads

    async def preview(self, *, after: datetime | None = None, limit: int = 10, **options: Unpack[Options]) -> Preview:
        """The next moments, up to `limit` (1 to 1,000); nothing is stored. `count` is the end of the rule.

        They are those from now on, or those after the moment `after`, which is not one of them itself.
        """
        check_when(options)
        request = make_request("preview", **options)
        now = self._clock.now()
        add = self.engine.admission.admit(self.tenant, request, now)
        add.check_past()
        when = await self.engine.dated(self.tenant, add.when)
        shown, more = moments(when, now if after is None else instant_of(after) + 1, limit)
        passed, note = passed_note(when, now, self.engine.settings.limits)
        return Preview(shown, more=more, passed=passed, note=add.note or note)

    async def find(self, id: str) -> Schedule | None:
        """A schedule and its state; None if it is not known, or no longer."""
        check_text(id, "id")
        found = await self.engine.find(self.tenant, id)
        return None if found is None else schedule_of(found)

    async def explain(self, id: str) -> Sequence[Event]:
        """The history of a schedule, oldest first."""
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
        """Every schedule that matches: pending ones first, by due time, then finished ones, the latest first."""
        return self._pages(checked(Query(topic=topic, state=state, prefix=prefix, label=label, limit=PAGE_ROWS)))

    def follow(self, topic: str, start: str = BEGINNING) -> AsyncIterator[Record]:
        """Records of a topic, without end, from the `beginning`, the `latest` or a cursor on."""
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
        self._check_running()

    async def _change(self, command: Callable[[str, str], Command], id: str) -> Outcome:
        check_text(id, "id")
        outcome = self.engine.accepted(await self.engine.submit([command(self.tenant, id)]))
        return outcome_of(outcome)

    async def _submit(self, batch: Sequence[Request]) -> Iterator[StoredOutcome]:
        adds = CommandBatch()
        refusals = [self._admit(adds, request) for request in batch]
        answers = iter(await self.engine.submit(adds) if adds else ())
        return (next(answers) if refusal is None else refusal for refusal in refusals)

    def _admit(self, adds: CommandBatch, request: Request) -> StoredOutcome | None:
        """Add the command of a request to a batch; returns the outcome if it is refused."""
        if not isinstance(request, Request):
            raise wrong("requests")
        try:
            self.engine.admit_into(adds, self.tenant, checked(request))
        except Invalid as invalid:
            return refused(str(request.id or ""), invalid)
        return None


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
    """Start the engine and wait until it owns the store; the lease of a killed owner expires meanwhile."""
    owned = asyncio.Event()

    def on_fact(fact: Fact) -> None:
        if isinstance(fact, OwnershipChanged) and fact.owner:
            owned.set()

    engine.listen(on_fact, OwnershipChanged)
    await engine.start()
    try:
        await asyncio.wait_for(owned.wait(), OWNERSHIP_TIMEOUT_S)
    except TimeoutError:
        reason = engine.readiness()[1]
        raise NotOwner(f"{path}: {reason}; stop it, or talk to it over HTTP") from None
