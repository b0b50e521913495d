"""The engine: one store, one clock, and the stages around them. All edges and the library use it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import get_args

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
from tidings.domain.notifications.notification import is_retry
from tidings.domain.schedules.command import Add, Command, CommandBatch, Outcome, Replace
from tidings.domain.schedules.reschedule import calendar_of, with_days
from tidings.domain.schedules.schedule import Event, Limits, Page, Query, Record, Request, Schedule
from tidings.domain.schedules.when import DAY_US, When
from tidings.intake.admission import AddForm, Admission, Forbidden, check_new_id, everything_allowed, plain_of
from tidings.intake.intake import Intake
from tidings.intake.rule_changes import RuleChanges
from tidings.ports import Count, IdempotencyKey, NotificationTrace, SourceBatch, SourcePosition, Store
from tidings.ports.tables import ChangeGroup, GroupResult

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
        self._listeners: dict[type[Fact], list[Listener]] = {kind: list(listeners) for kind in get_args(Fact)}
        self.lanes = Lanes(store, clock, self.publish)
        chosen = self.settings
        self.admission = Admission(chosen.limits, chosen.low_jitter_us, chosen.bus, chosen.past, chosen.forbidden)
        self.intake = Intake(store, store.tables, clock, self.publish, self.lanes.wake)
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
        """Finish the current batches, hand over the leases, close the store."""
        await self.drain()
        self.lanes.stop()
        for service in self._services:
            service.stop()
        self.owner.stop()
        self.following.close()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S) if self._tasks else (set(), set())
        await tasks.end(late)  # or one of them might take the lease again after it was handed over
        await self.store.close()

    def listen(self, listener: Listener, *kinds: type[Fact]) -> None:
        """Add a listener, which is called with every fact from now on; or only with facts of these kinds."""
        for kind in kinds or get_args(Fact):
            self._listeners[kind].append(listener)

    def publish(self, fact: Fact) -> None:
        """Call the listeners of a fact. Releases wake readers; losing the timeline disbands groups in memory."""
        match fact:
            case Released():
                self._lateness.add(fact.lateness_us, fact.at)
                self.following.notify(fact.topics)
            case Handed():
                self.lanes.handed(fact.lane)
            case OwnershipChanged(owner=False):
                self._groups.disband()
            case _:
                pass
        for listener in self._listeners[type(fact)]:
            listener(fact)

    # Changes

    def admit(self, tenant: str, request: Request, *, new: bool = True) -> Add:
        """Turn a request into a command; raises `Invalid`. `new` refuses ids of the form that Tidings makes."""
        try:
            return self.command(tenant, request, self.clock.now(), new=new)
        except Invalid as invalid:
            self.publish(Refused(self.clock.now(), tenant, invalid.field))
            raise

    def admit_into(self, batch: CommandBatch, tenant: str, request: Request) -> None:
        """Like `admit`, for a batch that is submitted as a whole: plain requests are added to its columns."""
        now = self.clock.now()
        plain = plain_of(request, now)
        if plain is None or not self.admission.admit_plain(batch, tenant, plain, now):
            batch.append(self.admit(tenant, request))

    def command(
        self,
        tenant: str,
        request: Request,
        now: int,
        *,
        new: bool = True,
        reuse: bool = False,
        for_delivery: bool = False,
    ) -> Add:
        """Like `admit`, but on any thread and without a fact. `reuse` starts a new generation of a finished id.

        `for_delivery` allows the topics that are reserved for the deliveries of notifications.
        """
        if new and request.id is not None:
            check_new_id(request.id)
        return self.admission.admit(tenant, request, now, reuse=reuse, for_delivery=for_delivery)

    def form(self, tenant: str, request: Request, now: int, blank: str) -> AddForm | None:
        """The commands for deliveries that differ only in id, key, value and one label (`Admission.form`)."""
        return self.admission.form(tenant, request, now, blank)

    def submit(
        self, commands: Sequence[Command], idempotency_key: IdempotencyKey | None = None
    ) -> Awaitable[list[Outcome]]:
        """Commit commands durably and in order; one outcome each. Raises at once if the store is known to be down."""
        if trouble := self.owner.trouble:
            raise StoreError(trouble)
        if idempotency_key is None:
            return self.intake.submit(commands)
        return self.intake.submit_once(commands, idempotency_key)

    def commit(self, groups: Sequence[ChangeGroup]) -> Awaitable[list[GroupResult]]:
        """Commit groups of changes to the tables of notifications, with their commands, durably and in order."""
        if trouble := self.owner.trouble:
            raise StoreError(trouble)
        return self.intake.commit(groups)

    def commit_urgent(self, groups: Sequence[ChangeGroup]) -> Awaitable[list[GroupResult]]:
        """The same before everything that waits to be committed."""
        if trouble := self.owner.trouble:
            raise StoreError(trouble)
        return self.intake.commit_urgent(groups)

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
        if outcome.field is not None:
            raise outcome.invalid()
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

    async def is_read(self, schedule: Schedule, group: str) -> bool:
        """Whether a consumer group has passed the last record that a finished schedule released to the log.

        Of a recurring one the position is not known: it is passed once only later records are left to read.
        """
        tenant, name = schedule.tenant, schedule.topic
        committed = await self.store.committed(tenant, name, group)
        if schedule.partition is not None and schedule.offset is not None:
            return committed.get(schedule.partition, 0) > schedule.offset
        topic = await self.store.topic(tenant, name)
        for number, end in enumerate(() if topic is None else topic.next):
            place = committed.get(number, 0)
            oldest = await self.store.read(tenant, name, number, place, 1) if place < end else []
            if oldest and oldest[0].released <= (schedule.finished or 0):
                return False
        return True

    def unknown(self, schedule_id: str) -> Outcome:
        """The outcome for an unknown id; schedules that finished before `remembered_since` are forgotten."""
        since = max(0, self.clock.now() - self.settings.id_retention_us)
        return Outcome(schedule_id, "unknown", remembered_since=since)

    async def history(self, tenant: str, schedule_id: str) -> list[Event]:
        """The events of a schedule, oldest first; empty if it is not known."""
        check_storable(schedule_id, "id")
        return await self.store.history(tenant, schedule_id, self.clock.now())

    async def trace(self, tenant: str, notification_id: str, deliveries_max: int) -> NotificationTrace:
        """Everything that is stored about a notification, from one snapshot."""
        check_storable(notification_id, "id")
        return await self.store.trace(tenant, notification_id, self.clock.now(), deliveries_max)

    async def page(self, tenant: str, query: Query) -> Page:
        """Schedules that match a query: pending ones first, by due time, then finished ones, the latest first.

        Further attempts at deliveries are left out, unless the query has a topic or a prefix.
        """
        for field, text in (("topic", query.topic), ("prefix", query.prefix), ("label", ":".join(query.label or ()))):
            check_storable(text or "", field)
        page = await self.store.page(tenant, query, self.clock.now())
        if query.topic is not None or query.prefix is not None:
            return page
        shown = tuple(each for each in page.schedules if not is_retry(each.id, each.topic))
        return Page(shown, page.cursor)

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
        now = self.clock.now()
        lateness = self._lateness.pace(now)
        return msgspec.structs.replace(self.settings.about, at=now, **msgspec.structs.asdict(lateness))

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
