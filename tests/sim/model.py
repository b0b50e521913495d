"""The model of the simulation: acknowledged commands, and what may follow from them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tidings.domain.schedules.command import (
    FINISHED,
    Add,
    Cancel,
    Command,
    Fire,
    OutcomeWord,
    Pause,
    Replace,
    Resume,
    State,
    address,
)
from tidings.domain.schedules.lateness import deadline
from tidings.domain.schedules.schedule import MADE_ID, Record, Schedule
from tidings.domain.schedules.when import Once, is_final, last_index_at_or_before, occurrence

Key = tuple[str, str]


@dataclass
class Promise:
    """One generation of a schedule. `due` is that of a one-shot, `extras` what was fired beside a recurring one."""

    add: Add
    id: str
    generation: int
    state: State
    due: int
    finished: int | None = None
    was_fired: bool = False
    fires: int = 0
    extras: dict[int, int] = field(default_factory=dict)
    extras_left: int = 0
    left: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)

    @property
    def is_recurring(self) -> bool:
        return not isinstance(self.add.when, Once)

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    def due_of(self, number: int) -> int | None:
        """When an occurrence is due."""
        if not self.is_recurring:
            return self.due if number == 1 else None
        at = occurrence(self.add.when, number)
        return None if at is None else at + self.add.jitter_us

    def last_due(self, now: int) -> int:
        """The number of the latest occurrence that is due, 0 if none is."""
        if not self.is_recurring:
            return 1 if self.due <= now else 0
        return last_index_at_or_before(self.add.when, now - self.add.jitter_us)

    def open_numbers(self, until: int) -> list[int]:
        """The occurrences up to a number that are neither released nor missed."""
        return [number for number in range(1, until + 1) if number not in self.left | self.missed]

    def next_due(self) -> int | None:
        """When its next occurrence must be released or missed; None if there is none."""
        following = max(self.left | self.missed, default=0) + 1
        pending = self.due_of(following) if self.state == "pending" else None
        return min((due for due in (pending, *self.extras.values()) if due is not None), default=None)

    def finish(self, state: State, now: int) -> None:
        self.state, self.finished = state, now

    def copy(self) -> "Promise":
        return replace(self, extras=dict(self.extras), left=set(self.left), missed=set(self.missed))


class Ledger:
    """Every promise; `current` holds the newest generation of each id."""

    def __init__(self) -> None:
        self.current: dict[Key, Promise] = {}
        self.missed = 0
        self.released = 0
        self._fired: Counter[tuple[Key, int]] = Counter()
        self._seen: set[tuple[str, str, int, int]] = set()

    def copy(self) -> "Ledger":
        other = Ledger()
        other.current = {key: promise.copy() for key, promise in self.current.items()}
        other.missed, other.released = self.missed, self.released
        other._fired, other._seen = Counter(self._fired), set(self._seen)
        return other

    def forget(self, key: Key) -> None:
        """An id is free again: its occurrences restart."""
        del self.current[key]
        self._seen = {seen for seen in self._seen if seen[:2] != key}

    # Changes

    def apply(self, commands: Sequence[Command], ids: Sequence[str], now: int) -> list[OutcomeWord]:
        """Apply commands; returns the expected outcomes. `ids` has the ids that the store generated."""
        return [
            self._apply(command, (address(command)[0], name), now) for command, name in zip(commands, ids, strict=True)
        ]

    def _apply(self, command: Command, key: Key, now: int) -> OutcomeWord:
        promise = self.current.get(key)
        if isinstance(command, Add):
            return self._add(command, key, promise)
        if isinstance(command, Replace):
            return self._replace(command, key, promise)
        if promise is None:
            return "unknown"
        return _too_late(promise) if promise.is_finished else self._change(command, key, promise, now)

    def _add(self, add: Add, key: Key, promise: Promise | None) -> OutcomeWord:
        if promise is None:
            return self._schedule(add, key, 1)
        if promise.add.content == add.content:
            return "unchanged"
        return _too_late(promise) if promise.is_finished else "rejected"

    def _replace(self, command: Replace, key: Key, promise: Promise | None) -> OutcomeWord:
        if promise is None:
            return "unknown" if MADE_ID.match(key[1]) else self._schedule(command.add, key, 1)
        if promise.is_finished:
            return self._schedule(command.add, key, promise.generation + 1) if command.reuse else _too_late(promise)
        if promise.add.content == command.add.content:
            return "unchanged"
        self._schedule(command.add, key, promise.generation + 1, promise.state)
        return "replaced"

    def _schedule(self, add: Add, key: Key, generation: int, state: State = "pending") -> OutcomeWord:
        self.current[key] = Promise(add, key[1], generation, state, add.due)
        return "scheduled"

    def _change(self, command: Command, key: Key, promise: Promise, now: int) -> OutcomeWord:
        match command:
            case Cancel():
                promise.finish("cancelled", now)
                promise.extras.clear()
                return "cancelled"
            case Pause():
                promise.state = "paused"
                return "paused"
            case Resume():
                answer: OutcomeWord = "resumed" if promise.state == "paused" else "unchanged"
                promise.state = "pending"
                return answer
            case Fire():
                self._fire(key, promise, now)
                return "fired"
            case _:
                raise AssertionError(f"{command} is no change")

    def _fire(self, key: Key, promise: Promise, now: int) -> None:
        self._fired[key, now] += 1
        if promise.is_recurring:
            promise.fires += 1
            promise.extras[-promise.fires] = now
        else:
            promise.state, promise.due, promise.was_fired = "pending", now, True

    # Released

    def saw(self, tenant: str, record: Record) -> None:
        """Check a record on the log: it was promised, not early, not duplicate, and has the value that was sent."""
        promise = self.current.get((tenant, record.id))
        assert promise is not None, f"{record} was never acknowledged"
        assert record.generation == promise.generation, f"{record} was replaced: {promise}"
        place = (tenant, record.id, record.generation, record.number)
        assert place not in self._seen, f"{record} left twice"
        self._seen.add(place)
        assert record.due <= record.released, f"{record} left early"
        assert record.message == promise.add.message, f"{record} is not what was sent"
        self.released += 1
        if record.number < 0:
            due = promise.extras.pop(record.number, None)
            promise.extras_left += 1
        else:
            assert promise.state == "pending", f"{record} left though it was answered that it is {promise.state}"
            assert record.number not in promise.missed, f"{record} was counted as missed"
            due = promise.due_of(record.number)
            self._leave(promise, record)
        assert record.due == due, f"{record} drifted: due at {due}"

    def _leave(self, promise: Promise, record: Record) -> None:
        assert not promise.left or record.number > max(promise.left), f"{record} left out of order"
        promise.left.add(record.number)
        final = not promise.is_recurring or is_final(promise.add.when, record.number)
        assert record.final == final, f"{record} is wrong about being the last"
        if final:
            self._miss(promise, record.number, record.released)
            promise.finish("ended" if promise.is_recurring else "released", record.released)

    # Missed

    def next_due(self) -> int | None:
        """When the next occurrence must be released or missed."""
        dues = [due for promise in self.current.values() if (due := promise.next_due()) is not None]
        return min(dues, default=None)

    def overdue(self, now: int) -> Iterator[tuple[Key, Promise]]:
        """Promises that are due and not released: they were missed, or they are lost."""
        for key, promise in self.current.items():
            if promise.state == "pending" and promise.open_numbers(promise.last_due(now)):
                yield key, promise

    def settle(self, promise: Promise, found: Schedule | None, now: int) -> None:
        """The store must count an overdue promise as missed, for a valid reason."""
        assert found is not None, f"lost: {promise}"
        assert found.generation == promise.generation
        if found.state == "pending":
            assert promise.is_recurring, f"lost: {promise} is still pending at {now}"
            assert found.due > now, f"lost: {promise} is still due at {now}"
            assert found.due == promise.due_of(found.occurrence), f"{promise} drifted: {found}"
            self._miss(promise, found.occurrence - 1, now)
            return
        assert found.state in {"missed", "ended"}, f"lost: {promise} is {found}"
        assert found.state == "missed" or promise.left or promise.extras_left, f"{promise} never left: {found}"
        last = found.occurrence if promise.is_recurring else 1
        assert promise.due_of(last + 1) is None, f"{promise} ended early: {found}"
        self._miss(promise, last, now)
        promise.finish(found.state, now)

    def catch_up(self, promise: Promise, found: Schedule | None, now: int) -> None:
        """Count what an unacknowledged release has missed."""
        if found is None or found.generation != promise.generation:
            return
        if found.state in {"missed", "ended"}:
            self.settle(promise, found, now)
        elif promise.is_recurring and found.state == "pending":
            self._miss(promise, found.occurrence - 1, now)

    def settle_extras(self, now: int) -> None:
        """Fired records are released, unless it was too late."""
        extras = [(promise, *extra) for promise in self.current.values() for extra in promise.extras.items()]
        for promise, number, due in extras:
            bound = deadline(due, promise.add.lateness)
            if due <= now:
                assert bound is not None, f"lost: {number} of {promise} at {now}"
                assert now > bound[0], f"lost: {number} of {promise} at {now}"
                del promise.extras[number]
                self.missed += 1

    def _miss(self, promise: Promise, until: int, now: int) -> None:
        """Every unreleased occurrence up to a number is missed; its lateness policy must allow that."""
        for number in promise.open_numbers(until):
            due, following = promise.due_of(number), promise.due_of(number + 1)
            assert due is not None
            bound = deadline(due, promise.add.lateness)
            too_late = bound is not None and now > bound[0]
            superseded = (
                promise.is_recurring
                and promise.add.lateness.policy == "fire_latest"
                and following is not None
                and following <= now
            )
            assert too_late or superseded, f"lost: {number} of {promise} at {now}"
            promise.missed.add(number)
            self.missed += 1

    # Agreement with what a store shows

    def fired(self, key: Key, at: int) -> int:
        """How often an id was fired at a moment."""
        return self._fired[key, at]

    def differs(self, key: Key, found: Schedule | None) -> str | None:
        """Differences between what a store shows of an id and the promise."""
        promise = self.current.get(key)
        if promise is None or found is None:
            return None if promise is None and found is None else f"{key}: promised {promise}, found {found}"
        if (found.state, found.generation) != (promise.state, promise.generation):
            return f"{key}: promised {promise}, found {found}"
        if promise.state in {"pending", "paused"} and found.message != promise.add.message:
            return f"{key}: promised {promise}, found {found}"
        return None


def _too_late(promise: Promise) -> OutcomeWord:
    match promise.state:
        case "released" | "ended":
            return "already_released"
        case "cancelled":
            return "cancelled"
        case _:
            return "rejected"
