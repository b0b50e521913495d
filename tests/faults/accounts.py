"""Compares the outcomes with the records seen, over all restarts of a node."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from tidings.domain.schedules.iso8601 import parse_instant

Document = dict[str, Any]
ANY = (0, 1_000_000)
FOREVER = 1 << 62


@dataclass
class Account:
    """One schedule and its expected records. A token is the value of the records of one generation."""

    kind: str
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    id: str | None = None
    total: tuple[int, int] = ANY
    due: dict[str, int] = field(default_factory=dict)
    quiet: list[tuple[int, int]] = field(default_factory=list)
    states: frozenset[str] = frozenset()
    recurring: "Recurring | None" = None
    extras: tuple[int, int] = (0, 0)
    is_done: bool = False

    def expect(self, token: str, low: int, high: int) -> None:
        """Expect at least `low` and at most `high` records of a token."""
        self.tokens[token] = (low, high)

    @property
    def owed(self) -> int:
        """How many records at least are promised."""
        return max(self.total[0], sum(low for low, _ in self.tokens.values()))


@dataclass
class Recurring:
    """A schedule's occurrences: n at `start_us + (n - 1) * period_us`. A cancelled one may end anywhere."""

    start_us: int
    period_us: int
    count: int
    policy: str
    is_cancelled: bool = False


@dataclass(frozen=True)
class Seen:
    """A record as a follower read it."""

    topic: str
    partition: int
    offset: int
    token: str
    id: str
    generation: int
    number: int
    due: int
    released: int


class Journal:
    """Every record that a follower read over all restarts, checked on arrival: never early, once, without gaps."""

    def __init__(self) -> None:
        self.by_token: dict[str, list[Seen]] = defaultdict(list)
        self.records = 0
        self._next: Counter[tuple[str, int]] = Counter()
        self._occurrences: set[str] = set()

    def ends(self, topic: str) -> dict[int, int]:
        """By partition the next offset of a topic."""
        return {partition: end for (name, partition), end in self._next.items() if name == topic}

    def read(self, document: Document) -> None:
        """Take one record."""
        schedule_id, generation, number = document["occurrence"].rsplit("/", 2)
        seen = Seen(
            document["topic"],
            document["partition"],
            document["offset"],
            document["value"],
            schedule_id,
            int(generation),
            int(number),
            parse_instant(document["due_at"]),
            parse_instant(document["released_at"]),
        )
        place = (seen.topic, seen.partition)
        assert seen.offset == self._next[place], f"a gap before {seen}: expected {self._next[place]}"
        self._next[place] += 1
        assert document["occurrence"] not in self._occurrences, f"{seen} left twice"
        self._occurrences.add(document["occurrence"])
        assert seen.released >= seen.due, f"{seen} left early"
        self.by_token[seen.token].append(seen)
        self.records += 1


class Audit:
    """Compares accounts with the journal and with the final state in the store; returns the faults."""

    UNASKED: Final[Document] = {}

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.looked_at = 0
        self.due = 0
        self.released = 0
        self.missed = 0

    def unrequested(self, accounts: list[Account]) -> list[str]:
        """Records that were never requested."""
        known = {token for account in accounts for token in account.tokens}
        return [f"{token} was never sent" for token in self._journal.by_token.keys() - known]

    def check(self, account: Account, explained: Document | None) -> list[str]:
        """The faults of one schedule. `explained` is the answer of the store, None if the schedule is unknown."""
        wrong = [*self._check_counts(account), *self._check_moments(account)]
        if explained is not self.UNASKED:
            self.looked_at += 1
            wrong += self._check_state(account, explained)
        if account.recurring is not None and explained:
            wrong += self._check_recurring(account, account.recurring, explained)
        return [f"{account.kind} {account.id}: {fault}; {account}; {self._of(account)}" for fault in wrong]

    def _of(self, account: Account) -> list[Seen]:
        return [seen for token in account.tokens for seen in self._journal.by_token[token]]

    def _check_counts(self, account: Account) -> list[str]:
        wrong = []
        for token, (low, high) in account.tokens.items():
            count = sum(seen.number > 0 for seen in self._journal.by_token[token])
            if not low <= count <= high:
                wrong.append(f"{token} left {count} times instead of {low} to {high}")
        records = self._of(account)
        count = sum(seen.number > 0 for seen in records)
        if not account.total[0] <= count <= account.total[1]:
            wrong.append(f"left {count} times instead of {account.total}")
        if not account.extras[0] <= len(records) - count <= account.extras[1]:
            wrong.append(f"{len(records) - count} extra ones left instead of {account.extras}")
        if account.id is not None and {seen.id for seen in records} - {account.id}:
            wrong.append("left under another id")
        return wrong

    def _check_moments(self, account: Account) -> list[str]:
        wrong = []
        for seen in self._of(account):
            if seen.number > 0 and account.due.get(seen.token, seen.due) != seen.due:
                wrong.append(f"{seen} was answered to be due at {account.due[seen.token]}")
            wrong += [
                f"{seen} left while it was held or after it was cancelled"
                for start, end in account.quiet
                if start < seen.released < end and (seen.number > 0 or end == FOREVER)
            ]
        return wrong

    def _check_state(self, account: Account, explained: Document | None) -> list[str]:
        if explained is None:
            return [] if account.owed == 0 and not account.states else ["is not known any more"]
        state = explained["state"]
        wrong = [] if not account.states or state in account.states else [f"is {state}, not one of {account.states}"]
        if account.recurring is None:
            newest = [seen for seen in self._of(account) if seen.generation == explained["generation"]]
            if (state == "released") != bool(newest):
                wrong.append(f"is {state}, but the log shows {newest}")
            self.due += state in {"released", "missed"}
            self.released += state == "released"
            self.missed += state == "missed"
        return wrong

    def _check_recurring(self, account: Account, recurring: Recurring, explained: Document) -> list[str]:
        """Every occurrence is released or missed, exactly once, at its moment from the anchor."""
        wrong = []
        left = [seen.number for seen in self._of(account) if seen.number > 0]
        if left != sorted(left):
            wrong.append("out of order")
        wrong += [
            f"{seen} drifted"
            for seen in self._of(account)
            if seen.number > 0 and seen.due != recurring.start_us + (seen.number - 1) * recurring.period_us
        ]
        missed = [
            number
            for event in explained["history"]
            if event["event"] == "missed"
            for number in range(event["occurrence"], event["occurrence"] + event.get("count", 1))
        ]
        if recurring.policy == "fire_all" and missed:
            wrong.append(f"missed {missed}")
        numbers = sorted([*left, *missed])
        last = len(numbers) if recurring.is_cancelled else recurring.count
        if numbers != list(range(1, last + 1)):
            wrong.append(f"released {left}, missed {missed} of {recurring.count}")
        self.due += last
        self.released += len(left)
        self.missed += len(missed)
        return wrong
