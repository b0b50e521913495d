"""The load: short scenarios of one schedule each, whose outcomes are recorded."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count
from urllib.parse import quote

from tests.faults.accounts import FOREVER, Account, Document, Recurring
from tests.faults.node_process import Pace
from tests.faults.requests import Answer, Requests
from tidings.domain.schedules.iso8601 import format_instant, parse_instant

TOPICS = ("greetings", "orders")
SECOND_US = 1_000_000
SHORT_S = 2.0


class Scenarios:
    """Scenarios that run concurrently."""

    def __init__(self, requests: Requests, pace: Pace, seed: int) -> None:
        self.accounts: list[Account] = []
        self._requests = requests
        self._pace = pace
        self._random = random.Random(seed)
        self._numbers = count(1)
        self._stopping = False
        self._stories: list[tuple[Callable[[Account], Awaitable[None]], int]] = [
            (self._single, 4),
            (self._made, 2),
            (self._careless, 2),
            (self._published, 1),
            (self._cancelled, 4),
            (self._replaced, 4),
            (self._paused, 3),
            (self._fired, 2),
            (self._expiring, 3),
            (self._recurring, 3),
            (self._changed, 4),
            (self._reused, 1),
        ]

    async def run_scenarios(self) -> None:
        """Run scenario after scenario."""
        stories, weights = zip(*self._stories, strict=True)
        while not self._stopping:
            scenario = self._random.choices(stories, weights)[0]
            await self._one(scenario)

    async def run_batches(self) -> None:
        """Batch after batch."""
        while not self._stopping:
            await self._lines(self._random.choice(("ids", "ids", "key", "neither")))
            await asyncio.sleep(self._some(0.3))

    async def _one(self, scenario: Callable[[Account], Awaitable[None]]) -> None:
        account = Account(scenario.__name__.strip("_"))
        self.accounts.append(account)
        await scenario(account)
        account.is_done = True

    def stop(self) -> None:
        """Start no new scenario."""
        self._stopping = True

    # What is sent

    def _token(self) -> str:
        return f"token-{next(self._numbers)}"

    def _document(self, account: Account, token: str, seconds: float, **more: object) -> Document:
        """A one-shot due in so many seconds of the nodes' time."""
        document: Document = {"topic": self._random.choice(TOPICS), "value": token, "at": self._in(seconds), **more}
        if account.id is not None:
            document["id"] = account.id
        document["priority"] = self._random.choice(("high", "normal", "low"))
        account.expect(token, 0, 1)
        return document

    def _in(self, seconds: float) -> str:
        return f"PT{max(seconds * self._pace.speed, 1e-6):.6f}S"

    def _some(self, seconds: float = SHORT_S) -> float:
        return self._random.uniform(0, seconds)

    async def _ask(self, method: str, path: str, body: Document | None = None, key: str | None = None) -> Answer:
        answer = await self._requests.ask(method, path, body, key=key)
        assert answer is not None
        return answer

    async def _add(self, account: Account, seconds: float, **more: object) -> str:
        """A one-shot with a given id, repeated until it is answered; returns its token."""
        account.id = account.id or f"{account.kind}/{next(self._numbers)}"
        token = self._token()
        answer = await self._ask("POST", "/v1/schedules", self._document(account, token, seconds, **more))
        allowed = {"scheduled", "unchanged"} if answer.is_repeat else {"scheduled"}
        assert answer.word in allowed, answer
        account.expect(token, 1, 1)
        account.due[token] = parse_instant(answer.document["due_at"])
        return token

    def _path(self, account: Account) -> str:
        assert account.id is not None
        return f"/v1/schedules/{quote(account.id, safe='')}"

    # One-shots

    async def _single(self, account: Account) -> None:
        await self._add(account, self._some())

    async def _made(self, account: Account) -> None:
        """A generated id; an idempotency key makes it safe to repeat the request."""
        token = self._token()
        document = self._document(account, token, self._some())
        answer = await self._ask("POST", "/v1/schedules", document, key=f"key-{token}")
        assert answer.word == "scheduled", answer
        account.id = answer.document["id"]
        account.expect(token, 1, 1)

    async def _careless(self, account: Account) -> None:
        """Without an answer it may be stored or not; with one it is stored."""
        token = self._token()
        document = self._document(account, token, self._some(1.0))
        answer = await self._requests.ask("POST", "/v1/schedules", document, patient=False)
        if answer is not None:
            assert answer.word == "scheduled", answer
            account.id = answer.document["id"]
            account.expect(token, 1, 1)

    async def _published(self, account: Account) -> None:
        token = self._token()
        account.expect(token, 0, 1)
        path = f"/v1/topics/{self._random.choice(TOPICS)}/records"
        answer = await self._requests.ask("POST", path, {"value": token}, patient=False)
        if answer is not None:
            account.id = answer.document["id"]
            account.expect(token, 1, 1)

    async def _expiring(self, account: Account) -> None:
        """A schedule that is released or missed, as the store shows."""
        token = await self._add(account, self._some(1.0), expires_after=self._in(0.1))
        account.expect(token, 0, 1)
        account.states = frozenset({"released", "missed"})

    async def _cancelled(self, account: Account) -> None:
        token = await self._add(account, 0.1 + self._some())
        await asyncio.sleep(self._some(1.5))
        patient = self._random.random() < 0.8
        answer = await self._requests.ask("DELETE", self._path(account), patient=patient)
        if answer is None:
            account.expect(token, 0, 1)
            account.states = frozenset({"cancelled", "released"})
        elif answer.word == "cancelled":
            account.expect(token, 0, 0)
            account.states = frozenset({"cancelled"})
        else:
            assert answer.word == "already_released", answer

    async def _replaced(self, account: Account) -> None:
        """The old or the new schedule is released, according to the answer."""
        tokens = [await self._add(account, 0.1 + self._some())]
        account.total = (1, 1)
        for _ in range(self._random.choice((1, 1, 2, 4))):
            await asyncio.sleep(self._some(0.5))
            tokens.append(self._token())
            account.due.clear()
            body = self._document(account, tokens[-1], 0.1 + self._some())
            answer = await self._ask("PUT", self._path(account), body | {"id": account.id})
            if answer.word == "already_released":
                for token in tokens[-2:]:
                    account.expect(token, 0, 1 if answer.is_repeat or token == tokens[-2] else 0)
                return
            assert answer.word in ({"replaced", "unchanged"} if answer.is_repeat else {"replaced"}), answer
            account.expect(tokens[-2], 0, 0)
            account.expect(tokens[-1], 1, 1)
            account.due[tokens[-1]] = parse_instant(answer.document["due_at"])

    async def _paused(self, account: Account) -> None:
        """Nothing is released while it is paused."""
        await self._add(account, 0.1 + self._some(1.0))
        await asyncio.sleep(self._some(0.5))
        await self._hold(account)

    async def _hold(self, account: Account) -> None:
        paused = await self._ask("POST", f"{self._path(account)}/pause")
        if paused.word != "paused":
            assert paused.word == "already_released", paused
            return
        await asyncio.sleep(self._some(1.5))
        resumed = await self._ask("POST", f"{self._path(account)}/resume")
        allowed = {"resumed", "unchanged", "already_released"} if resumed.is_repeat else {"resumed"}
        assert resumed.word in allowed, resumed
        if not resumed.is_repeat:
            account.quiet.append((paused.answered_at, resumed.sent_at))

    async def _fired(self, account: Account) -> None:
        """Far away, and then at once."""
        token = await self._add(account, 3600)
        account.due.clear()
        answer = await self._ask("POST", f"{self._path(account)}/fire")
        assert answer.word in ({"fired", "already_released"} if answer.is_repeat else {"fired"}), answer
        account.expect(token, 1, 1)

    async def _reused(self, account: Account) -> None:
        """A finished id gets a new generation; asked again it may get more than one."""
        first = await self._add(account, 0)
        token = self._token()
        tries = 0
        while True:
            tries += 1
            account.expect(token, 0, tries)
            body = {"topic": TOPICS[0], "value": token, "id": account.id}
            answer = await self._requests.ask("PUT", f"{self._path(account)}?reuse=true", body, patient=False)
            if answer is not None:
                break
            account.expect(first, 0, 1)
        if answer.word == "replaced":  # the first one had not left yet
            account.expect(first, 0, 0)
        account.expect(token, 1, tries)

    # Recurring ones

    async def _recur(self, account: Account, policy: str, times: int) -> Recurring:
        account.id = f"{account.kind}/{next(self._numbers)}"
        token = self._token()
        start = self._pace.now() + int(self._some(1.0) * self._pace.speed * SECOND_US)
        recurring = Recurring(start, self._pace.speed * SECOND_US, times, policy)
        document = self._document(account, token, 0, late=policy)
        del document["at"]
        document["every"] = f"R{times}/{format_instant(start)}/PT{self._pace.speed}S"
        if policy == "skip":
            document["late_grace"] = self._in(0.3)
        account.expect(token, 0, times)
        answer = await self._ask("POST", "/v1/schedules", document)
        assert answer.word in ({"scheduled", "unchanged"} if answer.is_repeat else {"scheduled"}), answer
        account.recurring = recurring
        if policy == "fire_all":
            account.expect(token, times, times)
        return recurring

    async def _recurring(self, account: Account) -> None:
        policy = self._random.choice(("fire_all", "fire_latest", "skip"))
        await self._recur(account, policy, self._random.randint(2, 5))
        account.states = frozenset({"ended", "missed"})

    async def _changed(self, account: Account) -> None:
        """Fired beside its times, held, and perhaps cancelled."""
        policy = self._random.choice(("fire_all", "fire_latest"))
        recurring = await self._recur(account, policy, self._random.randint(3, 6))
        fires = 0
        for _ in range(self._random.randint(0, 3)):
            await asyncio.sleep(self._some(0.5))
            if self._random.random() < 0.6:
                key = f"fire-{account.id}-{fires}"
                answer = await self._ask("POST", f"{self._path(account)}/fire", key=key)
                fires += answer.word == "fired"
                assert answer.word in {"fired", "already_released"}, answer
                account.extras = (fires, fires)
            else:
                await self._hold(account)
        if self._random.random() < 0.6:
            await self._end(account, recurring, fires)

    async def _end(self, account: Account, recurring: Recurring, fires: int) -> None:
        """After `cancelled` nothing is released, not even fired records."""
        answer = await self._ask("DELETE", self._path(account))
        if answer.word == "cancelled":
            recurring.is_cancelled = True
            account.extras = (0, fires)
            account.quiet.append((answer.answered_at, FOREVER))
            for token in account.tokens:
                account.expect(token, 0, recurring.count)
        else:
            assert answer.word == "already_released", answer

    # Many at once

    async def _lines(self, safety: str) -> None:
        """With ids, or an idempotency key, it is safe to send them all again; without, some may be there or not."""
        accounts = [Account("lines") for _ in range(self._random.choice((5, 20, 60)))]
        key = f"lines-{next(self._numbers)}" if safety == "key" else None
        self.accounts += accounts
        documents = []
        for account in accounts:
            account.id = f"line/{next(self._numbers)}" if safety == "ids" else None
            documents.append(self._document(account, self._token(), self._some()))
        repeats = False
        while True:
            answered = 0
            async for outcome in self._requests.lines(documents, key):
                allowed = {"scheduled", "unchanged"} if repeats and safety == "ids" else {"scheduled"}
                assert outcome["outcome"] in allowed, outcome
                self._settle_line(accounts[answered], outcome)
                answered += 1
            if answered == len(documents) or safety == "neither":
                break
            repeats = True
        for account in accounts:
            account.is_done = True

    def _settle_line(self, account: Account, outcome: Document) -> None:
        [token] = account.tokens
        assert account.id in {None, outcome["id"]}, f"{account} was answered {outcome}"
        account.id = outcome["id"]
        account.expect(token, 1, 1)
