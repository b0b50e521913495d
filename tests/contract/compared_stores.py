"""The same steps on several stores; every answer is compared, and the promises are checked."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import msgspec

from tests.contract.factories import drain, listed, records, tend
from tests.contract.stores import NAMES, has_lanes, is_missing, opened
from tidings.domain.errors import KeyReused
from tidings.domain.schedules.command import FINISHED, Command, Outcome, address
from tidings.domain.schedules.schedule import MADE_ID, Query, Record, Schedule, unpack
from tidings.ports import IdempotencyKey, Store

# No step of the walk ends at the very moment at which one of these does: what holds there is not promised.
ID_RETENTION_US = 3 * 86_400_000_000 + 777
IDEMPOTENCY_RETENTION_US = 86_400_000_000 + 777

RAM = Path("/dev/shm")  # many short runs: a disk would be slow, and nothing here is about durability

Answer = TypeVar("Answer")
ScheduleId = tuple[str, str]


class ComparedStores:
    """Stores with the same commands. Generated ids differ: that of the first store stands for all."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._folder = tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None)
        self._stack = contextlib.AsyncExitStack()
        self.names = [name for name in NAMES if not is_missing(name) and not has_lanes(name)]
        self.stores = [self._run(self._open(name)) for name in self.names]
        self._aliases: list[dict[str, str]] = [{} for _ in self.stores]
        self._seen: set[ScheduleId] = set()
        self._first: list[str] = []

    def close(self) -> None:
        """Close every store and remove what it wrote."""
        self._run(self._stack.aclose())
        self._runner.close()
        self._folder.cleanup()

    async def _open(self, name: str) -> Store:
        store = opened(
            name,
            Path(self._folder.name),
            id_retention_us=ID_RETENTION_US,
            idempotency_retention_us=IDEMPOTENCY_RETENTION_US,
            retention_us=10**17,
        )
        return await self._stack.enter_async_context(store)

    def _run(self, step: Awaitable[Answer]) -> Answer:
        async def run() -> Answer:
            return await step

        return self._runner.run(run())

    def _each(self, ask: Callable[..., Awaitable[Answer]], *details: object) -> Answer:
        """Ask every store, given by its index; all must answer alike."""
        answers = [self._run(ask(index, *details)) for index in range(len(self.stores))]
        for name, answer in zip(self.names, answers, strict=True):
            assert answer == answers[0], f"{name}:\n{answer}\n{self.names[0]}:\n{answers[0]}"
        return answers[0]

    # Steps

    def apply(self, commands: Sequence[Command], now: int, idempotency: IdempotencyKey | None = None) -> list[Outcome]:
        """Apply the same commands everywhere; none are answered if the idempotency key is refused."""
        outcomes = self._each(self._apply, commands, now, idempotency)
        if idempotency is None:
            places = zip(commands, outcomes, strict=True)
            self._seen |= {(address(command)[0], outcome.id) for command, outcome in places}
        return outcomes

    async def _apply(
        self, index: int, commands: Sequence[Command], now: int, idempotency: IdempotencyKey | None
    ) -> list[Outcome]:
        translated = [self._translated(index, command) for command in commands]
        try:
            outcomes = await self.stores[index].apply(translated, now, idempotency)
        except KeyReused:
            return []
        self._learn(index, outcomes)
        return [msgspec.structs.replace(one, id=self._known(index, one.id)) for one in outcomes]

    def release(self, now: int, rows_max: int) -> None:
        """Release everything that is due, everywhere."""
        self._each(self._release, now, rows_max)

    async def _release(
        self, index: int, now: int, rows_max: int
    ) -> tuple[list[int], Counter[str], frozenset[ScheduleId]]:
        drained = await drain(self.stores[index], now, rows_max)
        assert min(drained.lateness_us, default=0) >= 0, "something was released early"
        return sorted(drained.lateness_us), drained.missed, frozenset(drained.topics)

    def tend(self, now: int) -> None:
        """Do all the housekeeping, everywhere."""
        self._each(lambda index: tend(self.stores[index], now))

    # Comparisons

    def compare(self, now: int, tenants: Sequence[str], topics: Sequence[str]) -> None:
        """Everything that can be seen is the same everywhere."""
        for place in sorted(self._seen):
            self._each(self._view, place, now)
        for tenant in tenants:
            self._each(self._list, tenant, now)
            for topic in topics:
                self._each(self._log, tenant, topic)
        self._each(self._count, now)

    async def _view(self, index: int, place: ScheduleId, now: int) -> tuple[object, ...]:
        """A schedule, and the releases in the history of its first generation."""
        tenant, schedule_id = place
        name, store = self._own(index, schedule_id), self.stores[index]
        schedule = await store.find(tenant, name, now)
        if schedule is None or schedule.generation > 1:
            return (None if schedule is None else _seen(schedule, schedule_id),)
        events = await store.history(tenant, name, now)
        since = schedule.accepted if schedule.finished is None else now - ID_RETENTION_US
        lately = [event for event in events if event.at >= max(since, schedule.accepted)]
        left = Counter((event.occurrence, event.at) for event in lately if event.event == "released")
        return _seen(schedule, schedule_id), left

    async def _list(self, index: int, tenant: str, now: int) -> Counter[tuple[object, ...]]:
        schedules = await listed(self.stores[index], Query(limit=3), now, tenant)
        waiting = [one.due for one in schedules if one.finished is None]
        order = [one.finished is not None for one in schedules]
        in_order = order == sorted(order) and waiting == sorted(waiting)
        assert in_order, f"{self.names[index]} lists {schedules} out of order"
        return Counter((self._known(index, one.id), one.state, one.due) for one in schedules)

    async def _log(self, index: int, tenant: str, topic: str) -> dict[str, list[tuple[object, ...]]]:
        """Releases by schedule: fired records, then its occurrences in order; each in its partition."""
        left: dict[str, list[tuple[object, ...]]] = {}
        store = self.stores[index]
        kept = await records(store, topic, tenant)
        for record in sorted(kept, key=lambda each: (min(each.number, 0), each.generation)):
            assert record.due <= record.released, f"{record} was released early"
            assert record.partition == _partition(record, store.partitions), f"{record} is misplaced"
            occurrence = (record.generation, record.number, record.final)
            shown = (*occurrence, record.due, record.released, record.message)
            left.setdefault(self._known(index, record.id), []).append(shown)
        return left

    async def _count(self, index: int, now: int) -> int:
        return (await self.stores[index].count(now)).pending

    # Ids

    def _learn(self, index: int, outcomes: Sequence[Outcome]) -> None:
        """Map generated ids to those of the first store."""
        self._first = [outcome.id for outcome in outcomes] if index == 0 else self._first
        for outcome, first in zip(outcomes, self._first, strict=True):
            self._aliases[index].setdefault(first, outcome.id)

    def _own(self, index: int, schedule_id: str) -> str:
        return self._aliases[index].get(schedule_id, schedule_id)

    def _known(self, index: int, own: str) -> str:
        if not MADE_ID.match(own):
            return own
        return next((first for first, name in self._aliases[index].items() if name == own), own)

    def _translated(self, index: int, command: Command) -> Command:
        """The command with the id that this store knows."""
        _, schedule_id = address(command)
        if schedule_id is None or not MADE_ID.match(schedule_id):
            return command
        name = self._own(index, schedule_id)
        if hasattr(command, "add"):
            return msgspec.structs.replace(command, add=msgspec.structs.replace(command.add, id=name))
        return msgspec.structs.replace(command, id=name)


def _partition(record: Record, partitions: int) -> int:
    key = unpack(record.message).key
    return crc32(record.id.encode() if key is None else key) % partitions


def _seen(schedule: Schedule, schedule_id: str) -> Schedule:
    """A schedule under its common id. Its position on the log depends on the generated id."""
    message = None if schedule.state in FINISHED else schedule.message
    return msgspec.structs.replace(schedule, id=schedule_id, partition=None, offset=None, message=message)
