"""The engine: one store, one clock, and the stages around them. Every edge, and the library, speaks to this."""

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
from tidings.domain.names import check_storable
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.domain.schedules.request import Limits, Request
from tidings.domain.schedules.reschedule import calendar_of, with_days
from tidings.domain.schedules.schedule import Bus, Event, Page, Query, Record, Schedule
from tidings.domain.schedules.when import DAY_US, When
from tidings.intake.admission import Admission, check_new_id
from tidings.intake.intake import Intake
from tidings.intake.rule_changes import RuleChanges
from tidings.ports import Count, IdempotencyKey, SourceBatch, SourcePosition, Store

STOP_S = 4.0
DRAIN_S = 3.0
RETRY_S = 1.0


class Settings(msgspec.Struct, frozen=True):
    """What an engine can be told; the rest is the store's."""

    limits: Limits = Limits()
    low_jitter_us: int = 0
    id_retention_us: int = 7 * DAY_US
    lease_us: int = 3_000_000
    session_us: int = 4_000_000
    bus: Bus = "log"
    about: Report = Report()


class Engine:
    """Schedules, releases and shows. Use as an asynchronous context manager, or `start` and `stop`."""

    def __init__(
        self, store: Store, clock: Clock, settings: Settings | None = None, listeners: Sequence[Listener] = ()
    ) -> None:
        self.settings = settings or Settings()
        self.store = store
        self.clock = clock = store.clock or clock
        self._listeners = list(listeners)
        self.lanes = Lanes(store, clock, self.tell)
        self.admission = Admission(self.settings.limits, self.settings.low_jitter_us, self.settings.bus)
        self.intake = Intake(store, clock, self.tell, self.lanes.wake)
        self._pacing = LatenessWindow()
        self.owner = LeaseHolder(store, clock, self.settings.lease_us, self.lanes.follow, self.tell, self.report)
        self.following = LogReader(store, self.settings.limits.page_bytes_max)
        self.revision = RuleChanges(store, clock, self.tell, self.lanes.wake)
        self._groups = ConsumerGroups(store, clock, self.following, self.settings.session_us)
        self._companions: list[BackgroundService] = []
        self._aside: list[BackgroundService] = []
        self._beside: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def accompany(self, *companions: BackgroundService, aside: bool = False) -> None:
        """Let these run beside the lanes, from start to stop. `aside`: what troubles them troubles no change.

        Those end first of all, for what they have in hand they must still be able to write down.
        """
        self._companions += companions
        if aside:
            self._aside += companions

    async def start(self) -> None:
        """Begin to release, once this process owns the timeline."""
        await self.owner.try_once()
        self._beside = [asyncio.create_task(companion.run()) for companion in self._aside]
        self._tasks = [
            *self._beside,
            asyncio.create_task(self.owner.run(), name="tidings-owner"),
            asyncio.create_task(self.owner.tend(), name="tidings-tending"),
            asyncio.create_task(self._release(), name="tidings-lanes"),
            *(asyncio.create_task(each.run()) for each in self._companions if each not in self._aside),
        ]

    async def _release(self) -> None:
        """Once this process owns the timeline: apply what changed in calendars and the rules of zones.

        Only then release: what was computed by older rules may lie too early by those that hold.
        """
        while await self.owner.owned():
            try:
                await self.revision.catch_up()
                break
            except (NotOwner, StoreError):
                await self.owner.pause(RETRY_S)
        await self.lanes.run()

    async def wait(self) -> None:
        """Return when the engine is stopped; raise what ended one of its tasks, for then it releases no more."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def drain(self) -> None:
        """Let those who work aside end what they have in hand, while the lanes still release."""
        for companion in self._aside:
            companion.stop()
        if self._beside:
            await asyncio.wait(self._beside, timeout=DRAIN_S)

    async def stop(self) -> None:
        """Finish the batch in hand, hand over the lease, close the store."""
        await self.drain()
        self.lanes.stop()
        for companion in self._companions:
            companion.stop()
        self.owner.stop()
        self.following.close()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S) if self._tasks else (set(), set())
        await tasks.end(late)  # else one of them might take the lease again after it was handed over
        await self.store.close()

    def listen(self, listener: Listener) -> None:
        """Tell a listener every fact from now on."""
        self._listeners.append(listener)

    def tell(self, fact: Fact) -> None:
        """Tell everyone what happened. Followers wake up; who no longer owns the timeline has no groups."""
        match fact:
            case Released():
                self._pacing.add(fact.lateness_us, self.clock.elapsed())
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
        """The command for a request; raises `Invalid`. `new` refuses ids of our own form."""
        try:
            return self.command(tenant, request, self.clock.now(), new=new)
        except Invalid as invalid:
            self.tell(Refused(self.clock.now(), tenant, invalid.field))
            raise

    def command(self, tenant: str, request: Request, now: int, *, new: bool = True, reuse: bool = False) -> Add:
        """The same on any thread: nobody is told of a refusal. `reuse` starts a new generation of a finished id."""
        if new and request.id is not None:
            check_new_id(request.id)
        return self.admission.admit(tenant, request, now, reuse=reuse)

    async def submit(self, commands: Sequence[Command], receipt: IdempotencyKey | None = None) -> list[Outcome]:
        """Commit commands durably, in order, and answer each; at once where the store is known not to answer."""
        if trouble := self.owner.trouble():
            raise StoreError(trouble)
        return await self.intake.submit(commands, receipt)

    async def take(
        self,
        commands: Sequence[Command],
        parts: Sequence[SourcePosition],
        on_outcomes: Callable[[Sequence[Outcome]], list[Command]],
    ) -> list[Outcome]:
        """Commit what was read of a source, together with how far it was read and what follows from the outcomes."""
        return await self.intake.take(commands, SourceBatch(parts, on_outcomes))

    async def schedule(self, tenant: str, request: Request, receipt: IdempotencyKey | None = None) -> Outcome:
        """Admit and commit one new schedule."""
        return self.accepted(await self.submit([self.admit(tenant, request)], receipt))

    async def replace(self, tenant: str, request: Request, *, reuse: bool = False, keep_count: bool = False) -> Outcome:
        """Admit a schedule and put it in place of what its id holds."""
        replace = Replace(self.admit(tenant, request, new=False), reuse, keep_count)
        return self.accepted(await self.submit([replace]))

    def accepted(self, outcomes: Sequence[Outcome]) -> Outcome:
        """The outcome of one; raises `Invalid` if something of the request is at fault that only the store knew."""
        [outcome] = outcomes
        if (invalid := outcome.invalid()) is not None:
            raise invalid
        return outcome

    async def dated(self, tenant: str, when: When) -> When:
        """The same with the days of the calendar that it names; `Invalid` if there is none."""
        name = calendar_of(when)
        if name is None:
            return when
        calendar = await self.store.calendar(tenant, name)
        if calendar is None:
            raise Invalid("calendar", f"there is no calendar {name!r}: put it there first, or leave it out")
        return with_days(when, calendar.days)

    # Reads

    async def find(self, tenant: str, schedule_id: str) -> Schedule | None:
        """A schedule as it stands, None if it is not (or no longer) known."""
        check_storable(schedule_id, "id")
        return await self.store.find(tenant, schedule_id, self.clock.now())

    def unknown(self, schedule_id: str) -> Outcome:
        """The answer about an id that is not known: what finished before that moment may be forgotten."""
        since = max(0, self.clock.now() - self.settings.id_retention_us)
        return Outcome(schedule_id, "unknown", remembered_since=since)

    async def history(self, tenant: str, schedule_id: str) -> list[Event]:
        """What happened to a schedule and when, oldest first; empty if it is not known."""
        check_storable(schedule_id, "id")
        return await self.store.history(tenant, schedule_id, self.clock.now())

    async def page(self, tenant: str, query: Query) -> Page:
        """Schedules that fit a query, in due order."""
        for field, text in (("topic", query.topic), ("prefix", query.prefix), ("label", ":".join(query.label or ()))):
            check_storable(text or "", field)
        return await self.store.page(tenant, query, self.clock.now())

    async def count(self) -> Count:
        """The store's size."""
        return await self.store.count(self.clock.now())

    async def read(
        self, tenant: str, topic: str, cursor: str | None, limit: int, wait_us: int = 0
    ) -> tuple[list[Record], str]:
        """Records of a topic after a cursor, waiting for one if there is none; and the cursor behind them."""
        check_storable(topic, "topic")
        return await self.following.read(tenant, topic, cursor, limit, wait_us)

    @contextlib.asynccontextmanager
    async def follow(
        self, tenant: str, topic: str, cursor: str | None = None, limit: int = 500
    ) -> AsyncIterator[AsyncIterator[tuple[list[Record], str]]]:
        """Batches of records of a topic as they appear, each with the cursor behind it, without end."""
        check_storable(topic, "topic")
        batches = self.following.follow(tenant, topic, cursor, limit)
        try:
            yield batches
        finally:
            await batches.aclose()

    @property
    def groups(self) -> ConsumerGroups:
        """The consumer groups; where who is in them is known in memory, only the owner of the timeline leads them."""
        if self.store.group_membership is None and not self.owner.readiness()[0]:
            raise NotOwner(self.owner.readiness()[1])
        return self._groups

    def report(self) -> Report:
        """What others see of this node."""
        pace = self._pacing.pace(self.clock.elapsed())
        return msgspec.structs.replace(self.settings.about, at=self.clock.now(), **msgspec.structs.asdict(pace))

    async def nodes(self) -> Fleet:
        """Who shares the store, and who owns which lane."""
        return await self.store.nodes(self.clock.now())

    def readiness(self) -> tuple[bool, str]:
        """Whether this process takes changes now, and why not."""
        return self.owner.readiness()

    def problems(self) -> list[str]:
        """What its companions wait for, such as a broker that is away; what is taken meanwhile is not lost."""
        found = [each.problem for each in self._all_companions() if each not in self._aside]
        return [problem for problem in found if problem is not None]

    def _all_companions(self) -> list[BackgroundService]:
        return self._companions + self.lanes.companions
