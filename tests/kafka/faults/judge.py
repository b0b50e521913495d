"""Compares what a reader of committed records finds with what was promised."""

from collections import Counter
from dataclasses import dataclass, field

from confluent_kafka import Message

from tests.kafka.faults.load import EXECUTIONS, OUT, REJECTIONS, SHUT, Account
from tests.kafka.site import read_all
from tests.servers.kafka import Broker

EXAMPLES = 15


@dataclass
class Verdict:
    """The number of schedules, and all faults."""

    schedules: int = 0
    records: int = 0
    cancelled: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.twice or self.unwanted or self.early or self.refused)

    def __str__(self) -> str:
        first = (
            f"{self.schedules} schedules, {self.records} records read, {self.cancelled} cancelled:"
            f" {len(self.lost)} lost, {len(self.twice)} twice, {len(self.unwanted)} after they were cancelled or"
            f" replaced, {len(self.early)} early, {len(self.refused)} refused"
        )
        lines = [first]
        for name in ("lost", "twice", "unwanted", "early", "refused"):
            lines += [f"  {name}: {text}" for text in getattr(self, name)[:EXAMPLES]]
        return "\n".join(lines)


def judge(broker: Broker, accounts: list[Account]) -> Verdict:
    """Compare all that can be read with all that was promised."""
    seen: Counter[str] = Counter()
    stamps: dict[str, int] = {}
    found = [message for topic in (EXECUTIONS, OUT, SHUT) for message in read_all(broker, topic)]
    for message in found:
        token = _text(message)
        seen[token] += 1
        stamps[token] = message.timestamp()[1]
    verdict = Verdict(len(accounts), len(found))
    may_be_refused = set()
    for account in accounts:
        _check(account, seen, verdict)
        if account.kind == "kafka replace":
            may_be_refused.add(account.tokens[1])
        for token, due in zip(account.tokens, (account.due, account.due_again), strict=True):
            if token in stamps and stamps[token] * 1_000 + 999 < due:
                verdict.early.append(f"{token} at {stamps[token]} ms, due {due} us")
    refused = [_text(message) for topic in REJECTIONS for message in read_all(broker, topic)]
    verdict.refused = [token for token in refused if token not in may_be_refused]
    return verdict


def _check(account: Account, seen: Counter[str], verdict: Verdict) -> None:
    counts = (seen[account.tokens[0]], seen[account.tokens[1]])
    text = f"{account}: {counts}"
    if max(counts) > 1:
        verdict.twice.append(text)
    if account.must is None:
        if sum(counts) == 0:
            verdict.lost.append(text)
        elif min(counts) > 0:
            verdict.unwanted.append(text)
        return
    verdict.cancelled += account.must == (0, 0)
    for count, must in zip(counts, account.must, strict=True):
        if count < must:
            verdict.lost.append(text)
        if must == 0 and count > 0:
            verdict.unwanted.append(text)


def _text(message: Message) -> str:
    return (message.value() or b"").decode()
