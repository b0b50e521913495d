"""A member of a consumer group through all restarts of the node: acknowledged commits stay committed."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.accounts import Document
from tests.faults.requests import Requests

GROUP = "workers"
PAGE = 200
WAIT = "1s"


@dataclass
class Diary:
    """By partition the next offset: acknowledged, perhaps committed by a request without an answer, and worked on."""

    committed: Counter[int] = field(default_factory=Counter)
    perhaps: dict[int, set[int]] = field(default_factory=dict)
    worked: Counter[int] = field(default_factory=Counter)
    commits: int = 0
    joins: int = 0

    def begin(self) -> dict[int, int]:
        """Start a new session: no position is known yet."""
        self.joins += 1
        return {}

    def work(self, session: dict[int, int], partition: int, offset: int) -> None:
        """Count a record: it must be the next one, or after a restart the first that is not committed."""
        if partition in session:
            assert offset == session[partition], f"partition {partition}: {offset} came after {session[partition] - 1}"
        else:
            allowed = {self.committed[partition], *self.perhaps.get(partition, ())}
            assert offset in allowed, f"partition {partition} began at {offset}, but {allowed} was committed"
        session[partition] = offset + 1
        self.worked[partition] = max(self.worked[partition], offset + 1)

    def commit(self, offsets: dict[int, int], *, is_answered: bool) -> None:
        for partition, offset in offsets.items():
            if is_answered:
                self.commits += 1
                self.committed[partition] = offset
                self.perhaps.pop(partition, None)
            else:
                self.perhaps.setdefault(partition, set()).add(offset)


class Member:
    """Joins, fetches and commits; joins again after its session has expired."""

    def __init__(self, requests: Requests, topic: str) -> None:
        self.diary = Diary()
        self._requests = requests
        self._path = f"/v1/topics/{topic}/groups/{GROUP}"

    async def run(self) -> None:
        """Without end."""
        while True:
            session = self.diary.begin()
            joined = await self._requests.ask("POST", f"{self._path}/join", {"member": "one"}, patient=False)
            while joined is not None and await self._turn(session, joined.document):
                pass
            await asyncio.sleep(0.01)

    async def _turn(self, session: dict[int, int], joined: Document) -> bool:
        """Fetch and commit once; False if it must join again."""
        who = {"member": joined["member"], "generation": joined["generation"]}
        fetched = await self._requests.ask(
            "POST", f"{self._path}/fetch", {**who, "limit": PAGE, "wait": WAIT}, patient=False
        )
        if fetched is None or fetched.status != 200:
            return False
        for record in fetched.document["records"]:
            self.diary.work(session, record["partition"], record["offset"])
        if not fetched.document["records"]:
            return True
        body = {**who, "offsets": {str(partition): offset for partition, offset in session.items()}}
        committed = await self._requests.ask("POST", f"{self._path}/commit", body, patient=False)
        is_refused = committed is not None and committed.status != 200
        if not is_refused:
            self.diary.commit(session, is_answered=committed is not None)
        return committed is not None and not is_refused
