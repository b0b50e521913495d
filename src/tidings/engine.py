"""The engine: one store, one clock, and the stages around them. All edges and the library use it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from tidings import tasks
from tidings.bus.consumer_groups import ConsumerGroups
from tidings.bus.log_reader import LogReader
from tidings.clock import Clock
from tidings.dispatch.lanes import BackgroundService, Lanes
from tidings.dispatch.leases import LatenessWindow, LeaseHolder
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.domain.facts import Fact, Handed, Listener, OwnershipChanged, Refused, Released
from tidings.domain.fleet import Fleet, Report
from tidings.domain.names import Bus, Past, check_storable
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.domain.schedules.request import Limits, Request
from tidings.domain.schedules.reschedule import calendar_of, with_days
from tidings.domain.schedules.schedule import Event, Page, Query, Record, Schedule
from tidings.domain.schedules.when import DAY_US, When
from tidings.intake.admission import Admission, Forbidden, check_new_id, everything_allowed
from tidings.intake.intake import Intake
from tidings.intake.rule_changes import RuleChanges
from tidings.ports import Count, IdempotencyKey, SourceBatch, SourcePosition, Store

STOP_S = 4.0
DRAIN_S = 3.0
RETRY_S = 1.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an engine; further ones belong to the store."""

    limits: Limits = Limits()
    low_jitter_us: int = 0
    past: Past = "send"
    id_retention_us: int = 7 * DAY_US
    lease_us: int = 3_000_000
    session_us: int = 4_000_000
    bus: Bus = "log"
    forbidden: Forbidden = everything_allowed  # which topics on Kafka a tenant may not write to, and why
    about: Report = Report()


