"""What the stages ask of a store."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from tidings.clock import Clock
from tidings.domain.command import Command, Outcome
from tidings.domain.fleet import Fleet, Predecessor, Report, Role
from tidings.domain.revising import CalendarChange, Revise, Slice
from tidings.domain.schedule import Calendar, Event, KeptZone, Moved, Outgoing, Page, Query, Record, Schedule, Topic
from tidings.ports.cabinet import Cabinet


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A caller's idempotency key, and a digest of what came with it."""

    tenant: str
    key: str
    body: bytes


class Part(msgspec.Struct, frozen=True, gc=False):
    """What is taken of one partition of a request topic: from the position expected there to the next."""

    topic: str
    partition: int
    expected: int
    next: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What a transaction takes of request topics, and what follows from the outcomes, as part of it."""

    parts: Sequence[Part]
    follow: Callable[[Sequence[Outcome]], Sequence[Command]]


class Release(msgspec.Struct, frozen=True, gc=False):
    """What one release transaction did. `more` says that something is still due, `handed` what is in the outbox."""

    lateness_us: Sequence[int] = ()
    topics: frozenset[tuple[str, str]] = frozenset()
    missed: dict[str, int] = {}
    more: bool = False
    bytes: int = 0
    handed: int = 0


class Count(msgspec.Struct, frozen=True, gc=False):
    """The store's size: schedules pending, those overdue (counted up to a bound), and bytes on disk."""

    pending: int
    overdue: int
    bytes: int


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """An API key as stored: never the key itself, only its digest."""

    name: str
    tenant: str
    digest: bytes
    admin: bool
    created: int


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a consumer group: who is in it (None: nobody), and how far it has come by partition.

    `now` is on the clock that its deadlines are counted on; `groups` says how many others its tenant has, if it is new.
    """

    roster: bytes | None
    committed: dict[int, int]
    now: int
    groups: int = 0


class Step(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a consumer group: who is in it, until when if nobody calls, and what is committed.

    `moved` says that partitions changed hands, so that those who wait have to look.
    """

    roster: bytes
    until: int
    offsets: dict[int, int] = {}
    moved: bool = False


class Timeline(Protocol):
    """The durable, ordered set of what is pending. Each verb says what it makes atomic. Intake may span lanes."""

    @property
    def intakes_max(self) -> int:
        """How many transactions of intake it gains from at a time."""
        ...

    def apply(
        self, commands: Sequence[Command], now: int, receipt: Receipt | None = None, taken: Taken | None = None
    ) -> Awaitable[list[Outcome]]:
        """Commit all commands in order in one durable transaction and answer each. Begins before it is awaited.

        With a receipt seen before, the first answers again and nothing changes; `KeyReused` if the body differs.
        What is taken of sources moves their positions in the same transaction; `Moved` if one is not as expected.
        """
        ...

    async def positions(self) -> dict[tuple[str, int], int]:
        """Where intake stands, by topic and partition."""
        ...

    async def tend(self, now: int) -> bool:
        """One small slice of housekeeping, in its own transaction; True if more is waiting."""
        ...


class Standing(Protocol):
    """What recurring schedules depend on: calendars, and the rules of zones."""

    async def calendars(self, tenant: str) -> list[Calendar]:
        """A tenant's calendars by name."""
        ...

    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One of them."""
        ...

    async def put_calendar(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Put it in place of the one of its name, for what is taken from then on; `Invalid` if it is one too many."""
        ...

    async def drop_calendar(self, tenant: str, name: str) -> CalendarChange | None:
        """Nothing new can name it; None if there is none."""
        ...

    async def unsettled(self) -> list[CalendarChange]:
        """Changes of calendars of all tenants that were not settled."""
        ...

    async def settle_calendars(self, changes: Sequence[CalendarChange]) -> None:
        """What is pending has followed these, unless there was a later change of the same calendar."""
        ...

    async def zones(self) -> list[KeptZone]:
        """The rules of zones by which something pending was computed; several of a zone whose rules have changed."""
        ...

    async def keep_zone(self, zone: KeptZone, now: int) -> None:
        """Something is about to be computed by these rules."""
        ...

    async def forget_zone(self, zone: KeptZone, now: int) -> None:
        """Nothing that this process takes follows these rules; where others do, they are kept for a while."""
        ...

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Some schedules from a cursor on, in one transaction: what `revise` answers takes the place of what it was.

        Calendars cannot change meanwhile. None leaves a schedule as it is. What moves is written down in its history
        and can be read by `moved`.
        """
        ...

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        """What was moved lately, the latest first."""
        ...


class Reading(Protocol):
    """What can be seen of the timeline."""

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None: ...

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]: ...

    async def page(self, tenant: str, query: Query, now: int) -> Page: ...

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        """Pending by time: (start of a step, how many), empty steps left out; True if it was cut short."""
        ...

    async def count(self, now: int) -> Count: ...


Group = tuple[str, str, str]  # tenant, topic, name


class Rosters(Protocol):
    """Who is in each consumer group, kept for all processes alike: a member may call any of them."""

    @property
    def look_us(self) -> int:
        """How long those who wait may go without looking: hints that partitions moved may not reach us."""
        ...

    async def change(self, group: Group, decide: Callable[[Kept], Step | None]) -> None:
        """Take one step with a group, in one transaction with what it commits, unless there is nothing to change.

        The decision is made again if another process was faster. Only what is committed has to outlive the store.
        """
        ...

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Have this called when partitions changed hands elsewhere. It is a hint."""
        ...


