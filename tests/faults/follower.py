"""A consumer that reads every record by cursor, through all restarts of the node."""

import asyncio

from tests.faults.accounts import Journal
from tests.faults.requests import Requests

PAGE = 1000
WAIT = "1s"


async def follow(requests: Requests, topic: str, journal: Journal) -> None:
    """Read a topic and wait for more, forever."""
    cursor: str | None = None
    while True:
        query = f"limit={PAGE}&wait={WAIT}" + ("" if cursor is None else f"&cursor={cursor}")
        answer = await requests.get(f"/v1/topics/{topic}/records?{query}")
        if answer.status == 404:
            await asyncio.sleep(0.05)
            continue
        assert answer.status == 200, answer
        for record in answer.document["records"]:
            journal.read(record)
        cursor = answer.document["cursor"]
