"""Clients of a fleet: each call goes to any node, is recorded, and is repeated on another until it is answered."""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp

from tests.faults.node_process import wall_us
from tests.fleet.model import Kind, Step
from tidings.domain.schedules.iso8601 import parse_instant

TIMEOUT = aiohttp.ClientTimeout(total=4)
PAUSE_S = 0.15
FAILURES = (aiohttp.ClientError, TimeoutError, ConnectionError, asyncio.IncompleteReadError, ValueError)
TENANT = "Tidings-Tenant"

Document = dict[str, Any]


class Name(NamedTuple):
    """An id of a tenant. Ids of these tests begin with their tenant, so that a record on Kafka shows its tenant."""

    tenant: str
    id: str

    @classmethod
    def of(cls, schedule_id: str) -> "Name":
        return cls(schedule_id.partition("/")[0], schedule_id)


class Answer(NamedTuple):
    """A status and a document."""

    status: int
    document: Document


class Clients:
    """Knows which nodes listen, and records every call by its schedule id."""

    def __init__(self, session: aiohttp.ClientSession, seed: int) -> None:
        self.steps: dict[Name, list[Step]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self._session = session
        self._random = random.Random(seed)
        self._urls: dict[str, str] = {}
        self._up = asyncio.Event()

    def open(self, node: str, url: str) -> None:
        """A node listens."""
        self._urls[node] = url
        self._up.set()

    def shut(self, node: str) -> None:
        """It has ended."""
        self._urls.pop(node, None)
        if not self._urls:
            self._up.clear()

    # Calls that change something

    async def call(
        self, name: Name, kind: Kind, body: Document | None = None, *, often: int = 0, patient: bool = True
    ) -> Step:
        """Make a call until it is answered, or once; every try is a step of its own."""
        while True:
            step = await self._try(name, kind, body, often)
            if step.word is not None or not patient:
                return step
            await asyncio.sleep(PAUSE_S)

    async def _try(self, name: Name, kind: Kind, body: Document | None, often: int) -> Step:
        method, path = _address(name, kind)
        node, called = await self._choose(), wall_us()
        steps, place = self.steps[name], len(self.steps[name])
        step = Step(kind, called, token=body["value"] if body else "", often=often, where=node)
        steps.append(step)
        answer = await self._ask(node, method, path, name.tenant, body)
        if answer is not None:
            word, due = answer.document.get("outcome"), answer.document.get("due_at")
            assert word is not None, f"{method} {path}: {answer}"
            steps[place] = step._replace(returned=wall_us(), word=word, due=parse_instant(due) if due else None)
        return steps[place]

    async def lines(self, tenant: str, documents: Sequence[Document]) -> None:
        """Many new schedules in one request, again until each is answered."""
        left = list(documents)
        while left:
            left = left[await self._try_lines(tenant, left) :]
            if left:
                await asyncio.sleep(PAUSE_S)

    async def _try_lines(self, tenant: str, documents: Sequence[Document]) -> int:
        """Returns how many were answered, from the first on."""
        node, called = await self._choose(), wall_us()
        for document in documents:
            step = Step("add", called, token=document["value"], where=node)
            self.steps[Name.of(document["id"])].append(step)
        headers = {"Content-Type": "application/x-ndjson", TENANT: tenant}
        body = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
        answered = 0
        try:
            async with self._session.post(
                f"{self._urls[node]}/v1/schedules", data=body, headers=headers, timeout=TIMEOUT
            ) as response:
                if response.status != 200:
                    assert response.status == 503, await response.text()
                    self.counts["refused"] += 1
                    return 0
                async for line in response.content:
                    outcome = json.loads(line)
                    if outcome.get("status") == 503:
                        self.counts["refused"] += 1
                        break
                    steps = self.steps[Name.of(documents[answered]["id"])]
                    due = parse_instant(outcome["due_at"])
                    steps[-1] = steps[-1]._replace(returned=wall_us(), word=outcome["outcome"], due=due)
                    self.counts["answered"] += 1
                    answered += 1
        except (*FAILURES, KeyError):
            self.counts["unanswered"] += 1
        return answered

    # Reading

    async def get(self, path: str, tenant: str) -> Answer:
        """The answer of any node."""
        while True:
            answer = await self._ask(await self._choose(), "GET", path, tenant)
            if answer is not None:
                return answer
            await asyncio.sleep(PAUSE_S)

    async def _choose(self) -> str:
        while True:
            await self._up.wait()
            if self._urls:
                return self._random.choice(list(self._urls))

    async def _ask(self, node: str, method: str, path: str, tenant: str, body: Document | None = None) -> Answer | None:
        try:
            async with self._session.request(
                method, self._urls[node] + path, json=body, headers={TENANT: tenant}, timeout=TIMEOUT
            ) as response:
                document = await response.json(content_type=None)
                status = response.status
        except (*FAILURES, KeyError):
            self.counts["unanswered"] += 1
            return None
        if status == 503:
            self.counts["refused"] += 1
            return None
        assert status < 500, f"{method} {path}: {document}"
        self.counts["answered"] += 1
        return Answer(status, document)


def _address(name: Name, kind: Kind) -> tuple[str, str]:
    one = f"/v1/schedules/{quote(name.id, safe='')}"
    match kind:
        case "add":
            return "POST", "/v1/schedules"
        case "replace":
            return "PUT", one
        case "reuse":
            return "PUT", f"{one}?reuse=true"
        case "cancel":
            return "DELETE", one
        case _:
            return "POST", f"{one}/{kind}"
