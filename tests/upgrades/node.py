"""A whole node in this process, on a clock that starts at a given time, with an HTTP client.

Works with version 0.1 as well as with today's code: `make_store.py` runs under the former.
"""

import asyncio
import importlib
import importlib.util
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
from yarl import URL

from tidings.clock import SystemClock
from tidings.config import load
from tidings.testing import eventually

START_S_MAX = 30.0
SERVE_MODULES = ("tidings.node.serve", "tidings.node.serving")  # today's, and that of 0.1


class ShiftedClock:
    """The clock of this machine, shifted so that it starts at another time. It goes on at its usual pace."""

    def __init__(self, now_us: int) -> None:
        self._own = SystemClock()
        self._shift_us = now_us - self._own.now()

    @property
    def shift_us(self) -> int:
        """How far it is ahead of the clock of this machine."""
        return self._shift_us

    def now(self) -> int:
        return self._own.now() + self._shift_us

    def elapsed(self) -> int:
        return self._own.elapsed()

    def skip(self, by_us: int) -> None:
        """Set it forward, while no node runs on it."""
        self._shift_us += by_us


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def stored(self) -> dict[str, Any]:
        """What a fixture keeps of it."""
        kept: dict[str, Any] = {"status": self.status, "body": self.document}
        if "etag" in self.headers:
            kept["etag"] = self.headers["etag"]
        return kept


class Client:
    """A client of a node; `key` is the API key that it sends once there is one."""

    def __init__(self, url: str, session: aiohttp.ClientSession, key: str | None = None) -> None:
        self._url = url
        self._session = session
        self.key = key

    async def call(
        self, method: str, path: str, document: Any = None, *, tenant: str = "default", **headers: str
    ) -> Reply:
        """One request. A document is sent as JSON, bytes as they are; `If_Match="x"` is the header `If-Match`."""
        sent = {"Tidings-Tenant": tenant} | {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        data = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        url = URL(self._url + path, encoded=True)
        async with self._session.request(method, url, data=data, headers=sent) as response:
            named = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, named, await response.read())

    async def get(self, path: str, tenant: str = "default") -> Reply:
        return await self.call("GET", path, tenant=tenant)


@asynccontextmanager
async def running(settings: Path, clock: ShiftedClock, key: str | None = None) -> AsyncIterator[Client]:
    """A node with the settings of a file, until the end of the block."""
    module = _serve_module()
    config = load(str(settings), {}, {}).config
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    with mock.patch.object(module, "SystemClock", return_value=clock):
        node = asyncio.create_task(module.serve_node(config, stop, ready.set_result))
        try:
            await asyncio.wait({node, ready}, timeout=START_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if node.done():
                node.result()
            async with aiohttp.ClientSession() as session:
                client = Client(ready.result(), session, key)
                await _until_ready(client)
                yield client
        finally:
            stop.set()
            await node


async def _until_ready(client: Client) -> None:
    async def is_ready() -> bool:
        return (await client.get("/readyz")).status == 200

    await eventually(is_ready, START_S_MAX)


def _serve_module() -> Any:
    for name in SERVE_MODULES:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise AssertionError("there is no module that serves a node")
