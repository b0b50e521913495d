"""Requests to a node that may be killed at any time: repeated after its restart until they are answered."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.faults.accounts import Document
from tests.faults.node_process import Pace

TIMEOUT = aiohttp.ClientTimeout(total=4)
PAUSE_S = 0.02
FAILURES = (aiohttp.ClientError, TimeoutError, ConnectionError, asyncio.IncompleteReadError)


@dataclass(frozen=True)
class Answer:
    """An answer, with the times of both by the clock of the node. `is_repeat`: an earlier try had no answer."""

    status: int
    document: Document
    sent_at: int
    answered_at: int
    is_repeat: bool

    @property
    def word(self) -> str:
        """The outcome."""
        return str(self.document.get("outcome"))


class Requests:
    """A client of the present node."""

    def __init__(self, session: aiohttp.ClientSession, pace: Pace) -> None:
        self.asked = 0
        self.answered = 0
        self.unanswered = 0
        self.refused = 0
        self._session = session
        self._pace = pace
        self._url = ""
        self._up = asyncio.Event()

    def open(self, url: str) -> None:
        """A node listens."""
        self._url = url
        self._up.set()

    def shut(self) -> None:
        """It has ended."""
        self._up.clear()

    async def ask(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        key: str | None = None,
        patient: bool = True,
    ) -> Answer | None:
        """The answer to one request, from this process or a later one. None: no answer, and no repeat."""
        headers = {} if key is None else {"Idempotency-Key": key}
        repeats = False
        while True:
            await self._up.wait()
            url, sent_at = self._url, self._pace.now()
            self.asked += 1
            try:
                async with self._session.request(
                    method, url + path, json=body, headers=headers, timeout=TIMEOUT
                ) as response:
                    document = await response.json(content_type=None)
                    status = response.status
            except (*FAILURES, ValueError):  # a server that is being stopped may cut its answer short
                self.unanswered += 1
                if not patient:
                    return None
                repeats = True
                await asyncio.sleep(PAUSE_S)
                continue
            finally:
                self.asked -= 1
            if status == 503:
                self.refused += 1
                await asyncio.sleep(PAUSE_S)
                continue
            assert status < 500, f"{method} {path}: {document}"
            self.answered += 1
            return Answer(status, document, sent_at, self._pace.now(), repeats)

    async def get(self, path: str) -> Answer:
        """Read the present state."""
        answer = await self.ask("GET", path)
        assert answer is not None
        return answer

    async def lines(self, documents: Iterable[Document], key: str | None = None) -> AsyncIterator[Document]:
        """Many schedules in one request; each outcome on arrival, until the node is killed."""
        headers = {"Content-Type": "application/x-ndjson"} | ({} if key is None else {"Idempotency-Key": key})
        body = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
        await self._up.wait()
        self.asked += 1
        try:
            async with self._session.post(
                f"{self._url}/v1/schedules",
                data=body,
                headers=headers,
                timeout=TIMEOUT,
            ) as response:
                if response.status == 200:
                    async for line in response.content:
                        outcome: dict[str, Any] = json.loads(line)
                        if outcome.get("status") == 503:
                            return
                        self.answered += 1
                        yield outcome
                else:
                    assert response.status == 503, await response.text()
                    await asyncio.sleep(PAUSE_S)
        except (*FAILURES, ValueError):
            self.unanswered += 1
            await asyncio.sleep(PAUSE_S)
        finally:
            self.asked -= 1
