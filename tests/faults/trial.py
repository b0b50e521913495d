"""A load, its reader and its checker: whatever happens to the nodes, every outcome must hold in the end."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import quote

import aiohttp

from tests.faults.accounts import Account, Audit, Document, Journal
from tests.faults.follower import follow
from tests.faults.member import Member
from tests.faults.node_process import Pace
from tests.faults.requests import Requests
from tests.faults.scenarios import TOPICS, Scenarios

CLIENTS = 14
BATCH_CLIENTS = 2
DRAIN_S = 30.0
QUIET_S = 0.5
POLL_S = 0.1
RECENT_ACCOUNTS = 3_000
LOOK_AT_ONE_IN = 10  # of the schedules sent in batches, only some are read from the store


class Trial:
    """Runs scenarios until `finish`, which checks their results."""

    def __init__(self, session: aiohttp.ClientSession, pace: Pace, seed: int) -> None:
        self.requests = Requests(session, pace)
        self.journal = Journal()
        self.scenarios = Scenarios(self.requests, pace, seed)
        self.member = Member(self.requests, TOPICS[0])
        self._audit = Audit(self.journal)
        self._clients: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self, clients: int = CLIENTS) -> AsyncIterator[None]:
        """Run the load and readers of its records. Leave after `finish`."""
        async with asyncio.TaskGroup() as tasks:
            followers = [tasks.create_task(follow(self.requests, topic, self.journal)) for topic in TOPICS]
            followers.append(tasks.create_task(self.member.run()))
            self._clients = [tasks.create_task(self.scenarios.run_scenarios()) for _ in range(clients)]
            self._clients += [tasks.create_task(self.scenarios.run_batches()) for _ in range(BATCH_CLIENTS)]
            yield
            for follower in followers:
                follower.cancel()

    def owed(self) -> int:
        """Records that were promised and have not been seen."""
        seen = self.journal.by_token
        return sum(
            max(0, account.owed - sum(len(seen[token]) for token in account.tokens if token in seen))
            for account in self.scenarios.accounts[-RECENT_ACCOUNTS:]
        )

    async def finish(self) -> None:
        """Let everything finish on a running node, then check it."""
        self.scenarios.stop()
        await asyncio.wait(self._clients, timeout=DRAIN_S)
        pending = await self._drain()
        accounts = self.scenarios.accounts
        wrong = [*pending, *self._audit.unrequested(accounts)]
        for index, account in enumerate(accounts):
            if not account.is_done:
                wrong.append(f"its scenario did not end: {account}")
            wrong += self._audit.check(account, await self._explained(index, account))
        assert not wrong, f"{len(wrong)} promises broken:\n" + "\n".join(wrong[:20])

    async def _drain(self) -> list[str]:
        """Wait until all promised records were seen and nothing is pending; returns what is left in the end."""
        pending: list[Document] = []
        for _ in range(int(DRAIN_S / POLL_S)):
            pending = await self._pending()
            if not pending and not self.owed() and not self._unfetched():
                break
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(QUIET_S)  # nothing may follow
        return [f"still pending: {schedule}" for schedule in pending] + self._unfetched()

    def _unfetched(self) -> list[str]:
        """Records on the log that the consumer group has not read."""
        ends, worked = self.journal.ends(TOPICS[0]), self.member.diary.worked
        return [
            f"the group has {worked[partition]} of {end} records of partition {partition}"
            for partition, end in ends.items()
            if worked[partition] != end
        ]

    async def _pending(self) -> list[Document]:
        answer = await self.requests.get("/v1/schedules?state=pending&limit=3")
        return list(answer.document["schedules"])

    async def _explained(self, index: int, account: Account) -> Document | None:
        """The answer of the store about a schedule; only some of those sent in batches are read."""
        if account.id is None or (account.kind == "lines" and index % LOOK_AT_ONE_IN):
            return self._audit.UNASKED
        answer = await self.requests.get(f"/v1/schedules/{quote(account.id, safe='')}/explain")
        return answer.document if answer.status == 200 else None

    def report(self) -> str:
        requests, audit, diary = self.requests, self._audit, self.member.diary
        kinds = Counter(account.kind for account in self.scenarios.accounts)
        return (
            f"{requests.answered} answers, {requests.unanswered} requests without one, {requests.refused} times 503\n"
            f"{kinds.total()} schedules: {', '.join(f'{kind} {number}' for kind, number in kinds.items())}\n"
            f"{self.journal.records} records read; of {audit.looked_at} schedules looked at,"
            f" {audit.due} due = {audit.released} released + {audit.missed} missed\n"
            f"{diary.commits} commits of a consumer group in {diary.joins} sessions: none lost, no record passed over\n"
            "none lost, none twice, none early, none after its cancellation, no gap"
        )


@contextlib.asynccontextmanager
async def trial(seed: int, pace: Pace | None = None) -> AsyncIterator[Trial]:
    """A trial with a client of its own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Trial(session, pace or Pace(), seed)
