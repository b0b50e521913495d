"""A load of schedules over Kafka, some cancelled or replaced, and the expected result of each."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from confluent_kafka import Producer

from tests.faults.node_process import wall_us
from tests.faults.requests import Requests
from tests.kafka.site import Header
from tests.servers.kafka import Broker
from tidings.domain.schedules.iso8601 import format_instant
from tidings.testing import eventually

Kind = Literal["plain", "native", "kept back", "http cancel", "http replace", "kafka cancel", "kafka replace"]

TENANT = "default"  # whom HTTP speaks for without keys
ASSIGNMENTS = f"assignments.{TENANT}"
REQUESTS = f"tidings.requests.{TENANT}"
EXECUTIONS = f"executions.{TENANT}"
OUT = "native-out"
SHUT = "native-shut"  # is not there for half of the time
REJECTIONS = (f"rejections.{TENANT}", f"tidings.rejections.{TENANT}")

SHARES: dict[Kind, int] = {
    "plain": 56,
    "native": 18,
    "kept back": 6,
    "http cancel": 6,
    "http replace": 4,
    "kafka cancel": 6,
    "kafka replace": 4,
}
TICK_S = 0.1
AHEAD_S = (0.5, 6.0)
CHANGERS = 8
SEND_S_MAX = 120.0
KNOWN_S_MAX = 120.0


@dataclass
class Account:
    """One schedule. Tokens are the values of its first and its second message; `must` says how often each arrives."""

    kind: Kind
    id: str
    due: int
    tokens: tuple[str, str]
    must: tuple[int, int] | None = None  # None: one of the two, or as its state says
    state: str = ""
    due_again: int = 0
    is_sent: bool = field(default=False, repr=False)

    @property
    def topic(self) -> str:
        """The destination topic."""
        return {"native": OUT, "kept back": SHUT}.get(self.kind, EXECUTIONS)


class Load:
    """Schedules are sent until it is stopped; changes are sent to any running node."""

    def __init__(self, broker: Broker, requests: Requests, seed: int, rate: int) -> None:
        self.accounts: list[Account] = []
        self.words: Counter[str] = Counter()
        self._requests = requests
        self._random = random.Random(seed)
        self._rate = rate
        self._producer = Producer(
            broker.client(enable_idempotence=True, linger_ms=5, message_timeout_ms=int(SEND_S_MAX * 1000))
            | {"log_level": 0}
        )
        self._changes: asyncio.Queue[Account | None] = asyncio.Queue()
        self._stopping = False
        self._sending: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Leave after `finish`."""
        async with asyncio.TaskGroup() as tasks:
            self._sending = tasks.create_task(self._send())
            for _ in range(CHANGERS):
                tasks.create_task(self._change_all())
            yield

    async def finish(self) -> None:
        """Send nothing more; wait until the broker has all of it and every change is answered."""
        self._stopping = True
        assert self._sending is not None
        await self._sending
        left = await asyncio.to_thread(self._producer.flush, SEND_S_MAX)
        assert left == 0, f"{left} requests did not reach the broker"
        for _ in range(CHANGERS):
            self._changes.put_nowait(None)

    # Sending

    async def _send(self) -> None:
        later: list[tuple[int, Account]] = []
        while not self._stopping:
            for _ in range(int(self._rate * TICK_S)):
                account = self._schedule()
                if account.kind.startswith("kafka"):
                    later.append((wall_us() + int(self._random.uniform(0, 1) * (account.due - wall_us())), account))
                elif account.kind.startswith("http"):
                    self._changes.put_nowait(account)
            for at, account in [one for one in later if one[0] <= wall_us()]:
                later.remove((at, account))
                self._change_by_kafka(account)
            self._producer.poll(0)
            await asyncio.sleep(TICK_S)
        for _, account in later:
            self._change_by_kafka(account)

    def _schedule(self) -> Account:
        (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
        name = f"s{len(self.accounts)}"
        due = wall_us() + int(self._random.uniform(*AHEAD_S) * 1_000_000)
        account = Account(kind, name, due, (f"{name} first", f"{name} second"))
        if kind in {"plain", "native", "kept back"}:
            account.must = (1, 0)
        self.accounts.append(account)
        if kind in {"native", "kept back"}:
            self._request(
                REQUESTS, account, 0, tidings_id=name, tidings_to=account.topic, tidings_at=format_instant(due)
            )
        elif kind == "plain":  # its id is derived from where its record lies
            self._request(ASSIGNMENTS, account, 0, intervals_schedule=format_instant(due))
        else:
            self._request(ASSIGNMENTS, account, 0, intervals_schedule=format_instant(due), intervals_id=name)
        return account

    def _change_by_kafka(self, account: Account) -> None:
        if account.kind == "kafka cancel":
            self._request(ASSIGNMENTS, account, 1, intervals_id=account.id, intervals_action="CANCEL")
            return
        account.due_again = max(account.due, wall_us()) + 500_000
        at = format_instant(account.due_again)
        self._request(
            ASSIGNMENTS, account, 1, intervals_id=account.id, intervals_action="REPLACE", intervals_schedule=at
        )

    def _request(self, topic: str, account: Account, which: int, **headers: str) -> None:
        named: list[Header] = [(name.replace("_", "-"), text) for name, text in headers.items()]
        self._producer.produce(topic, account.tokens[which], account.id, headers=named)

    # Changing over HTTP

    async def _change_all(self) -> None:
        while (account := await self._changes.get()) is not None:
            await asyncio.sleep(max(0.0, self._random.uniform(0, (account.due - wall_us()) / 1_000_000)))
            await self._await_known(account)
            if account.kind == "http cancel":
                await self._cancel(account)
            else:
                await self._replace(account)

    async def _await_known(self, account: Account) -> None:
        async def is_known() -> bool:
            return (await self._requests.get(self._path(account))).status != 404

        await eventually(is_known, KNOWN_S_MAX)

    async def _cancel(self, account: Account) -> None:
        answer = await self._requests.ask("DELETE", self._path(account))
        assert answer is not None
        word, state = answer.word, answer.document.get("state")
        self.words[f"cancel: {word}"] += 1
        if word == "cancelled" or (answer.is_repeat and state == "cancelled"):
            account.must = (0, 0)
        else:
            assert word in {"in_flight", "already_released"}, answer
            account.must = (1, 0)

    async def _replace(self, account: Account) -> None:
        account.due_again = max(account.due, wall_us()) + 500_000
        body = {"topic": EXECUTIONS, "value": account.tokens[1], "at": format_instant(account.due_again)}
        answer = await self._requests.ask("PUT", self._path(account), body)
        assert answer is not None
        word = answer.word
        self.words[f"replace: {word}"] += 1
        if word in {"replaced", "unchanged"}:
            account.must = (0, 1)
        else:
            assert word in {"in_flight", "already_released"}, answer
            account.must = None if answer.is_repeat else (1, 0)  # a try that went unanswered may have replaced it

    async def ask_states(self) -> None:
        """Read the states of schedules cancelled over Kafka, where there are no answers."""
        for account in self.accounts:
            if account.kind == "kafka cancel":
                account.state = (await self._requests.get(self._path(account))).document["state"]
                account.must = (0, 0) if account.state == "cancelled" else (1, 0)

    def _path(self, account: Account) -> str:
        return f"/v1/schedules/{quote(account.id, safe='')}"