class Engine:
    """Takes schedules, releases them and answers queries. Call `start` and `stop`."""

    def __init__(
        self, store: Store, clock: Clock, settings: Settings | None = None, listeners: Sequence[Listener] = ()
    ) -> None:
        self.settings = settings or Settings()
        self.store = store
        self.clock = clock = store.clock or clock
        self._listeners = list(listeners)
        self.lanes = Lanes(store, clock, self.publish)
        chosen = self.settings
        self.admission = Admission(chosen.limits, chosen.low_jitter_us, chosen.bus, chosen.past, chosen.forbidden)
        self.intake = Intake(store, clock, self.publish, self.lanes.wake)
        self._lateness = LatenessWindow()
        self.owner = LeaseHolder(
            store,
            clock,
            self.settings.lease_us,
            on_change=self.lanes.refresh,
            on_fact=self.publish,
            report=self.report,
        )
        self.following = LogReader(store, self.settings.limits.page_bytes_max)
        self.rule_changes = RuleChanges(store, clock, self.publish, self.lanes.wake)
        self._groups = ConsumerGroups(store, clock, self.following, self.settings.session_us)
        self._services: list[BackgroundService] = []
        self._first_to_stop: list[BackgroundService] = []
        self._first_tasks: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add_service(self, *services: BackgroundService, stops_first: bool = False) -> None:
        """Run services beside the lanes, from `start` to `stop`.

        Those with `stops_first` end before everything else, because they must still be able to write their results.
        Their problems do not make the node unready.
        """
        (self._first_to_stop if stops_first else self._services).extend(services)

    async def start(self) -> None:
        """Start all tasks. Releases begin once this process owns the timeline."""
        await self.owner.try_once()
        self._first_tasks = [asyncio.create_task(service.run()) for service in self._first_to_stop]
        self._tasks = [
            *self._first_tasks,
            asyncio.create_task(self.owner.run(), name="tidings-leases"),
            asyncio.create_task(self.owner.run_maintenance(), name="tidings-maintenance"),
            asyncio.create_task(self._release(), name="tidings-lanes"),
            *(asyncio.create_task(service.run()) for service in self._services),
        ]

    async def _release(self) -> None:
        """Once this process owns the timeline, apply changes of calendars and time zone rules, then release.

        In this order, because a due time that was computed by older rules may be too early by the present ones.
        """
        while await self.owner.owned():
            try:
                await self.rule_changes.catch_up()
                break
            except (NotOwner, StoreError):
                await self.owner.pause(RETRY_S)
        await self.lanes.run()

    async def wait(self) -> None:
        """Return when the engine is stopped; raise the error that ended one of its tasks."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def drain(self) -> None:
        """Stop the services that stop first, while the lanes still release."""
        for service in self._first_to_stop:
            service.stop()
        if self._first_tasks:
            await asyncio.wait(self._first_tasks, timeout=DRAIN_S)

    async def stop(self) -> None:
        """Finish the present batches, hand over the leases, close the store."""
        await self.drain()
        self.lanes.stop()
        for service in self._services:
            service.stop()
        self.owner.stop()
        self.following.close()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S) if self._tasks else (set(), set())
        await tasks.end(late)  # or one of them might take the lease again after it was handed over
        await self.store.close()

    def listen(self, listener: Listener) -> None:
        """Add a listener, which is called with every fact from now on."""
        self._listeners.append(listener)

    def publish(self, fact: Fact) -> None:
        """Call every listener with a fact. Releases wake readers; losing the timeline disbands groups in memory."""
        match fact:
            case Released():
                self._lateness.add(fact.lateness_us, self.clock.elapsed())
                self.following.notify(fact.topics)
            case Handed():
                self.lanes.handed(fact.lane)
            case OwnershipChanged(owner=False):
                self._groups.disband()
            case _:
                pass
        for listener in self._listeners:
            listener(fact)

    # Changes

    def admit(self, tenant: str, request: Request, *, new: bool = True) -> Add:
        """Turn a request into a command; raises `Invalid`. `new` refuses ids of the form that Tidings makes."""
        try:
            return self.command(tenant, request, self.clock.now(), new=new)
        except Invalid as invalid:
            self.publish(Refused(self.clock.now(), tenant, invalid.field))
            raise

    def command(self, tenant: str, request: Request, now: int, *, new: bool = True, reuse: bool = False) -> Add:
        """Like `admit`, but on any thread and without a fact. `reuse` starts a new generation of a finished id."""
        if new and request.id is not None:
            check_new_id(request.id)
        return self.admission.admit(tenant, request, now, reuse=reuse)

    async def submit(self, commands: Sequence[Command], idempotency_key: IdempotencyKey | None = None) -> list[Outcome]:
        """Commit commands durably and in order; one outcome each. Raises at once if the store is known to be down."""
        if trouble := self.owner.trouble():
            raise StoreError(trouble)
        return await self.intake.submit(commands, idempotency_key)

    async def take(
        self,
        commands: Sequence[Command],
        positions: Sequence[SourcePosition],
        on_outcomes: Callable[[Sequence[Outcome]], list[Command]],
    ) -> list[Outcome]:
        """Commit commands from request topics, the positions read so far, and the commands that `on_outcomes` returns.

        All in one transaction.
        """
        return await self.intake.take(commands, SourceBatch(positions, on_outcomes))

    async def schedule(self, tenant: str, request: Request, idempotency_key: IdempotencyKey | None = None) -> Outcome:
        """Admit and commit one new schedule."""
        return self.accepted(await self.submit([self.admit(tenant, request)], idempotency_key))

    async def replace(self, tenant: str, request: Request, *, reuse: bool = False, keep_count: bool = False) -> Outcome:
        """Admit a schedule and replace the one with its id."""
        replace = Replace(self.admit(tenant, request, new=False), reuse, keep_count)
        return self.accepted(await self.submit([replace]))

    def accepted(self, outcomes: Sequence[Outcome]) -> Outcome:
        """The only outcome; raises `Invalid` if the store found the request to be invalid."""
        [outcome] = outcomes
        if (invalid := outcome.invalid()) is not None:
            raise invalid
        return outcome

    async def dated(self, tenant: str, when: When) -> When:
        """The same rule with the days of the calendar that it names; raises `Invalid` if there is no such calendar."""
        name = calendar_of(when)
        if name is None:
            return when
        calendar = await self.store.calendar(tenant, name)
        if calendar is None:
            raise Invalid("calendar", f"there is no calendar {name!r}: create it first, or leave it out")
        return with_days(when, calendar.days)

    # Reads

    async def find(self, tenant: str, schedule_id: str) -> Schedule | None:
        """The present state of a schedule; None if it is not (or no longer) known."""
        check_storable(schedule_id, "id")
        return await self.store.find(tenant, schedule_id, self.clock.now())

    def unknown(self, schedule_id: str) -> Outcome:
        """The outcome for an unknown id; schedules that finished before `remembered_since` are forgotten."""
        since = max(0, self.clock.now() - self.settings.id_retention_us)
        return Outcome(schedule_id, "unknown", remembered_since=since)

    async def history(self, tenant: str, schedule_id: str) -> list[Event]:
        """The events of a schedule, oldest first; empty if it is not known."""
        check_storable(schedule_id, "id")
        return await self.store.history(tenant, schedule_id, self.clock.now())

    async def page(self, tenant: str, query: Query) -> Page:
        """Schedules that match a query: pending ones first, by due time, then finished ones, the latest first."""
        for field, text in (("topic", query.topic), ("prefix", query.prefix), ("label", ":".join(query.label or ()))):
            check_storable(text or "", field)
        return await self.store.page(tenant, query, self.clock.now())

    async def count(self) -> Count:
        """The store's size."""
        return await self.store.count(self.clock.now())

    async def read(
        self, tenant: str, topic: str, cursor: str | None, limit: int, wait_us: int = 0
    ) -> tuple[list[Record], str]:
        """Records of a topic after a cursor, waiting for the first if there is none; and the next cursor."""
        check_storable(topic, "topic")
        return await self.following.read(tenant, topic, cursor, limit, wait_us)

    @contextlib.asynccontextmanager
    async def follow(
        self, tenant: str, topic: str, cursor: str | None = None, limit: int = 500
    ) -> AsyncIterator[AsyncIterator[tuple[list[Record], str]]]:
        """Batches of records of a topic as they appear, each with the cursor after it, without end."""
        check_storable(topic, "topic")
        batches = self.following.follow(tenant, topic, cursor, limit)
        try:
            yield batches
        finally:
            await batches.aclose()

    @property
    def groups(self) -> ConsumerGroups:
        """The consumer groups. Where membership is kept in memory, only the owner of the timeline serves them."""
        if self.store.group_membership is None and not self.owner.readiness()[0]:
            raise NotOwner(self.owner.readiness()[1])
        return self._groups

    def report(self) -> Report:
        """What other nodes see of this one."""
        lateness = self._lateness.pace(self.clock.elapsed())
        return msgspec.structs.replace(self.settings.about, at=self.clock.now(), **msgspec.structs.asdict(lateness))

    async def nodes(self) -> Fleet:
        """The nodes that share the store, and the lanes that each owns."""
        return await self.store.nodes(self.clock.now())

    def readiness(self) -> tuple[bool, str]:
        """Whether this process takes changes now, and the reason if not."""
        return self.owner.readiness()

    def problems(self) -> list[str]:
        """Why services cannot work, such as a broker that is down; what is taken meanwhile is not lost."""
        found = [service.problem for service in (*self._services, *self.lanes.services)]
        return [problem for problem in found if problem is not None]