class Log(Protocol):
    """The built-in bus: topics, partitions, offsets, and where consumer groups stand."""

    partitions: int

    @property
    def rosters(self) -> Rosters | None:
        """None where only one process at a time leads the groups, and keeps in memory who is in them."""
        ...

    async def topics(self, tenant: str) -> list[Topic]: ...

    async def topic(self, tenant: str, name: str) -> Topic | None: ...

    async def prefixed(self, prefix: str) -> list[tuple[str, Topic]]:
        """The topics of all tenants whose names begin so and that ever held a record, each with its tenant."""
        ...

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        """Records of one partition from an offset on (or from the first that is still kept).

        With `bytes_max`, only as many as have that many bytes of messages together; always at least one.
        """
        ...

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]: ...

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Keep where a group stands, durably."""
        ...

    async def follow(self, tenant: str, topic: str) -> None:
        """Be told of what other processes put onto a topic, from now on until as many calls of `unfollow`."""
        ...

    def unfollow(self, tenant: str, topic: str) -> None: ...

    def on_news(self, call: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """Have this called too, as soon as can be, with the topics on which others put something. It is a hint."""
        ...


class Outbox(Protocol):
    """What is released to Kafka, in one order, until it is there. What is in it leaves: nobody can take it back.

    It holds a bounded number of records and bytes that are not known to be on Kafka, without those that are kept back.
    """

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        """Records from an offset on (or from the first that is still kept); fewer of large ones, but at least one."""
        ...

    async def outbox(self) -> tuple[int, int]:
        """The first offset that is not known to be on Kafka, and the next that will be given."""
        ...

    def shut(self, is_shut: bool) -> None:
        """While Kafka is away nothing goes in: what is due for it waits on the timeline, where it can be changed."""
        ...

    def arrived(self, offset: int) -> None:
        """Everything before this offset is on Kafka; kept in memory only. Wakes who watches if there is room again."""
        ...

    async def settle(self, offset: int) -> None:
        """The same, durably: what lies before it may be forgotten."""
        ...

    async def hold(self, offsets: Sequence[int], reason: str) -> None:
        """Keep records back, durably: `outgoing` leaves them out until they are freed or dropped."""
        ...

    async def held_topics(self) -> set[str]:
        """The topics of which something is kept back."""
        ...

    async def held(self, topic: str, limit: int = 1_000) -> list[Outgoing]:
        """Records of a topic that are kept back, in order; fewer of large ones, but at least one."""
        ...

    async def free(self, offsets: Sequence[int]) -> None:
        """These have reached Kafka on another way, and may be forgotten."""
        ...

    async def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """A record that was kept back is missed, for this reason; commands that tell of it are part of that."""
        ...

    async def confirm(self) -> None:
        """Raise `NotOwner` unless this process owns the lane at this moment."""
        ...


class Lane(Outbox, Protocol):
    """A part of the timeline that one process at a time releases, with an outbox of its own.

    Every write of it checks, in its own transaction, that this process owns the lane; `NotOwner` if it does not.
    """

    @property
    def number(self) -> int:
        """Counted from 0."""
        ...

    async def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Release:
        """Move what is due at `now` onto the log or into the outbox, or count it as missed, in one durable transaction.

        Where a clock is given, it is read anew when the transaction begins, which may be later than the call.

        At most `rows_max` rows, in fair shares by priority and tenant. Recurring ones get their next occurrence.
        What goes to Kafka stays pending while its outbox is full; never more is handed over than there is room for.
        """
        ...

    def next_due(self) -> int | None:
        """When the next release has work to do; None if nothing is near that may leave. Never later than the truth."""
        ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Have this called when `next_due` moves to an earlier moment: by another process, or by room in the outbox."""
        ...


class Keys(Protocol):
    """API keys, stored as digests."""

    async def keys(self) -> list[ApiKey]: ...

    async def add_key(self, key: ApiKey) -> None: ...

    async def revoke_key(self, name: str) -> bool: ...


class Ownership(Protocol):
    """Each lane is owned by one process, by a lease that it renews; every write of a lane checks the owner's token."""

    @property
    def clock(self) -> Clock | None:
        """The clock that counts, where it is not each process's own: the store's, as this process measures it."""
        ...

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        """Renew the leases of our lanes and take our share of those that are free; False if we may take no changes.

        `elapsed` was read before the call: the leases run from then on. The report is what others see of us; whose
        roles have no dispatch owns no lane.
        """
        ...

    async def nodes(self, now: int) -> Fleet:
        """Who lives, and who owns which lane."""
        ...

    def lanes(self) -> Sequence[Lane]:
        """The lanes that this process owns now, as far as it can know by itself."""
        ...

    def reads(self, source: str, partition: int, role: Role = "intake") -> bool:
        """Whether a partition of a source is for this process to read now, among those of a role. On any thread.

        For a moment two processes may think so of the same one: of intake `Moved` tells the second, of delivery the
        claim.
        """
        ...

    def on_free(self, call: Callable[[], None]) -> None:
        """Have this called when another process has handed lanes over: it is time to acquire."""
        ...

    async def resign(self) -> None:
        """Hand all lanes over at once."""
        ...


class Store(Timeline, Standing, Reading, Log, Keys, Ownership, Protocol):
    """All of it, in one place that commits together."""

    @property
    def identity(self) -> str:
        """A name that no other store has; it stays the same for as long as the store exists."""
        ...

    @property
    def predecessors(self) -> Sequence[Predecessor]:
        """The stores whose place this one has taken, because everything of them was moved into it."""
        ...

    @property
    def cabinet(self) -> Cabinet:
        """The documents of delivery."""
        ...

    async def close(self) -> None: ...
