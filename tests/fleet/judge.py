"""Compares all outcomes with all releases: lost, duplicate, early, unwanted or untrue ones."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.fleet.checker import TooLong, order_of
from tests.fleet.clients import Clients, Name
from tests.fleet.model import FOREVER, Step
from tests.fleet.readers import Seen
from tidings.domain.schedules.iso8601 import parse_instant

EXAMPLES = 8
PAGE = 500
AT_A_TIME = 8
WAITING = frozenset({"pending", "in_flight"})
FAULTS = ("lost", "twice", "early", "unwanted", "untrue", "waiting")


class End(NamedTuple):
    """The final state of an id, and its history if requested."""

    state: str
    generation: int
    history: Sequence[Mapping[str, Any]] | None = None


UNKNOWN = End("none", 0)


@dataclass
class Verdict:
    """The number of schedules, and all faults."""

    schedules: int = 0
    calls: int = 0
    open_calls: int = 0
    records: int = 0
    due: int = 0
    missed: int = 0
    cancelled: int = 0
    contended: int = 0
    faults: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FAULTS})
    lateness_us: list[int] = field(default_factory=list)  # in order, of those that were never held
    latest: Seen | None = None

    @property
    def is_clean(self) -> bool:
        return not any(self.faults.values())

    def late_ms(self, share: float) -> float:
        """The lateness that this share of the records does not exceed."""
        late = self.lateness_us
        return late[min(len(late) - 1, int(len(late) * share))] / 1000 if late else 0.0

    def __str__(self) -> str:
        first = (
            f"{self.schedules} schedules, {self.calls} calls, {self.open_calls} without an answer;"
            f" {self.records} records read: {self.due} due = {self.due - self.missed} released + {self.missed} missed,"
            f" {self.cancelled} cancelled; {self.contended} ids with calls at the same time"
        )
        lines = [
            first,
            ", ".join(f"{len(self.faults[name])} {name}" for name in FAULTS),
            f"lateness p50 {self.late_ms(0.5):.1f} ms, p99 {self.late_ms(0.99):.1f} ms, worst {self.late_ms(1):.1f} ms",
            f"the latest: {self.latest}",
        ]
        for name in FAULTS:
            lines += [f"  {name}: {text}" for text in self.faults[name][:EXAMPLES]]
        return "\n".join(lines)


def judge(steps: Mapping[Name, Sequence[Step]], records: Sequence[Seen], ends: Mapping[Name, End], now: int) -> Verdict:
    """Compare what can be read with what was answered, id by id."""
    verdict = Verdict(len(steps), records=len(records))
    seen: dict[Name, list[Seen]] = defaultdict(list)
    for record in records:
        seen[record.name].append(record)
    held = {name for name, calls in steps.items() if any(step.kind == "pause" for step in calls)}
    prompt = sorted((record.released - record.due, record) for record in records if record.name not in held)
    verdict.lateness_us = [late for late, _ in prompt]
    verdict.latest = prompt[-1][1] if prompt else None
    for name in seen.keys() - steps.keys():
        verdict.faults["unwanted"].append(f"{name} was never sent: {seen[name]}")
    for name, calls in steps.items():
        _Case(name, calls, seen.get(name, []), ends.get(name, UNKNOWN), now).judge(verdict)
    return verdict


class _Case:
    """One id."""

    def __init__(self, name: Name, calls: Sequence[Step], seen: Sequence[Seen], end: End, now: int) -> None:
        self._name = name
        self._calls = calls
        self._seen = seen
        self._end = end
        self._now = now
        self._missed = _missed(end, calls)

    def judge(self, verdict: Verdict) -> None:
        calls, answered = self._calls, [step for step in self._calls if step.word is not None]
        verdict.calls += len(calls)
        verdict.open_calls += len(calls) - len(answered)
        verdict.contended += any(one.returned > other.called for one, other in pairwise(calls))
        regular = sum(record.n > 0 for record in self._seen)
        missed = sum(max(1, step.often) for step in self._missed)
        verdict.due += regular + missed
        verdict.missed += missed
        verdict.cancelled += self._end.state == "cancelled"
        before = sum(map(len, verdict.faults.values()))
        self._count(verdict)
        self._look_at_moments(verdict)
        if self._end.state in WAITING:
            self._report(verdict, "waiting", f"is {self._end.state} in the end")
        if sum(map(len, verdict.faults.values())) == before:
            self._look_at_history(verdict)
            self._look_at_order(verdict)

    def _look_at_order(self, verdict: Verdict) -> None:
        try:
            if order_of(self._steps()) is None:
                self._report(verdict, "untrue", "there is no order in which every answer is correct")
        except TooLong as error:
            self._report(verdict, "untrue", f"no order was found in time in which every answer is correct: {error}")

    def _steps(self) -> list[Step]:
        releases = [
            Step("release", record.since, record.seen, None, record.token, generation=record.generation, n=record.n)
            for record in self._seen
        ]
        end = Step("stand", self._now, FOREVER, self._end.state, generation=self._end.generation)
        return [*self._calls, *releases, *self._missed, end]

    def _count(self, verdict: Verdict) -> None:
        """Records that are lost, duplicate or unwanted in any order of steps."""
        counts = Counter((record.generation, record.n) for record in self._seen)
        for (generation, n), count in counts.items():
            if count > 1:
                self._report(verdict, "twice", f"generation {generation} n {n} left {count} times")
        kinds = {step.kind for step in self._calls}
        added = [step for step in self._calls if step.kind == "add" and step.word in {"scheduled", "unchanged"}]
        if added and kinds <= {"add", "fire"} and self._end.state != "missed":
            often = max(1, added[0].often)
            have = sum(record.n > 0 for record in self._seen) + sum(step.often for step in self._missed)
            if have < often:
                self._report(verdict, "lost", f"{often - have} of {often} did not leave")
        is_cancelled = any(step.kind == "cancel" and step.word == "cancelled" for step in self._calls)
        has_one_generation = "reuse" not in kinds and not any(step.often for step in self._calls)
        if is_cancelled and has_one_generation and self._end.state == "cancelled" and self._seen:
            self._report(verdict, "unwanted", "left, although it was answered to be cancelled")

    def _look_at_moments(self, verdict: Verdict) -> None:
        """Nothing is released or seen before it is due, and it is due when the answer said so."""
        fired = any(step.kind == "fire" for step in self._calls)
        sent = Counter(step.token for step in self._calls)  # if it is sent again after its time, it is due then
        dues = {step.token: step.due for step in self._calls if sent[step.token] == 1 and not step.often}
        for record in self._seen:
            if record.released < record.due or record.seen < record.due:
                self._report(verdict, "early", f"{record}")
            elif not fired and (answered := dues.get(record.token)) is not None and answered != record.due:
                self._report(verdict, "early", f"answered to be due at {answered}: {record}")

    def _look_at_history(self, verdict: Verdict) -> None:
        if self._end.history is None:
            return
        shown = sorted(event["occurrence"] for event in self._end.history if event["event"] == "released")
        left = sorted(record.n for record in self._seen)
        if shown != left:
            self._report(verdict, "untrue", f"its history shows {shown}")

    def _report(self, verdict: Verdict, fault: str, text: str) -> None:
        lines = [*map(str, sorted(self._calls, key=lambda step: step.called)), *map(str, self._seen)]
        verdict.faults[fault].append("\n    ".join([f"{self._name.id}: {text}; {self._end}", *lines]))


def _missed(end: End, calls: Sequence[Step]) -> list[Step]:
    """Occurrences that the store counts as missed, as steps."""
    recurs = any(step.often for step in calls)
    if not recurs:
        return [Step("miss", 0)] if end.state == "missed" else []
    events = [event for event in end.history or () if event["event"] == "missed"]
    return [
        Step("miss", parse_instant(event["at"]), n=event["occurrence"], often=event.get("count", 1)) for event in events
    ]


async def ask_ends(clients: Clients) -> dict[Name, End]:
    """The final state of every id; recurring and changed ones with their history."""
    ends: dict[Name, End] = {}
    for tenant in sorted({name.tenant for name in clients.steps}):
        cursor = ""
        while True:
            answer = await clients.get(f"/v1/schedules?limit={PAGE}{cursor}", tenant)
            assert answer.status == 200, answer
            for row in answer.document["schedules"]:
                ends[Name(tenant, row["id"])] = End(row["state"], row["generation"])
            if answer.document["cursor"] is None:
                break
            cursor = f"&cursor={answer.document['cursor']}"
    asked = [
        name for name, calls in clients.steps.items() if calls[0].often or {step.kind for step in calls} != {"add"}
    ]
    room = asyncio.Semaphore(AT_A_TIME)

    async def explain(name: Name) -> None:
        async with room:
            answer = await clients.get(f"/v1/schedules/{quote(name.id, safe='')}/explain", name.tenant)
        shown = answer.document
        ends[name] = End(shown["state"], shown["generation"], shown["history"]) if answer.status == 200 else UNKNOWN

    await asyncio.gather(*map(explain, asked))
    return ends
